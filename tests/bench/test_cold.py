"""bench/cold.py: cold processes of two builds, as ratios of rounds."""

import re
import sys

import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

import cold
from peers.client import Cold


def test_rounds_begin_with_either_build_and_the_first_warms_up():
    order = []

    def build(name):
        return lambda: order.append(name) or Cold(len(order), 0, 0)

    pairs = cold.rounds_of(build("before"), build("after"), 2)
    assert order == ["before", "after", "after", "before", "before", "after"]
    assert [(a.first_byte_s, b.first_byte_s) for a, b in pairs] == [(4, 3), (5, 6)]


def test_a_ratio_is_of_one_round():
    shown = cold.row("processor time", [(1, 0.5), (2, 2), (4, 1)])
    assert shown == ["processor time", "2.000 s", "1.000 s", "**0.50** (0.25–1.00)"]


def test_a_build_is_measured_beside_itself(tiny_path, capsys, monkeypatch):
    flags = ["--rounds", "2", "--new-tokens", "1"]
    monkeypatch.setattr(sys, "argv", ["cold.py", sys.executable, str(tiny_path), *flags])
    cold.main()
    lines = capsys.readouterr().out.splitlines()
    assert re.match(r"\| seconds to the first text \| \d+\.\d{3} s \|", lines[2])
    assert re.match(r"\| processor time \| \d+\.\d{3} s \|", lines[3])
