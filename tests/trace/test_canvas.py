"""The trace of a canvas: its passes as they were made, and nothing that cannot have been."""

import csv
import io
import json
import re
from dataclasses import replace
from functools import cache
from importlib.resources import files
from itertools import combinations
from math import log, sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from cutaway.cli.main import main
from cutaway.engine import Pass
from cutaway.engine.canvas import ForcedCell, Rule
from cutaway.errors import FormatError, InputError
from cutaway.trace import Trace, canvas_figures, cell_life, diff_texts, to_csv, to_passes_csv
from cutaway.trace.canvas import standing
from support.canvas_traces import MASK, RULES, events_of, file_of
from support.damage import damage, put_odd_value
from support.trace_by_hand import made_text

VALID = Draft202012Validator(json.loads(files("cutaway.trace").joinpath("schema.json").read_text()))
KINDS = ["head", "pass", "step", "end"]


@cache
def raw(number=0, attention="bidirectional"):
    suffix = (9, 8) if attention == "bidirectional" else ()
    rule = RULES[number] if attention == "bidirectional" else replace(RULES[number], block=None)
    return file_of(*events_of(rule, suffix=suffix, attention=attention))


def lines(data):
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def joined(records):
    return "".join(json.dumps(record) + "\n" for record in records).encode()


@pytest.mark.parametrize("attention", ["bidirectional", 4])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.remask + rule.order)
def test_what_is_written_is_read(rule, attention):
    rule = rule if attention == "bidirectional" else replace(rule, block=None)
    head, events, end = events_of(rule, attention=attention)
    data = file_of(head, events, end)
    for record in lines(data):
        VALID.validate(record)
    trace = Trace.parse(data)
    passes = [event for event in events if isinstance(event, Pass)]
    steps = [event for event in events if not isinstance(event, Pass)]
    assert (trace.head, trace.end) == (head, end)
    assert [p._replace(phases=None) for p in trace.passes] == [
        p._replace(id=0, phases=None, cells=tuple(cell._replace(observed=None) for cell in p.cells))
        for p in passes
    ]
    assert [(s.token_id, s.pass_index, s.logits_hash) for s in trace.steps] == [
        (s.token_id, s.pass_index, s.logits_hash) for s in steps
    ]
    assert [s.observed.candidates for s in trace.steps] == [s.observed.candidates for s in steps]


def test_the_head_of_a_canvas_says_how_it_was_revealed():
    head = lines(raw(3))[0]
    assert head["decoder"] == {
        "kind": "denoise", "rule": {"block": 5, "threshold": 0.02}, "attention": "bidirectional",
        "shift": False, "mask_id": MASK, "suffix_ids": [9, 8],
    }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_is_closed(kind):
    line = next(r for r in lines(raw()) if r["kind"] == kind)
    assert VALID.is_valid(line)
    assert not VALID.is_valid(line | {"more": 1})
    for name in line.keys() - {"decoder", "pass_index", "unconstrained_id"}:
        assert not VALID.is_valid({key: line[key] for key in line if key != name})
    if kind == "step":
        assert not VALID.is_valid(line | {"kv_tokens": 1})
        assert not VALID.is_valid({key: line[key] for key in line if key != "pass_index"})


@settings(max_examples=150)
@given(st.data())
def test_whatever_is_in_a_file_is_a_trace_or_an_error(data):
    whole = raw(
        data.draw(st.integers(0, len(RULES) - 1)), data.draw(st.sampled_from(["bidirectional", 4]))
    )
    pieces = st.sampled_from(
        [b"null", b"-1", b"1e999", b'"pass"', b"[]", b"{}", b"0", b"\n", b"7,"]
    )
    refused_or_read(damage(data.draw, whole, pieces))


@settings(max_examples=200)
@given(st.data())
def test_whatever_is_in_a_field_is_a_trace_or_an_error(data):
    records = lines(raw(data.draw(st.integers(0, len(RULES) - 1))))
    place = data.draw(st.sampled_from([r for r in records if r["kind"] in KINDS]))
    put_odd_value(data.draw, place)
    refused_or_read(joined(records))


def refused_or_read(data):
    try:
        trace = Trace.parse(data)
    except FormatError as error:
        assert "\n" not in str(error) and len(str(error)) < 400
    else:
        assert trace.text is not None


def test_a_file_cut_anywhere_is_read_as_far_as_it_goes():
    data = raw(1)
    whole = Trace.parse(data)
    for cut in range(data.index(b"\n") + 1, len(data), 97):
        part = Trace.parse(data[:cut])
        assert part.passes == whole.passes[: len(part.passes)]
        assert part.steps == whole.steps[: len(part.steps)]


