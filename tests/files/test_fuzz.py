"""Whatever strangers send ends whole or in a sentence: a second of each format, and past findings.

``python tools/fuzz.py --minutes 60`` goes on for as long as is wanted.
"""

import gzip
import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from fuzz import tiers_of
from support.fuzz import FORMATS
from support.fuzz.harness import attempt, input_of, run
from support.native_plans import TIERS
from support.random_models import ROWS

pytest.importorskip("cryptography", reason="the extra 'receipt' is not installed")
pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")


ROOT = Path(__file__).parents[2]
CORPUS = sorted((ROOT / "tests/data/fuzz").glob("*/*"))


@pytest.fixture(scope="module")
def formats(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    made = {name: kind(folder) for name, kind in FORMATS.items()}
    yield made
    for format in made.values():
        format.close()


@pytest.fixture
def sound(formats):
    """A format by its name, with its sound files."""

    def get(name):
        formats[name].write_seeds()
        return formats[name]

    return get


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_inputs_end_whole_or_in_a_sentence(sound, name):
    format, outcomes = sound(name), set()
    for seed in range(format.inputs):
        outcome, why = attempt(format, input_of(format, seed))
        assert outcome != "failed", f"python tools/fuzz.py {name} --seed {seed}: {why}"
        outcomes.add(outcome)
    assert "whole" in outcomes, "nothing is read to its end"


def test_models_of_every_family_are_drawn(formats):
    assert formats["family"].names == sorted(ROWS)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_past_finding_ends_whole_or_in_a_sentence(sound, path):
    outcome, why = attempt(sound(path.parent.name), gzip.decompress(path.read_bytes()))
    assert outcome != "failed", why


@pytest.mark.parametrize("name", FORMATS)
def test_equal_numbers_are_equal_inputs(sound, name, tmp_path):
    again = FORMATS[name](tmp_path)
    again.write_seeds()
    assert input_of(sound(name), 7) == input_of(again, 7)
    again.close()


def test_what_fails_is_told_from_what_is_refused(sound):
    """A harness that calls everything refused would find nothing."""
    format = sound("form")

    def use(data):
        raise {b"a": ValueError("x"), b"b": MemoryError, b"c": BaseException("panic")}[data]

    format.use = use
    try:
        assert [attempt(format, data)[0] for data in (b"a", b"b", b"c")] == ["failed"] * 3
    finally:
        del format.use


ENDINGS = {
    "os.abort()": "crashed",
    "faulthandler.dump_traceback_later(0.01, exit=True); time.sleep(60)": "hung",
    "sys.exit('==1==ERROR: AddressSanitizer: heap-buffer-overflow')": "sanitizer",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_process_that_ends_is_counted_and_another_goes_on(sound, tmp_path, ending):
    child = f"""
import faulthandler, json, os, sys, time
for seed in range(int(sys.argv[2]), 9):
    print(json.dumps({{"seed": seed}}), flush=True)
    if seed in (2, 5):
        {ending}
    print(json.dumps({{"outcome": "refused", "why": "x", "seconds": 0.5}}), flush=True)
"""
    report = run(
        sound("form"), [sys.executable, "-c", child], tier="", first=0, seconds=60,
        findings=tmp_path, environment={},
    )  # fmt: skip
    assert getattr(report, ENDINGS[ending]) == 2 and not report.clean
    assert (report.inputs, report.refused) == (9, 7)
    (found,) = tmp_path.glob("*.input")
    assert found.read_bytes() == input_of(sound("form"), 2)


@pytest.mark.slow
def test_the_command_counts_and_finds_nothing(tmp_path):
    command = [sys.executable, "tools/fuzz.py", "--minutes", "9", "--json", tmp_path / "out.json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    reports = json.loads((tmp_path / "out.json").read_text())
    assert {report["format"] for report in reports} == {*FORMATS}
    assert all(report["whole"] and report["refused"] for report in reports)


# -- fuzz command ----------------------------------------------------------------------------------

# What ``tools/fuzz.py`` runs; what it finds is in tests/files/test_fuzz.py.


def test_under_sanitizers_each_instruction_set_has_one_turn():
    assert tiers_of(Namespace(isa=None, native=Path("_native.so"))) == [*TIERS]
    assert tiers_of(Namespace(isa=None, native=None)) == [TIERS[0]]
    assert tiers_of(Namespace(isa="avx2,generic", native=None)) == ["avx2", "generic"]
