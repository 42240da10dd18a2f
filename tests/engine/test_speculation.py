"""Drafts against their definitions.

The suffix automaton: try every end of the text, longest first. Jacobi: search all that was ever
drawn, the latest first. A draft model drafts what it would write itself, whatever it guessed
before.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cutaway.engine import (
    ConstraintParams,
    DraftModel,
    FinishReason,
    Phases,
    RunParams,
    Sequence,
    StopParams,
)
from cutaway.engine.speculation import length
from cutaway.engine.speculation.from_text import (
    CONTEXT,
    MIN_MATCH,
    REFRESHED,
    JacobiDrafts,
    SuffixAutomaton,
)
from cutaway.engine.speculation.length import ROW_COST
from cutaway.sampling import Sampled, SamplingParams
from support.engine_mock import GREEDY, MockRequest, make_engine
from support.mock_backend import VOCAB, MockBackend, noise

# -- n-grams ---------------------------------------------------------------------------------------


LETTERS = st.integers(0, 1) | st.integers(0, 3)
TEXTS = st.lists(LETTERS, max_size=60) | st.builds(
    lambda head, period, times: head + period * times,
    st.lists(LETTERS, max_size=6),
    st.lists(LETTERS, min_size=1, max_size=4),
    st.integers(1, 15),
)
MATCHED = st.tuples(  # ends in what came before, and is so short that no refresh is bounded out
    st.lists(LETTERS, max_size=REFRESHED // 3),
    st.lists(LETTERS, min_size=MIN_MATCH, max_size=max(MIN_MATCH, REFRESHED // 6)),
    st.lists(LETTERS, max_size=REFRESHED // 3),
).map(lambda parts: [*parts[0], *parts[1], *parts[2], *parts[1]])


def places(text: list[int], length: int) -> list[int]:
    """One past each earlier occurrence of the text's last ``length`` tokens."""
    end = text[len(text) - length :]
    return [i for i in range(length, len(text)) if text[i - length : i] == end]


def longest_match(text: list[int]) -> int:
    return next((n for n in range(len(text) - 1, 0, -1) if places(text, n)), 0)


def continuation(text: list[int], place: int, limit: int) -> list[int]:
    """What follows there, each draft being text for the next: round and round at the end."""
    grown = list(text)
    for i in range(limit):
        grown.append(grown[place + i])
    return grown[len(text) :]


@given(TEXTS, st.integers(0, 20))
@example([], 4)
@example([7], 4)
@example([1, 1, 1, 1], 6)
@example([1, 2, 3, 1, 2], 9)
def test_the_draft_follows_an_occurrence_of_the_longest_match(text, limit):
    draft = SuffixAutomaton(text).draft(limit)
    length = longest_match(text)
    assert draft.match_length == length
    if length < MIN_MATCH:
        assert draft.tokens == []
    else:
        assert draft.tokens in [continuation(text, i, limit) for i in places(text, length)]


@given(MATCHED, st.integers(1, 20))
@example([1, 2, 8, 1, 2, 9, 1, 2], 1)
@example([1, 2, 8, 3, 1, 2, 8, 1, 2, 9, 4, 1, 2], 1)
def test_the_draft_follows_the_latest_occurrence(text, limit):
    draft = SuffixAutomaton(text).draft(limit)
    assert draft.match_length >= MIN_MATCH
    assert draft.tokens == continuation(text, places(text, draft.match_length)[-1], limit)


@given(TEXTS, st.integers(0, 60))
def test_a_text_that_grows_guesses_as_one_that_was_given_whole(text, cut):
    grown = SuffixAutomaton(text[:cut])
    grown.draft(5)
    for token in text[cut:]:
        grown.append(token)
    assert len(grown) == len(text)
    assert grown.draft(5) == SuffixAutomaton(text).draft(5)


@given(st.lists(LETTERS, min_size=2, max_size=5), st.integers(2, 40))
def test_a_repeated_text_is_guessed_to_repeat(period, times):
    draft = SuffixAutomaton(period * times).draft(3 * len(period))
    assert draft.match_length >= len(period) * (times - 1)
    assert draft.tokens == period * 3