def changed(kind, which=0, **fields):
    """The file with other fields in the n-th record of a kind."""
    records = lines(raw())
    [line] = [r for r in records if r["kind"] == kind][which : which + 1]
    for name, value in fields.items():
        place = line["cells"] if name.startswith("cells_") else line
        key = name.removeprefix("cells_")
        place[key] = value(place[key]) if callable(value) else value
    return joined(records)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (lambda: changed("head", decoder=None), "decoder must be absent where there is none"),
        (lambda: changed("head", decoder=lambda d: d | {"kind": "write"}), "decoder kind must be"),
        (lambda: changed("head", decoder=lambda d: d | {"rule": {"order": "up"}}), "is no rule"),
        (
            lambda: changed("head", decoder=lambda d: d | {"rule": {"order": "confidence"}}),
            "must say what differs from a plain rule",
        ),
        (
            lambda: changed("head", decoder=lambda d: d | {"attention": "left"}),
            "attention must be one of",
        ),
        (lambda: changed("head", decoder=lambda d: d | {"suffix_ids": [999]}), "999 is outside"),
        (lambda: changed("pass", 1, index=0), "index is 0, not 1"),
        (lambda: changed("pass", block=[5, 5]), "block must be two positions"),
        (lambda: changed("pass", block=[4, 13]), "block ends behind the canvas"),
        (lambda: changed("head", params={"max_tokens": None}), "how many cells the canvas has"),
        (lambda: changed("head", params={"max_tokens": 2**40}), "how many cells the canvas has"),
        (lambda: changed("pass", block=[1, 11]), "block begins within the prompt"),
        (lambda: changed("pass", block=[4, 6]), "is not in the block"),
        (lambda: changed("pass", masked_again=[12]), "position 12 is not in the block"),
        (lambda: changed("pass", cells_position=lambda p: p[::-1]), "in the order of their"),
        (lambda: changed("pass", cells_position=lambda p: p[1:]), "columns of one length"),
        (lambda: changed("pass", cells_likely=lambda p: [[1], *p[1:]]), "as much of each cell"),
        (lambda: changed("pass", cells_was=lambda was: [5, *was[1:]]), "passes left None"),
        (lambda: changed("pass", cells_now=lambda now: [5] * len(now)), "it cannot leave"),
        (lambda: changed("step", pass_index=99), "pass_index is 99, and no such pass"),
        (lambda: changed("step", pass_index=None), "pass_index must be a whole number"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_cannot_have_been_is_refused(data, sentence):
    with pytest.raises(FormatError, match="line [0-9]+: .*" + sentence):
        Trace.parse(data())


def test_a_step_is_what_the_passes_left():
    records = lines(raw())
    steps = [r for r in records if r["kind"] == "step"]
    steps[0]["candidates"]["id"][0] = steps[0]["token_id"] = steps[1]["token_id"]
    with pytest.raises(FormatError, match="passes left"):
        Trace.parse(joined(records))


def test_a_pass_is_of_a_canvas():
    records = lines(raw())
    records[0] = {k: v for k, v in records[0].items() if k != "decoder"}
    with pytest.raises(FormatError, match="the head has no decoder"):
        Trace.parse(joined(records))


def test_128_cells_take_some_kilobytes_a_pass():
    data = file_of(*events_of(Rule(steps=8), cells=48))
    sizes = [len(line) for line in data.split(b"\n") if b'"kind":"pass"' in line]
    assert max(sizes) < 48 * 200 and sizes[-1] < sizes[0] / 3


# -- what follows from the passes, by hand and by brute force over canvases of the mock --------

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


@pytest.mark.parametrize("start", ["mask", "noise"])
def test_a_history_in_words_speaks_of_its_rule(start, tmp_path, capsys):
    path = tmp_path / "canvas.jsonl"
    rule = replace(RULES[7], start=start, noise="reuse", max_passes=20)
    path.write_bytes(file_of(*events_of(rule, cells=CELLS)))
    moments, text = [], ""
    for cell in range(CELLS):
        moments += cell_life(Trace.read(path), cell)
        assert main(["trace", "why", str(path), str(cell + 1)]) == 0
        text += capsys.readouterr().out
    kept = [moment for moment in moments if moment.now is not None and not moment.event]
    assert len(kept) == len(re.findall("kept$", text, re.MULTILINE)) > 0
    assert "missed by -" not in text
    assert "(remask edit)" not in text
    assert "(remask unchosen)" in text
    assert ("made way for the mask" in text) == ("No masked cell was left" in text)
    assert ("made way for the mask" in text) == (start == "mask")
    assert ("made way for noise" in text) == ("No noise was left" in text) == (start == "noise")


def test_only_the_last_pass_over_a_block_leaves_what_was_not_drawn():
    records = lines(raw(7))
    passes = [record for record in records if record["kind"] == "pass"]
    first, second = (record["cells"] for record in passes[:2])
    token = next(t for t in first["token_id"] if t not in (first["token_id"][0], MASK))
    first["now"][0] = token
    second["was"][0] = token
    second["now"][0] = token
    with pytest.raises(FormatError, match="only a block's last pass leaves a token"):
        Trace.parse(joined(records))


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
    with pytest.raises(InputError, match="cell must be one that a pass looked at"):
        cell_life(TRACES[0], 8)
