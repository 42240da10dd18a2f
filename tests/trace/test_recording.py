"""Traces of real runs of a tiny model: what they say, and each line against the schema."""

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from cutaway import LLM
from cutaway.engine.interventions import add
from cutaway.errors import CutawayError, InputError
from cutaway.rerun import replay
from cutaway.trace import Trace, diff_texts, why
from cutaway.trace.steps import step_to_json
from cutaway.trace.write import numbered_path
from support.made_traces import records
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
    traces = [Trace.read(numbered_path(path, i)) for i in range(1, 5)]
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