@given(TEXTS)
def test_there_are_at_most_two_states_per_token(text):
    automaton = SuffixAutomaton(text)
    assert len(automaton._link) <= 2 * len(text) + 1
    assert sum(map(len, automaton._next)) <= 3 * len(text) + 1


def test_a_passage_that_comes_again_is_guessed_to_its_end():
    passage = list(range(100, 140))
    automaton = SuffixAutomaton([1, 2, *passage, 3, *passage[:2]])
    assert automaton.draft(16) == (2, passage[2:18])
    automaton.extend(passage[2:36])
    assert automaton.draft(5) == (36, [*passage[36:], 3])


# -- Jacobi ----------------------------------------------------------------------------------------


THREE_LETTERS = st.integers(0, 2)
DRAWN_STEPS = st.lists(
    st.tuples(st.lists(THREE_LETTERS, max_size=5), st.lists(THREE_LETTERS, min_size=1, max_size=6)),
    max_size=12,
)


def grown(first: list[int], steps):
    """Of each step the text before it, its draft tokens and what was drawn; the text at the end."""
    text, log = list(first), []
    for guessed, tokens in steps:
        drafts, drawn = guessed[: len(tokens) - 1], tokens[: len(guessed) + 1]
        log.append((list(text), drafts, drawn))
        right = next((i for i, d in enumerate(drafts) if d != drawn[i]), len(drafts))
        text += drawn[: right + 1]
    return text, log


def guess(text: list[int], position: int, log) -> int:
    """What comes at this position, if the tokens before it are ``text``."""
    rows = [
        (before + drafts[:i], len(before) + i, token)
        for before, drafts, drawn in log
        for i, token in enumerate(drawn)
    ][::-1]
    after = [token for seen, _, token in rows if seen[-CONTEXT:] == text[-CONTEXT:]]
    at = [token for _, place, token in rows if place == position]
    return [*after, *at, text[-1]][0]


@given(st.lists(THREE_LETTERS, min_size=1, max_size=3), DRAWN_STEPS, st.integers(0, 8))
def test_a_draft_is_what_was_drawn_after_two_tokens_or_at_its_position(first, steps, limit):
    text, log = grown(first, steps)
    ahead = JacobiDrafts()
    for before, drafts, drawn in log:
        ahead.learn(before[-CONTEXT:], len(before), drafts, drawn)
    expected = list(text)
    for position in range(len(text), len(text) + limit):
        expected.append(guess(expected, position, log))
    draft = ahead.draft(text[-CONTEXT:], len(text), limit)
    assert draft.tokens == expected[len(text) :]
    seen = [before + drafts[:i] for before, drafts, drawn in log for i in range(len(drawn))]
    known = text[-CONTEXT:] in [one[-CONTEXT:] for one in seen]
    assert draft.match_length == CONTEXT * known


def test_what_was_drawn_behind_the_first_wrong_draft_comes_next():
    ahead = JacobiDrafts()
    ahead.learn([1, 2], 5, [7, 8, 9], [3, 20, 21, 22])  # 7 is wrong: 3 stands there
    assert ahead.draft([2, 3], 6, 3) == (0, [20, 21, 22])


def by_position(tokens):
    """A model that looks at nothing but how long the text is: any guess ahead is right."""
    logits = np.zeros(VOCAB, np.float32)
    logits[len(tokens) % 64] = 100
    return logits


def in_turn(tokens):
    """A text that repeats itself: five letters, each after the one before it."""
    logits = np.zeros(VOCAB, np.float32)
    logits[97 + (tokens[-1] - 96) % 5] = 100
    return logits


@pytest.mark.parametrize("model", [by_position, in_turn])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1, top_p=1, seed=5)])
def test_a_model_whose_guesses_are_right_needs_fewer_steps(model, params):
    request = MockRequest((97, 98), params, StopParams(max_tokens=50, ignore_eos=True))
    alone = request.run_on(make_engine(model))
    engine = make_engine(model)
    one = replace(request, run=RunParams(speculate="jacobi")).finish(engine)
    assert one.written == alone
    proposed, accepted, *_ = one.sequence.speculation
    assert 10 < accepted < proposed
    assert len(engine.backend.runs) == 50 - accepted


