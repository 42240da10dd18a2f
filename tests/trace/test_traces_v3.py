"""Traces of canvases as version 3 of the format was first written: read and shown as they were.

Of the toy that comes with the program, with edits and fresh luck; it may be another one by now, so
nothing is computed again here (tests/rerun/test_rerun_canvas.py does that).
"""

import gzip
import json
from pathlib import Path

import pytest

from cutaway.trace import Trace, canvas_figures, cell_life, diff_texts
from cutaway.trace.check import to_version
from cutaway.trace.steps import pass_to_json, step_to_json
from cutaway.trace.write import line

FOLDER = Path(__file__).parents[1] / "data" / "traces_v3"
NAMES = ("canvas", "fork")


def read(name):
    return Trace.read(FOLDER / f"{name}.jsonl.gz")


@pytest.mark.parametrize("name", NAMES)
def test_each_record_is_written_as_it_was_read(name):
    found = gzip.decompress((FOLDER / f"{name}.jsonl.gz").read_bytes()).splitlines()
    trace, kinds = read(name), [json.loads(one)["kind"] for one in found]
    for kind, written in (
        ("head", [trace.head.to_json()]), ("pass", map(pass_to_json, trace.passes)),
        ("step", map(step_to_json, trace.steps)), ("end", [trace.end.to_json()]),
    ):  # fmt: skip
        lines = [one for one, of in zip(found, kinds, strict=True) if of == kind]
        assert [json.loads(line(to_version(record, 3))) for record in written] == [
            *map(json.loads, lines)
        ]


def test_what_it_says():
    run, fork = map(read, NAMES)
    assert (run.text, run.version) == ("had fet her you ", 3)
    of = canvas_figures(run)
    assert (of.passes, of.rows, of.tokens, of.edited) == (13, 338, 16, 2)
    assert of.order == pytest.approx(0.70, abs=0.005)
    assert [(m.index, m.event) for m in cell_life(run, 2) if m.event] == [(2, "revealed")]
    found = diff_texts(run, fork)
    assert found.is_fork
    assert (found.passes.index, found.passes.cell, found.passes.b) == (2, 2, "Q")


def test_the_forced_cell_was_edited_away():
    assert [(m.index, m.event, m.now) for m in cell_life(read("fork"), 2) if m.event] == [
        (2, "forced", "Q"), (4, "edited", "s"),
    ]  # fmt: skip
