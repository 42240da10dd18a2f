"""What ``tools/fuzz.py`` runs; what it finds is in tests/files/test_fuzz.py."""

from argparse import Namespace
from pathlib import Path

from fuzz import tiers_of
from support.native_plans import TIERS


def test_under_sanitizers_each_instruction_set_has_one_turn():
    assert tiers_of(Namespace(isa=None, native=Path("_native.so"))) == [*TIERS]
    assert tiers_of(Namespace(isa=None, native=None)) == [TIERS[0]]
    assert tiers_of(Namespace(isa="avx2,generic", native=None)) == ["avx2", "generic"]
