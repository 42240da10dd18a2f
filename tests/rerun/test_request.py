"""Runs with a grammar, with a chain of their own, with interventions: recorded and run again."""

import json
from dataclasses import replace

import numpy as np
import pytest

from cutaway import LLM, CutawayError, FormatError, InputError
from cutaway.engine.events import neg_log_z
from cutaway.engine.interventions import add, bind, knock_out, scale
from cutaway.features.experiments.snowball import snowball
from cutaway.rerun import (
    branch,
    diff_models,
    logits,
    open_branch,
    replay,
    rescore,
)
from cutaway.sampling.observe import row_hash
from cutaway.text.grammar.compiler import engine
from cutaway.trace import Trace, diff_texts, why
from support.made_traces import records

REGEX = "(ab|b)( a[0-9]?){2,9}!"
WAYS = [{}, {"speculate": "ngram"}, {"kv_cache": False}]


@pytest.fixture(scope="module")
def trace(tiny, folder):
    path = folder / "held.jsonl"
    tiny.generate("ab", seed=5, temperature=1, regex=REGEX, max_tokens=40, trace=path, candidates=3)
    return Trace.read(path)


def test_the_head_has_the_grammar(trace, tiny):
    head = trace.head.grammar
    assert (head.kind, head.text, head.engine, head.compact) == ("regex", REGEX, engine(), False)
    tiny.generate("ab", seed=5, max_tokens=2, trace=trace.path.with_name("free.jsonl"))
    assert "grammar" not in records(trace.path.with_name("free.jsonl"))[0]


def test_a_step_says_what_was_wanted(trace, tiny):
    ids = trace.output_token_ids
    free = tiny.generate(
        "ab", seed=5, temperature=1, forced=ids, max_tokens=len(ids), ignore_eos=True
    )
    assert [s.unconstrained_id for s in trace.steps] == [s.sampled_id for s in free.steps]
    assert any(step.unconstrained_id != step.token_id for step in trace.steps)


@pytest.mark.parametrize("how", WAYS)
def test_it_replays_to_the_bit(trace, tiny, how):
    done = replay(tiny, trace, **how)
    assert done.same
    assert done.disagreements == ()


def test_another_version_of_the_library_is_reported_and_not_refused(trace, tiny):
    head = replace(trace.head, grammar=replace(trace.head.grammar, engine="llguidance 1.0.0"))
    done = replay(tiny, replace(trace, head=head))
    assert done.same
    (one,) = done.disagreements
    assert str(one) == f"grammar engine: llguidance 1.0.0 on record, {engine()} now"


def test_another_grammar_is_refused(trace, tiny):
    """The text of the setting, which is what a replay runs, is not that of the record."""
    other = replace(trace, head=replace(trace.head, params={**trace.head.params, "regex": "[ab]+"}))
    with pytest.raises(InputError, match=r"grammar: \w{12}… on record, \w{12}… now"):
        replay(tiny, other)


def test_a_grammar_that_is_not_its_hash_is_no_trace(trace):
    head, *rest = records(trace.path)
    head["grammar"]["text"] += " "
    raw = b"".join(json.dumps(record).encode() + b"\n" for record in [head, *rest])
    with pytest.raises(FormatError, match="line 1: grammar sha256 is not that of its text"):
        Trace.parse(raw)


def test_it_is_rescored_under_its_grammar_and_without(trace, tiny, other):
    again = rescore(tiny, trace)
    assert again.old == again.new
    assert neg_log_z(again.completion.steps) is None  # nothing of it was drawn
    free = rescore(other, trace, regex=None)
    assert free.completion.token_ids == trace.output_token_ids
    with pytest.raises(InputError, match="forced: the grammar does not allow token"):
        rescore(tiny, trace, regex="[ab]+")


def test_a_branch_stays_in_the_grammar(trace, tiny):
    at = next(i for i, step in enumerate(trace.steps) if step.observed.stages[0].survivors > 1)
    stages = trace.steps[at].observed
    allowed = [c.id for c in stages.candidates if c.removed_by != 0]
    done = branch(tiny, trace, at, allowed[-1])
    assert done.token_ids[: at + 1] == (*trace.output_token_ids[:at], allowed[-1])
    assert done.finish_reason in ("constraint", "max_tokens", "end_token")
    removed = stages.stages[0].top_removed[0]
    with pytest.raises(
        InputError, match=f"does not allow token {removed} .* at step {at + 1}: give"
    ):
        branch(tiny, trace, at, removed)


def test_a_diff_names_the_setting_and_the_version(trace):
    head = replace(
        trace.head,
        grammar=replace(trace.head.grammar, engine="llguidance 1.0.0"),
        params={**trace.head.params, "regex": "a"},
    )
    changes = diff_texts(trace, replace(trace, head=head)).changes
    assert [(c.name, c.a, c.b) for c in changes] == [
        ("grammar engine", engine(), "llguidance 1.0.0"),
        ("regex", REGEX, "a"),
    ]


