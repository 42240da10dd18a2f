"""What follows from the passes on record: by hand, and by brute force over canvases of the mock."""

import csv
import io
import json
from itertools import combinations
from math import log, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.engine.canvas import ForcedCell, Rule
from cutaway.errors import InputError
from cutaway.trace import Trace, canvas_figures, cell_life, diff_texts, to_csv, to_passes_csv
from cutaway.trace.canvas import standing
from support.canvas_traces import RULES, events_of, file_of
from support.trace_by_hand import made_text

CELLS, FIRST = 8, 4


def traced(rule, **how):
    return Trace.parse(file_of(*events_of(rule, cells=CELLS, **how)))


TRACES = {n: traced(rule) for n, rule in enumerate(RULES)}


@pytest.fixture(params=TRACES)
def trace(request):
    return TRACES[request.param]


def test_the_last_canvas_is_the_text(trace):
    states = standing(trace.passes)
    assert len(states) == len(trace.passes)
    assert tuple(states[-1][p] for p in sorted(states[-1]))[: len(trace.steps)] == (
        trace.output_token_ids
    )


def test_figures_by_definition(trace):
    of = canvas_figures(trace)
    states = standing(trace.passes)
    final = states[-1]
    came = {}
    for position in final:
        came[position] = min(
            n for n in range(len(states)) if all(s.get(position) == final[position]
                                                 for s in states[n:])
        )  # fmt: skip
    pairs = [(came[b] > came[a]) - (came[b] < came[a]) for a, b in combinations(sorted(came), 2)]
    apart = sum(map(abs, pairs))
    assert of.order == (pytest.approx(sum(pairs) / sqrt(len(pairs) * apart)) if apart else None)
    assert (of.passes, of.tokens, of.cells) == (len(trace.passes), len(final), CELLS)
    assert of.rows == sum(p.rows for p in trace.passes)
    assert of.bound_bits == pytest.approx(sum(p.bound for p in trace.passes) / log(2))
    assert json.loads(json.dumps(of.to_dict()))["tokens_per_pass"] == len(final) / of.passes


def test_from_the_left_the_order_is_1():
    assert canvas_figures(traced(Rule(order="left"))).order == 1
    assert canvas_figures(traced(Rule(steps=1))).order is None


def test_a_life_has_all_that_happened_to_a_cell(trace):
    states = [{}, *standing(trace.passes)]
    for cell in range(CELLS):
        life = cell_life(trace, cell)
        by_pass = {moment.index: moment for moment in life}
        for made, before, after in zip(trace.passes, states, states[1:], strict=False):
            was, now = before.get(FIRST + cell), after.get(FIRST + cell)
            if moment := by_pass.get(made.index):
                assert moment.was == (None if was is None else trace.name_of(was))
                assert moment.now == (None if now is None else trace.name_of(now))
                kinds = {(True, False): ("revealed", "forced"), (False, True): ("masked again",)}
                if (was is None) != (now is None):
                    assert moment.event in kinds[was is None, now is None]
            else:
                assert was == now


def test_the_order_decides_by_the_margin(trace):
    """Who was revealed is above whoever was not, where nothing was given or let go of."""
    for cell in range(CELLS):
        for moment in cell_life(trace, cell):
            if moment.margin is None:
                continue
            if moment.event == "revealed":
                assert moment.margin >= 0
            elif not moment.event:
                assert moment.margin <= 0
            other = [m for m in cell_life(trace, moment.neighbour) if m.index == moment.index]
            assert other[0].figure == pytest.approx(moment.figure - moment.margin)


def test_a_forced_cell_was_given_and_then_took_the_place():
    life = cell_life(TRACES[len(RULES) - 1], 2)
    assert [(m.index, m.event) for m in life if m.event] == [(1, "forced"), (2, "forced")]
    assert [m.now for m in life if m.event] == ["M", "N"]


@given(st.integers(0, CELLS - 1), st.integers(1, CELLS - 1))
def test_two_canvases_part_where_a_cell_was_forced(cell, passed):
    a, b = TRACES[0], traced(Rule(forced_cells=(ForcedCell(passed, cell, 77),)))
    found = diff_texts(a, b)
    assert found.passes.index == passed
    assert found.passes.b == "M" or found.passes.cell < cell
    assert "passes" in found.to_dict()
    assert "canvas: forced_cells" in {change.name for change in found.changes}
    assert diff_texts(a, a).passes is None


def test_one_canvas_may_be_the_beginning_of_another():
    head, events, _ = events_of(RULES[0], cells=CELLS)
    part = Trace.parse(file_of(head, events[:3]))
    found = diff_texts(TRACES[0], part).passes
    assert (found.index, found.cell) == (3, None)


def test_passes_as_csv(trace):
    rows = list(csv.DictReader(io.StringIO(to_passes_csv(trace), newline="")))
    assert len(rows) == sum(len(made.cells) for made in trace.passes)
    cells = [cell for made in trace.passes for cell in made.cells]
    assert [float(row["figure"]) for row in rows] == [cell.figure for cell in cells]
    assert [row["now"] == "" for row in rows] == [cell.now is None for cell in cells]
    assert all(float(row["best_probability"]) >= float(row["second_probability"]) for row in rows)


def test_steps_as_csv_say_in_which_pass(trace):
    rows = list(csv.DictReader(io.StringIO(to_csv(trace), newline="")))
    assert [int(row["pass_index"]) for row in rows] == [step.pass_index for step in trace.steps]
    assert "kv_tokens" not in rows[0]


def test_a_text_from_left_to_right_has_no_cells():
    for ask in (canvas_figures, to_passes_csv, lambda trace: cell_life(trace, 0)):
        with pytest.raises(InputError, match="the trace is of no canvas"):
            ask(made_text(1))
    with pytest.raises(InputError, match="cell must be one that a pass looked at, 0 to 7"):
        cell_life(TRACES[0], 8)
