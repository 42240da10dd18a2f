"""Traces of real runs of a tiny model: what they say, and each line against the schema."""

import json
import os
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from cutaway import LLM
from cutaway.engine.interventions import add
from cutaway.errors import CutawayError, InputError
from cutaway.rerun import replay
from cutaway.trace import Token, Trace, TraceBuffer, TraceWriter, diff_texts, why
from cutaway.trace.steps import step_to_json
from cutaway.trace.write import numbered, token_line
from support.made_traces import HEADS, TEXTS, records, runs, tell, write
from support.random_llama import write_tiny_llama

SCHEMA = json.loads(files("cutaway.trace").joinpath("schema.json").read_text())
VALID = Draft202012Validator(SCHEMA)


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    path = write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
    return LLM(path, progress=False)


@pytest.fixture
def recorded(llm, tmp_path):
    """Generate with these settings; the completion and its trace, of which every line is valid."""

    def run(prompt="ab", **options):
        path = tmp_path / "run.jsonl"
        done = llm.generate(prompt, trace=path, **{"seed": 1, "max_tokens": 6} | options)
        for line in records(path):
            VALID.validate(line)
        return done, Trace.read(path)

    return run


SETTINGS = [
    {},
    {"temperature": 0},
    {"temperature": 1.3, "top_k": 7, "top_p": 0.8, "min_p": 0.01},
    {"preset": "hf", "top_k": 40, "repetition_penalty": 1.2, "presence_penalty": 0.5},
    {"preset": "llama.cpp", "frequency_penalty": -0.3, "min_p": 0.1},
    {"logit_bias": {5: 30.0, 6: -100.0}, "stop_token_ids": [5]},
    {"stop": ["a", "b", "c"], "max_tokens": 60},
    {"ignore_eos": True, "candidates": 1, "track": (7, 7, 2)},
    {"candidates": 1000, "logprobs": 3, "prompt_logprobs": 2, "ledger": True},
    {"forced": [3, 70, 80], "speculate": "ngram", "max_tokens": 30, "temperature": 0},
    {"kv_cache": False, "priority": -3},
    {"processors": [lambda ids, logits: np.where(np.arange(264) % 2, logits, -np.inf)]},
    {"max_tokens": 1000},
    {"interventions": ["L1.H2 x 0", "knock_out 1", add("L0", np.ones(32), 0.1, positions="0-4,9")]},
]


def test_the_head_has_the_sizes_of_the_model(llm, recorded):
    _, trace = recorded()
    config, sizes = llm.config, trace.head.sizes
    assert (sizes.layers, sizes.heads, sizes.kv_heads) == (
        config.layers, config.heads, config.kv_heads,
    )  # fmt: skip
    assert sizes.hidden == config.hidden
    up = llm.graph.shapes["blk.0.ffn_up.weight"]
    assert sizes.mlp == max(up) != sizes.hidden
    assert sizes.experts == sizes.experts_used == 0


def test_a_trace_without_sizes_is_read_and_is_no_other(recorded, tmp_path):
    _, trace = recorded()
    head, *rest = records(tmp_path / "run.jsonl")
    del head["sizes"]
    VALID.validate(head)
    older = Trace.parse("".join(json.dumps(line) + "\n" for line in (head, *rest)).encode())
    assert older.head.sizes is None
    assert not diff_texts(trace, older).changes


@pytest.mark.parametrize("options", SETTINGS, ids=lambda options: ",".join(options) or "default")
def test_a_trace_says_what_the_completion_says(recorded, options):
    done, trace = recorded(**options)
    assert [*map(step_to_json, trace.steps)] == [*map(step_to_json, done.steps)]
    assert [s.survivors for s in trace.steps] == [s.survivors for s in done.steps]
    assert trace.output_token_ids == done.token_ids
    assert trace.text == done.text
    assert (trace.head.prompt, trace.head.prompt_token_ids) == ("ab", done.prompt_token_ids)
    assert list(trace.head.chain) == list(done.chain)
    assert trace.head.seed == done.seed
    named = {**trace.head.params}
    assert named.items() <= json.loads(json.dumps(done.params)).items() or options
    assert trace.end.reason == done.finish_reason
    assert trace.end.matched == done.matched
    assert trace.end.fingerprint == done.fingerprint
    assert done.fingerprint == f"{trace.steps[-1].fingerprint:016x}"
    assert trace.end.usage["completion_tokens"] == len(trace.steps)
    assert {*trace.head.end_ids} <= {*trace.head.tracked_ids}