def test_why_knows_the_end(trace):
    assert why(trace).reason == "constraint"
    assert "allows nothing but the end" in why(trace).sentence


# -- a chain of their own, XTC and DRY; the same with drafts -----------------------------------

CHAIN = ["dry", "min_p", "typical", "temperature", "xtc"]
GIVEN = {
    "chain": CHAIN, "dry_multiplier": 0.8, "dry_allowed_length": 1, "min_p": 0.001,
    "typical_p": 0.95, "temperature": 1.3, "xtc_probability": 0.5, "xtc_threshold": 0.01,
    "seed": 5, "max_tokens": 40, "ignore_eos": True,
}  # fmt: skip


def test_a_chain_is_recorded_and_replayed(tiny, tmp_path):
    path = tmp_path / "run.jsonl"
    done = tiny.generate("abab", **GIVEN, trace=path)
    trace = Trace.read(path)
    assert [stage["stage"] for stage in trace.head.chain] == CHAIN
    assert [stage["stage"] for stage in done.chain] == CHAIN
    assert trace.head.params["chain"] == CHAIN
    assert "breakers" not in trace.head.chain[0]
    replayed = replay(tiny, trace)
    assert replayed.same
    assert replayed.fingerprint == done.fingerprint


@pytest.mark.parametrize("speculate", ["ngram"])
def test_drafts_change_no_token(tiny, speculate):
    plain = tiny.generate("abab" * 8, **GIVEN)
    drafted = tiny.generate("abab" * 8, **GIVEN, speculate=speculate)
    assert (drafted.token_ids, drafted.fingerprint) == (plain.token_ids, plain.fingerprint)


def test_breakers_are_texts_or_ids(tiny):
    parsed = tiny.parse_options(
        {"dry_multiplier": 1, "dry_breakers": ["a", 3]}
    ).sampling.dry_breakers
    assert 3 in parsed
    named = [i for i in parsed if i != 3]
    assert named == [i for i in range(264) if b"a" in tiny.tokenizer.token_bytes(i)]
    assert tiny.parse_options({}).sampling.dry_breakers == ()
    assert tiny.parse_options({"dry_multiplier": 1}).sampling.dry_breakers  # newline, colon, …
    with pytest.raises(InputError, match="dry_breakers: an empty string"):
        tiny.parse_options({"dry_multiplier": 1, "dry_breakers": [""]})
    with pytest.raises(InputError, match="dry_breakers must be token ids"):
        tiny.parse_options({"dry_breakers": "abc"})


@pytest.mark.parametrize("words", [["a"], ["ab", "b "], ["é", "\n", ":"], ["aaa", "aa", "zzzz"]])
def test_breakers_are_the_tokens_that_contain_a_text(words):
    llm = LLM("toy-writer", progress=False)
    token_bytes = llm.tokenizer.token_bytes
    found = llm.parse_options({"dry_breakers": words}).sampling.dry_breakers
    wanted = [word.encode() for word in words]
    ids = range(llm.tokenizer.vocab_size)
    assert list(found) == [i for i in ids if any(word in token_bytes(i) for word in wanted)]


def test_breakers_are_limited_and_looked_for_at_once(tiny, monkeypatch):
    many = [chr(256 + i) for i in range(1700)]
    with pytest.raises(InputError, match="dry_breakers have 10000 bytes; at most 4096 in all"):
        tiny.parse_options({"dry_breakers": [f"{i:05}" for i in range(2000)]})
    tiny.parse_options({"dry_breakers": many})
    asked = []
    monkeypatch.setattr(type(tiny.tokenizer), "token_bytes", lambda self, i: asked.append(i))
    tiny.parse_options({"dry_breakers": many})
    tiny.parse_options({"dry_breakers": many[1:]})
    assert not asked, "the vocabulary is read once"


# -- interventions: replayed, forked, compared, and their rows computed again ------------------

VECTOR = np.random.default_rng(0).normal(size=32)
INTERVENTIONS = [
    [scale("L0.H1", 0)],
    ["knock_out 1", add("L0", VECTOR, 0.5, positions="0-8")],
    [scale("L1.mlp", 2, from_step=3), knock_out("2", from_step=6)],
]
HOW = {"seed": 4, "max_tokens": 12, "ignore_eos": True, "temperature": 0.9}


@pytest.fixture
def recorded(tiny, tmp_path):
    def run(interventions, name="run.jsonl", **how):
        tiny.generate("ab ba", interventions=interventions, trace=tmp_path / name, **HOW | how)
        return Trace.read(tmp_path / name)

    return run


@pytest.mark.parametrize("interventions", INTERVENTIONS)
@pytest.mark.parametrize("speculate", ["off", "ngram"])
def test_a_changed_run_is_replayed_to_the_bit(tiny, recorded, interventions, speculate):
    trace = recorded(interventions)
    assert [str(one) for one in trace.head.interventions] == [str(one) for one in interventions]
    found = replay(tiny, trace, speculate=speculate)
    assert found.same and found.disagreements == ()
    rows = logits(tiny, trace)
    assert [row_hash(row) for row in rows] == [step.logits_hash for step in trace.steps]
    again = rescore(tiny, trace)
    assert [r.bits for r in again.old] == [r.bits for r in again.new]


