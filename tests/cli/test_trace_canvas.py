"""``cutaway trace`` on canvases: what the verbs print that need the file alone."""

import json

import pytest

from cutaway.engine.canvas import ForcedCell, Rule
from cutaway.trace import Trace
from support.canvas_traces import events_of, file_of
from support.made_traces import embedded

FORCED = Rule(steps=6, forced_cells=(ForcedCell(2, 3, 77),))


@pytest.fixture
def file(tmp_path):
    """A function that writes a canvas of 12 cells; its path."""

    def write(rule=Rule(steps=6), name="canvas.jsonl"):  # noqa: B008
        path = tmp_path / name
        path.write_bytes(file_of(*events_of(rule, cells=12)))
        return path

    return write


def test_why_tells_the_life_of_a_cell(printed, file):
    said = printed("trace", "why", file(FORCED), 3)
    assert "Cell 3, at position 7; the rule: order confidence, steps 6, forced_cells 1" in said
    assert "Pass 2: 'M' was given" in said
    found = json.loads(printed("trace", "why", file(FORCED, "b"), 3, "--json"))
    assert found[-1]["index"] == 2
    assert found[-1]["event"] == "forced"


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Rule(steps=6), "Next in line was cell"),
        (Rule(steps=6), "missed by"),
        (Rule(steps=1), "No masked cell was left."),
        (Rule(steps=3, remask="lowest"), "made way for the mask (remask lowest)"),
        (Rule(threshold=0.02, remask="edit", edit_threshold=0.01, noise="fresh"), "took the place"),
    ],
)
def test_why_names_what_happened(printed, file, rule, words):
    path = file(rule)
    assert any(words in printed("trace", "why", path, cell) for cell in range(12))


def test_why_needs_a_cell_that_there_is(refused, file):
    said = refused("trace", "why", file(), "12")
    assert "cell must be one that a pass looked at, 0 to 11" in said


def test_diff_names_the_pass_and_the_cell(printed, file):
    a, b = file(), file(FORCED, "fork.jsonl")
    said = printed("trace", "diff", a, b)
    assert "The first 2 passes are equal." in said
    assert "In pass 2 cell" in said and "B has 'M' there" in said
    assert "All 6 passes are equal." in printed("trace", "diff", a, a)


def test_export_has_a_row_for_each_cell_of_each_pass(printed, file):
    path = file()
    said = printed("trace", "export", path, "--format", "passes")
    assert said.count("\n") >= sum(len(made.cells) for made in Trace.read(path).passes)


def test_static_play_begins_with_the_figures(printed, file):
    said = printed("trace", "play", file(), "--static").splitlines()
    assert "6 passes of 96 rows, 2.00 tokens each, order" in said[0]
    assert "bound " in said[0]


def test_a_page_holds_the_canvas_as_it_is_on_record(printed, file, tmp_path):
    path, page = file(), tmp_path / "x.html"
    assert printed("trace", "export", path, "--html", page) == ""
    held, trace = embedded(page.read_text()), Trace.read(path)
    assert (held.passes, held.steps, held.end) == (trace.passes, trace.steps, trace.end)