def test_forced_tokens_and_what_would_have_been(recorded):
    free, forced = [3, 70, 80], recorded(forced=[3, 70, 80], temperature=0)[1]
    assert [step.token_id for step in forced.steps[:3]] == free
    assert [step.source for step in forced.steps[:4]] == ["forced"] * 3 + ["greedy"]
    assert all(step.sampled_id == step.observed.candidates[0].id for step in forced.steps)
    assert len(forced.steps) == 6


def test_ids_as_prompt_have_no_text(recorded):
    assert recorded(prompt=[1, 70])[1].head.prompt is None


def test_several_samples_and_prompts(llm, tmp_path):
    path = tmp_path / "run.jsonl.gz"
    done = llm.generate(["ab", "ba"], n=2, trace=path, max_tokens=3, seed=5)
    traces = [Trace.read(numbered(path, i)) for i in range(1, 5)]
    for answer, trace in zip([s for samples in done for s in samples], traces, strict=True):
        assert trace.output_token_ids == answer.token_ids
        assert trace.head.seed == answer.seed


def test_closing_early_is_on_record(llm, tmp_path):
    with llm.stream("ab", trace=tmp_path / "t", stop=["never there"], max_tokens=50) as stream:
        next(stream)
        next(stream)
    trace = Trace.read(tmp_path / "t")
    assert (trace.end.reason, len(trace.steps)) == ("aborted", 2)
    assert trace.text == stream.completion().text


def test_a_dropped_stream_leaves_a_file_without_an_end(llm, tmp_path):
    stream = llm.stream("ab", trace=tmp_path / "t", max_tokens=50)
    next(stream)
    del stream
    trace = Trace.read(tmp_path / "t")
    assert len(trace.steps) == 1


def test_an_error_is_on_record(llm, tmp_path):
    def fails(ids, logits):
        if len(ids) == before + 2:
            raise ArithmeticError("no more")
        return logits

    before = len(llm.tokenize("ab"))
    with pytest.raises(ArithmeticError):
        llm.generate("ab", trace=tmp_path / "t", processors=[fails], max_tokens=9)
    trace = Trace.read(tmp_path / "t")
    assert (trace.end.reason, trace.end.error, len(trace.steps)) == ("error", "no more", 2)


def test_a_disk_that_fills_up_ends_that_text_alone(llm, tmp_path, monkeypatch):
    from cutaway.trace import TraceWriter

    write = TraceWriter._put

    def full(self, data):
        if self.path.name == "run.2" and b'"index":3' in bytes(data):
            raise CutawayError("trace: the disk is full")
        write(self, data)

    monkeypatch.setattr(TraceWriter, "_put", full)
    options = {"max_tokens": 6, "seed": 1, "ignore_eos": True}
    streams = llm.streams("ab", n=2, trace=tmp_path / "run", **options)
    assert len(streams[0].finish().steps) == 6
    with pytest.raises(CutawayError, match="the disk is full"):
        streams[1].finish()
    assert len(Trace.read(tmp_path / "run").steps) == 6
    assert len(Trace.read(tmp_path / "run.2").steps) == 3


