"""A draft model's guesses: what it would write itself, whatever it guessed before."""

import pytest
from hypothesis import given
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
from cutaway.sampling import Sampled
from support.engine_mock import GREEDY, MockRequest, make_engine
from support.mock_backend import MockBackend, noise

TURNS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 4), st.integers(1, 3)), min_size=1, max_size=8
)


def a_sequence():
    asked = MockRequest((5, 6, 7), GREEDY, StopParams(max_tokens=60, ignore_eos=True)).asked()
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
