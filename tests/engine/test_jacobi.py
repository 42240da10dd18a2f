"""JacobiDrafts against its definition: search all that was ever drawn, the latest first."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.engine import RunParams, StopParams
from cutaway.engine.speculation import CONTEXT, JacobiDrafts
from cutaway.sampling import SamplingParams
from support.engine_mock import GREEDY, MockRequest, make_engine
from support.mock_backend import VOCAB

LETTERS = st.integers(0, 2)
STEPS = st.lists(
    st.tuples(st.lists(LETTERS, max_size=5), st.lists(LETTERS, min_size=1, max_size=6)), max_size=12
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


@given(st.lists(LETTERS, min_size=1, max_size=3), STEPS, st.integers(0, 8))
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
    proposed, accepted = one.sequence.speculation
    assert 10 < accepted < proposed
    assert len(engine.backend.runs) == 50 - accepted
