"""bench/builds.py: two builds in turns, as ratios of turns."""

import sys
from argparse import Namespace
from pathlib import Path

import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

import builds
from peers.table import Metric

SPEED = Metric("speed", "speed", "tokens/s", {"do": "decode", "context": 64, "batch": 1})


class Build:
    """A build that takes so many seconds for a token, one after the other."""

    def __init__(self, *seconds):
        self.seconds = iter(seconds)

    def ask(self, **command):
        assert command == {"do": "decode", "context": 64, "batch": 1, "seconds": 0.3}
        return [next(self.seconds)]


def test_a_ratio_is_of_two_turns_and_the_first_pair_warms_up():
    before, after = Build(9, 0.5, 0.25, 1, 1), Build(9, 0.25, 0.25, 0.5, 0.25)
    rounds = builds.turns([before, after], SPEED, Namespace(rounds=4, seconds=0.3))
    assert rounds == [[2, 4], [4, 4], [1, 2], [1, 4]]
    shown = builds.row(Path("m.gguf"), "avx2", SPEED, rounds)
    assert shown == [
        "m",
        "avx2",
        "speed",
        "2 tokens/s",
        "4 tokens/s",
        "**2.00** (1.25–3.50)",
        "1.00",
    ]


def test_a_build_is_measured_beside_itself(tiny_path, capsys, monkeypatch):
    flags = ["--rounds", "2", "--seconds", "0.01", "--isa", "generic", "--measure", "decode64"]
    monkeypatch.setattr(sys, "argv", ["builds.py", sys.executable, str(tiny_path), *flags])
    monkeypatch.setenv("CUTAWAY_ISA", "")  # so that it is put back
    builds.main()
    *_, shown = capsys.readouterr().out.splitlines()
    assert shown.startswith("| tiny | generic | one stream at context 64 |")