# -- a draft model ---------------------------------------------------------------------------------


TURNS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 4), st.integers(1, 3)), min_size=1, max_size=8
)


def a_sequence():
    asked = MockRequest((5, 6, 7), GREEDY, StopParams(max_tokens=60, ignore_eos=True)).to_request()
    return Sequence(0, asked.with_seed(0), make_engine().vocabulary, longest=64)


def a_draft():
    return DraftModel(MockBackend(16, noise, block=4), context=64, cost=0.1)


@given(TURNS)
def test_it_guesses_as_if_it_had_only_read_the_text(turns):
    """Also where the text went on without it: it reads that, and forgets what it had guessed."""
    sequence, draft = a_sequence(), a_draft()
    for wanted, right, more in turns:
        (guesses,) = draft.propose([(sequence, wanted)])
        assert [guesses] == a_draft().propose([(sequence, wanted)])
        for token in [*guesses[:right], *range(more)]:
            sequence.append(Sampled(token, token, 1, 0.0, 0), None, Phases())
    draft.forget(sequence)
    assert draft.blocks.free == draft.blocks.count


def likes(letter):
    def model(tokens):
        logits = noise(tokens)
        logits[ord(letter)] += 100
        return logits

    return model


def test_a_draft_token_after_which_the_grammar_fails_ends_the_draft_alone():
    """The stop token b ends the text, and the grammar goes on: an error, were it drawn."""
    stops = StopParams(max_tokens=20, stop_token_ids=(ord("b"),))
    constraint = ConstraintParams(regex="[ab]{9}")
    run = RunParams(speculate="draft")
    request = MockRequest((5, 6), GREEDY, stops, run, constraint=constraint)
    wrote = request.run_on(make_engine(likes("a"), draft=likes("b")))
    assert (wrote.text, wrote.finish_reason) == ("a" * 9, FinishReason.CONSTRAINT)


def test_a_step_that_failed_is_computed_again():
    sequence, draft = a_sequence(), a_draft()
    draft.backend.failures = 1
    with pytest.raises(OSError, match="told to fail"):
        draft.propose([(sequence, 3)])
    assert draft.propose([(sequence, 3)]) == a_draft().propose([(sequence, 3)])


def drafted_tokens(speculator):
    """Return a list, which grows by the number of tokens of each draft."""
    counts, propose = [], speculator.propose

    def counting(requests, rows, settle):
        drafts = propose(requests, rows, settle)
        counts.extend(map(len, drafts))
        return drafts

    speculator.propose = counting
    return counts


@pytest.mark.parametrize("speculate", ["ngram", "jacobi"])
def test_drafts_cost_the_rows_that_run_where_a_grammar_cuts_them(speculate):
    engine = make_engine(likes("a"))
    engine.speculator.costs.learn_step = lambda *_: None  # so that costs stay those guessed
    counts = drafted_tokens(engine.speculator)
    request = MockRequest(
        (5, 6), GREEDY, StopParams(max_tokens=40), RunParams(speculate=speculate),
        constraint=ConstraintParams(regex="([ad]{4}[bc]){6}"),
    )  # fmt: skip
    speculation = request.finish(engine).sequence.speculation
    assert 0 < speculation.proposed < sum(counts)
    assert speculation.cost == pytest.approx(ROW_COST * speculation.proposed)


@pytest.mark.parametrize("speculate", ["ngram", "jacobi", "draft"])
def test_a_text_that_is_always_drafted_has_a_step_without_drafts_now_and_then(
    speculate, monkeypatch
):
    """No token depends on it."""
    monkeypatch.setattr(length, "PROBE_INTERVAL", 8)
    request = MockRequest((5, 6), GREEDY, StopParams(max_tokens=700, ignore_eos=True))
    engine = make_engine(likes("a"), draft=likes("a"), context=1024)
    wrote = replace(request, run=RunParams(speculate=speculate)).finish(engine)
    assert wrote.written == request.finish(make_engine(likes("a"), context=1024)).written
    lengths = wrote.sequence.speculation.lengths
    assert 3 < lengths[0] <= 3 + sum(lengths) / 8  # an n-gram has none in the first steps
