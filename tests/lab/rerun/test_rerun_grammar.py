"""A run under a grammar, run again: the same bits, the grammar compiled anew."""

import json
from dataclasses import replace

import pytest

from cutaway import FormatError, InputError
from cutaway.engine.events import neg_log_z
from cutaway.lab.rerun import branch, replay, rescore
from cutaway.text.grammar.compiler import engine
from cutaway.trace import Trace, diff_texts, why
from support.made_traces import records

REGEX = "(ab|b)( a[0-9]?){2,9}!"
WAYS = [{}, {"speculate": "ngram"}, {"kv_cache": False}]


@pytest.fixture(scope="module")
def held(tiny, folder):
    path = folder / "held.jsonl"
    tiny.generate("ab", seed=5, temperature=1, regex=REGEX, max_tokens=40, trace=path, candidates=3)
    return Trace.read(path)


def test_the_head_says_what_the_text_was_held_to(held, tiny):
    head = held.head.grammar
    assert (head.kind, head.text, head.engine, head.compact) == ("regex", REGEX, engine(), False)
    tiny.generate("ab", seed=5, max_tokens=2, trace=held.path.with_name("free.jsonl"))
    assert "grammar" not in records(held.path.with_name("free.jsonl"))[0]


def test_a_step_says_what_was_wanted(held, tiny):
    ids = held.output_token_ids
    free = tiny.generate(
        "ab", seed=5, temperature=1, forced=ids, max_tokens=len(ids), ignore_eos=True
    )
    assert [s.unconstrained_id for s in held.steps] == [s.sampled_id for s in free.steps]
    assert any(step.unconstrained_id != step.token_id for step in held.steps)


@pytest.mark.parametrize("how", WAYS)
def test_it_replays_to_the_bit(held, tiny, how):
    done = replay(tiny, held, **how)
    assert done.same
    assert done.disagreements == ()


def test_another_version_of_the_library_is_told_and_not_refused(held, tiny):
    head = replace(held.head, grammar=replace(held.head.grammar, engine="llguidance 1.0.0"))
    done = replay(tiny, replace(held, head=head))
    assert done.same
    (told,) = done.disagreements
    assert str(told) == f"grammar engine: llguidance 1.0.0 on record, {engine()} now"


def test_another_grammar_is_refused(held, tiny):
    """The text of the setting, which is what a replay runs, is not that of the record."""
    other = replace(held, head=replace(held.head, params={**held.head.params, "regex": "[ab]+"}))
    with pytest.raises(InputError, match=r"grammar: \w{12}… on record, \w{12}… now"):
        replay(tiny, other)


def test_a_grammar_that_is_not_its_hash_is_no_trace(held):
    head, *rest = records(held.path)
    head["grammar"]["text"] += " "
    raw = b"".join(json.dumps(record).encode() + b"\n" for record in [head, *rest])
    with pytest.raises(FormatError, match="line 1: grammar sha256 is not that of its text"):
        Trace.parse(raw)


def test_it_is_rescored_under_its_grammar_and_without(held, tiny, other):
    again = rescore(tiny, held)
    assert again.old == again.new
    assert neg_log_z(again.completion.steps) is None  # nothing of it was drawn
    free = rescore(other, held, regex=None)
    assert free.completion.token_ids == held.output_token_ids
    with pytest.raises(InputError, match="forced: the grammar does not allow token"):
        rescore(tiny, held, regex="[ab]+")


def test_a_branch_stays_in_the_grammar(held, tiny):
    at = next(i for i, step in enumerate(held.steps) if step.observed.stages[0].survivors > 1)
    stages = held.steps[at].observed
    allowed = [c.id for c in stages.candidates if c.removed_by != 0]
    done = branch(tiny, held, at, allowed[-1])
    assert done.token_ids[: at + 1] == (*held.output_token_ids[:at], allowed[-1])
    assert done.finish_reason in ("constraint", "max_tokens", "end_token")
    removed = stages.stages[0].top_removed[0]
    with pytest.raises(InputError, match=f"does not allow token {removed} .* at step {at}: give"):
        branch(tiny, held, at, removed)


def test_a_diff_names_the_setting_and_the_version(held):
    head = replace(
        held.head,
        grammar=replace(held.head.grammar, engine="llguidance 1.0.0"),
        params={**held.head.params, "regex": "a"},
    )
    changes = diff_texts(held, replace(held, head=head)).changes
    assert [(c.name, c.a, c.b) for c in changes] == [
        ("grammar engine", engine(), "llguidance 1.0.0"),
        ("regex", REGEX, "a"),
    ]


def test_why_knows_the_end(held):
    assert why(held).reason == "constraint"
    assert "nothing but the end may come" in why(held).sentence