def test_what_is_refused_begins_no_file(llm, tmp_path):
    (tmp_path / "run.2").write_text("mine")
    for options in (
        {"n": 2}, {"candidates": 0}, {"track": [10**6]}, {"max_tokens": 0}, {"top_p": 2},
    ):  # fmt: skip
        with pytest.raises(InputError):
            llm.generate("ab", trace=tmp_path / "run", **options)
    with pytest.raises(InputError, match="trace: name a file of its own"):
        llm.generate_each(["ab"], trace=tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["run.2"]


def test_many_requests_each_with_a_trace(llm, tmp_path):
    requests = [("ab", {"trace": tmp_path / f"{i}", "seed": i, "max_tokens": 3}) for i in range(5)]
    done = dict(llm.generate_each(requests))
    for i in range(5):
        assert Trace.read(tmp_path / f"{i}").output_token_ids == done[i].token_ids


@pytest.mark.parametrize("options", [{}, {"temperature": 1.5, "top_p": 1}, {"temperature": 0}])
def test_a_trace_changes_no_bit(llm, recorded, options):
    done, _ = recorded(prompt=[1, 70], **options)
    bare = llm.generate([1, 70], seed=1, max_tokens=6, **options)
    assert (bare.token_ids, bare.fingerprint) == (done.token_ids, done.fingerprint)


@pytest.mark.parametrize("kind", ["head", "tok", "step", "end"])
def test_the_schema_is_closed(recorded, kind, tmp_path):
    """A record with a field more, or one less, is none."""
    recorded()
    line = next(r for r in records(tmp_path / "run.jsonl") if r["kind"] == kind)
    assert VALID.is_valid(line)
    assert not VALID.is_valid(line | {"more": 1})
    for name in line.keys() - {"name", "sizes"}:
        assert not VALID.is_valid({key: line[key] for key in line if key != name})


def test_the_schema_knows_the_time_of_a_draft_model(recorded, tmp_path):
    recorded()
    line = next(r for r in records(tmp_path / "run.jsonl") if r["kind"] == "step")
    assert "draft" not in line["ms"]
    assert VALID.is_valid(line | {"ms": line["ms"] | {"draft": 1.5}})
    assert not VALID.is_valid(line | {"ms": line["ms"] | {"draught": 1.5}})


def test_the_schema_names_what_the_reader_knows():
    from cutaway.trace import record, steps

    definitions = SCHEMA["$defs"]
    assert tuple(definitions["step"]["properties"]["source"]["enum"]) == steps.SOURCES
    assert tuple(definitions["end"]["properties"]["reason"]["enum"]) == record.REASONS
    own = {"kind", "format", "version"}
    tables = {
        "head": record._HEAD, "step": steps._STEP, "end": record._END, "pass": steps._PASS,
        "cells": steps._CELL,
    }  # fmt: skip
    for name, checks in tables.items():
        assert definitions[name]["properties"].keys() - own == checks.keys()
    rule = definitions["head"]["properties"]["decoder"]["properties"]
    assert rule.keys() - own == record.DECODER_CHECKS.keys()


def test_the_page_names_every_field():
    page = (Path(__file__).parents[2] / "docs" / "trace.md").read_text()
    for kind in ("head", "tok", "pass", "step", "end"):
        section = page.split(f"\n## {kind}\n")[1].split("\n## ")[0]
        definition = SCHEMA["$defs"][kind]["properties"]
        names = definition.keys() - {"kind"}
        if kind == "pass":
            names |= SCHEMA["$defs"]["cells"]["properties"].keys()
        if kind == "step":
            names |= SCHEMA["$defs"]["stage"]["properties"].keys()
            names |= SCHEMA["$defs"]["candidates"]["properties"].keys()
        assert not [name for name in names if f"`{name}`" not in section]


CONSTRAINTS = [{"min_tokens": 3}, {"bad_words": ["a"]}, {"allowed_token_ids": [5, 6, 7]}]


@pytest.mark.parametrize("options", CONSTRAINTS, ids=",".join)
def test_a_constraint_is_a_stage_on_record(recorded, llm, options):
    done, trace = recorded(**options)
    assert "constraint" in [stage["stage"] for stage in trace.head.chain]
    assert [*map(step_to_json, trace.steps)] == [*map(step_to_json, done.steps)]
    assert replay(llm, trace).same


def test_a_prompt_that_is_scored_has_a_trace_that_says_so(recorded):
    done, trace = recorded(max_tokens=0, prompt_logprobs=1)
    assert (done.finish_reason, trace.end.reason, trace.steps) == ("scored", "scored", ())
    assert "nothing was to be written" in why(trace).sentence


# -- trace writer ----------------------------------------------------------------------------------

# The writer: readable after every step, nothing overwritten, nothing after a line that was cut.


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(run=runs(), ending=st.sampled_from(["", ".gz"]))
def test_the_file_can_be_read_after_every_step(run, ending, tmp_path):
    head, steps, _ = run
    path = tmp_path / f"t{ending}"
    path.unlink(missing_ok=True)
    with TraceWriter(path, head, tell) as writer:
        for count, step in enumerate(steps):
            assert len(Trace.read(path).steps) == count
            writer.add(step)
        assert len(Trace.read(path).steps) == len(steps)
        assert not writer.closed
    assert writer.closed
    assert Trace.read(path).end is None


@pytest.fixture(scope="module")
def run():
    return some(runs().filter(lambda run: len(run[1]) > 1 and run[2]))


@pytest.fixture(scope="module")
def head(run):
    return run[0]


def some(strategy):
    """The same one every time."""
    found = []

    @settings(max_examples=20, derandomize=True, database=None)
    @given(strategy)
    def take(value):
        found.append(value)

    take()
    return found[-1]


def test_a_file_that_is_not_empty_is_left_alone(head, tmp_path):
    path = tmp_path / "t"
    path.write_bytes(b"mine")
    with pytest.raises(InputError, match="exists already; name another file, or remove it"):
        TraceWriter(path, head, tell)
    assert path.read_bytes() == b"mine"


def test_an_empty_file_may_be_written_to(head, tmp_path):
    path = tmp_path / "t"
    path.touch()
    TraceWriter(path, head, tell).close()
    assert Trace.read(path).head == head


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", "trace must be the name of a file, not ''"),
        (b"t", "trace must be the name of a file, not b't'"),
        (7, "trace must be the name of a file, not 7"),
        (".", "is a folder; name a file in it"),
        ("no/such/t", "no file can be made in no/such"),
        ("a\0b", "cannot be written"),
    ],
)
def test_names_that_cannot_be_written_to(name, sentence, head, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=sentence):
        TraceWriter(name, head, tell)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full")