@pytest.mark.parametrize(
    "how", [{"heal": True}, {"n": 2}, {"regex": "[ab ]{9}", "ignore_eos": False}, {"min_tokens": 9}]
)
def test_with_other_settings(tiny, recorded, how):
    trace = recorded([scale("L0.H1", 0.5, from_step=2), "knock_out 1 from 1"], **how)
    assert replay(tiny, trace).same
    rows = logits(tiny, trace)
    assert [row_hash(row) for row in rows] == [step.logits_hash for step in trace.steps]


def test_without_its_changes_it_is_another_run(tiny, recorded):
    trace = recorded(INTERVENTIONS[0])
    plain = replace(trace, head=replace(trace.head, interventions=()))
    assert not replay(tiny, plain).same
    with pytest.raises(CutawayError, match="not those on record"):
        logits(tiny, plain)


@pytest.mark.parametrize("at", [0, 3, 11])
def test_a_fork_by_changes_begins_at_its_step(tiny, recorded, tmp_path, at):
    trace, path = recorded([]), tmp_path / "fork.jsonl"
    done = branch(tiny, trace, at, interventions=["L0.H1 x 0", scale("L1", 2)], trace=path)
    fork, found = Trace.read(path), diff_texts(trace, Trace.read(path))
    rows = [(a.logits_hash, b.logits_hash) for a, b in zip(trace.steps, fork.steps, strict=False)]
    assert [a == b for a, b in rows[: at + 1]] == [True] * at + [False]
    assert fork.head.parent.token_id is None and fork.head.parent.step == at
    assert [one.from_step for one in fork.head.interventions] == [at, at]
    assert done.token_ids[:at] == trace.output_token_ids[:at]
    assert [step.source for step in fork.steps[: at + 1]] == ["forced"] * at + ["sampled"]
    assert replay(tiny, fork).same
    assert found.is_fork and found.logits_differ_at in (at, None)
    [cause] = [change for change in found.changes if change.name == "interventions"]
    assert (cause.a, cause.b) == (None, f"L0.H1 x 0 from {at}; L1 x 2 from {at}")


def test_a_fork_keeps_the_changes_that_were_there(tiny, recorded, tmp_path):
    trace = recorded(INTERVENTIONS[2])
    branch(tiny, trace, 4, 261, interventions=["L0.attn x 0 from 7"], trace=tmp_path / "fork.jsonl")
    fork = Trace.read(tmp_path / "fork.jsonl")
    assert fork.head.interventions == (*trace.head.interventions, scale("L0.attn", 0, from_step=7))
    assert fork.output_token_ids[:5] == (*trace.output_token_ids[:4], 261)
    assert fork.steps[4].logits_hash == trace.steps[4].logits_hash
    assert replay(tiny, fork).same


def test_a_fork_by_nothing_is_the_run(tiny, recorded):
    trace = recorded([])
    same = branch(tiny, trace, 5, interventions=["L0 x 1"])
    assert same.fingerprint == f"{trace.steps[-1].fingerprint:016x}"


@pytest.mark.parametrize(
    ("more", "sentence"),
    [({}, "needs a token, or interventions"),
     ({"interventions": ["L0"]}, "interventions\\[0\\]: write"),
     ({"interventions": ["L7 x 0"]}, "no L7"), ({"interventions": "L0 x 0"}, "must be a list")],
)  # fmt: skip
def test_what_cannot_be_is_refused(tiny, recorded, more, sentence):
    with pytest.raises(InputError, match=sentence):
        open_branch(tiny, recorded([]), 2, **more)


def test_a_snowball_measures_with_the_changes_that_it_writes_with(tiny):
    made = snowball(tiny, [1, 5, 9], at=[2], max_tokens=8, interventions=["L0 x 2"], seed=3)
    plain = snowball(tiny, [1, 5, 9], at=[2], max_tokens=8, seed=3)
    [fork] = made.forks
    ids = [1, 5, 9, *made.original.token_ids]
    row = tiny.logits(ids, 4, bind([scale("L0", 2)], tiny.graph, 3))[0].astype(float)
    logprob = row[made.original.token_ids[2]] - np.log(np.exp(row - row.max()).sum()) - row.max()
    assert fork.instead_bits == pytest.approx(-logprob / np.log(2), rel=1e-6)
    assert fork.instead_bits != plain.forks[0].instead_bits


def test_curves_of_a_changed_run_and_its_fork(tiny, recorded, tmp_path):
    trace = recorded(INTERVENTIONS[0])
    branch(tiny, trace, 3, 261, trace=tmp_path / "fork.jsonl")
    found = diff_models(tiny, trace, Trace.read(tmp_path / "fork.jsonl"))
    bits = -trace.steps[3].logprob / np.log(2)
    assert found.at == 3 and found.instead_bits == pytest.approx(bits, rel=1e-6)
