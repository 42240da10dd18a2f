"""The trace of a canvas: its passes as they were made, and nothing that cannot have been."""

import json
from dataclasses import replace
from functools import cache
from importlib.resources import files

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from cutaway.engine import Pass
from cutaway.engine.canvas import Rule
from cutaway.errors import FormatError
from cutaway.trace import Trace
from support.canvas_traces import MASK, RULES, events_of, file_of
from support.damage import damage, put_odd_value

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
        (lambda: changed("pass", 1, index=0), "index is 0, and the next pass is 1"),
        (lambda: changed("pass", block=[5, 5]), "block must be two positions"),
        (lambda: changed("pass", block=[4, 13]), "block ends behind the canvas"),
        (lambda: changed("head", params={"max_tokens": None}), "how many cells the canvas has"),
        (lambda: changed("head", params={"max_tokens": 2**40}), "how many cells the canvas has"),
        (lambda: changed("pass", block=[1, 11]), "block begins within the prompt"),
        (lambda: changed("pass", block=[4, 6]), "is not in the block"),
        (lambda: changed("pass", masked_again=[12]), "cell 12 is not in the block"),
        (lambda: changed("pass", cells_position=lambda p: p[::-1]), "in the order of their"),
        (lambda: changed("pass", cells_position=lambda p: p[1:]), "columns of one length"),
        (lambda: changed("pass", cells_likely=lambda p: [[1], *p[1:]]), "as much of each cell"),
        (lambda: changed("pass", cells_was=lambda was: [5, *was[1:]]), "passes left None"),
        (lambda: changed("pass", cells_now=lambda now: [5] * len(now)), "it cannot leave"),
        (lambda: changed("step", pass_index=99), "there is no pass 99 before it"),
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
