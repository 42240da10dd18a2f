"""A run under a grammar, run again: the same bits, the grammar compiled anew."""

import json
from dataclasses import replace

import pytest

from cutaway import FormatError, InputError
from cutaway.engine.events import neg_log_z
from cutaway.rerun import branch, replay, rescore
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
    with pytest.raises(InputError, match=f"does not allow token {removed} .* at step {at}: give"):
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