@pytest.mark.parametrize("name", ["/dev/full", "full.gz"])
def test_a_full_disk_is_said_and_ends_the_trace(name, head, tmp_path):
    path = tmp_path / name
    if not path.exists():
        path.symlink_to("/dev/full")
    with pytest.raises(CutawayError, match=r"cannot be written: No space left"):
        TraceWriter(path, head, tell)


def test_nothing_follows_a_line_that_was_cut(run, tmp_path, monkeypatch):
    """As when Ctrl-C comes between the halves of a write."""
    head, steps, end = run
    path, really = tmp_path / "t", os.write
    writer = TraceWriter(path, head, tell)

    def half(file, data):
        really(file, bytes(data[: len(data) // 2]))
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(KeyboardInterrupt):
        writer.add(steps[0])
    monkeypatch.undo()
    cut = path.read_bytes()
    writer.add(steps[1])
    writer.end(end)
    assert path.read_bytes() == cut
    assert Trace.read(path).steps == ()


def test_a_short_write_is_continued(run, tmp_path, monkeypatch):
    really = os.write
    write(tmp_path / "whole", run)
    monkeypatch.setattr(os, "write", lambda file, data: really(file, bytes(data[:7])))
    write(tmp_path / "parts", run)
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()


def test_what_json_cannot_say_is_an_error_and_nothing_is_written(run, tmp_path):
    head, (step, *_), _ = run
    with TraceWriter(tmp_path / "t", head, tell) as writer:
        wrong = step._replace(observed=step.observed._replace(entropy=float("nan")))
        with pytest.raises(CutawayError, match="not finite"):
            writer.add(wrong)
    assert Trace.read(tmp_path / "t").steps == ()


def test_a_step_without_an_observation_is_an_error(run, tmp_path):
    head, (step, *_), _ = run
    with TraceWriter(tmp_path / "t", head, tell) as writer, pytest.raises(ValueError, match="obs"):
        writer.add(step._replace(observed=None))


def test_a_trace_in_memory_is_written_where_it_is_taken(run):
    """On a server's event loop, where steps arrive, it took a second."""
    head, steps, end = run
    asked = []
    buffer = TraceBuffer(head, lambda token_id: asked.append(token_id) or tell(token_id))
    for step in steps:
        buffer.add(step)
    assert not asked
    records = buffer.take()
    assert asked and [each["index"] for each in records if each["kind"] == "step"] == [
        step.index for step in steps
    ]
    buffer.end(end)
    assert buffer.take() == [end.to_json()] and buffer.take() == []


@given(HEADS)
def test_a_token_has_one_line_before_its_use(head):
    asked = []
    reader, sink = os.pipe()
    try:
        TraceWriter(f"/dev/fd/{sink}", head, lambda i: asked.append(i) or tell(i)).close()
        told = os.read(reader, 2**16).count(b'"kind":"tok"')
    finally:
        os.close(reader)
        os.close(sink)
    assert sorted({*head.prompt_token_ids, *head.tracked_ids, *head.end_ids}) == sorted(asked)
    assert told == len(asked)


TOKENS = st.builds(
    Token, st.integers(0, 2**40), st.binary() | TEXTS.map(str.encode),
    st.none() | TEXTS.filter(bool),
)  # fmt: skip


@given(TOKENS)
def test_a_tokens_line_is_its_record(token):
    line = token_line(token)
    form = json.dumps(token.to_json(), ensure_ascii=False, separators=(",", ":"))
    assert line == f"{form}\n".encode()
    assert Token.from_json(json.loads(line)) == token


@pytest.mark.parametrize(
    ("path", "second"),
    [
        ("run.jsonl", "run.2.jsonl"),
        ("a.b/run.jsonl.gz", "a.b/run.2.jsonl.gz"),
        ("run", "run.2"),
        ("run.gz", "run.2.gz"),
        ("a.b/run", "a.b/run.2"),
        ("run.v1.jsonl", "run.v1.2.jsonl"),
    ],
)
def test_the_names_of_several_texts(path, second):
    assert str(numbered(path, 1)) == path
    assert str(numbered(path, 2)) == second
