"""Constraints: masks against their definitions, and texts under them in every way to write them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.engine import ConstraintParams, FinishReason, Limits, RunParams, StopParams
from cutaway.engine.constraint import ConstraintVocabulary, allows, masks_along, packed
from cutaway.errors import InputError
from cutaway.sampling import SamplingParams
from support.engine_mock import MockRequest, make_engine, run_to_end
from support.mock_backend import END, narrow, noise, token_bytes

# Tokens of several bytes, so that a word may be cut into tokens in many ways.
PIECES = [b"", b"a", b"b", b"ab", b"ba", b"abc", b"c", "é".encode(), b"\xc3", b"\xa9", b"cab"]
PIECE_LIMITS = Limits(context_length=64, vocab_size=len(PIECES), end_ids=frozenset({0}))
VOCABULARY = ConstraintVocabulary(PIECE_LIMITS, PIECES.__getitem__)


@given(st.lists(st.booleans(), min_size=1, max_size=100))
def test_a_packed_mask_holds_a_bit_for_each_token(allowed):
    mask = packed(np.array(allowed))
    assert mask.dtype == np.uint32
    assert len(mask) == -(-len(allowed) // 32)
    assert [allows(mask, i) for i in range(len(allowed))] == allowed


def test_what_is_kept_of_bad_words_has_a_limit():
    """Each text of 4,096 bytes may have an automaton of four megabytes, and masks."""
    vocabulary = ConstraintVocabulary(replace(PIECE_LIMITS, vocab_size=8), PIECES.__getitem__)
    for i in range(40):
        automaton = vocabulary.words((f"{i:0>3}" + "a" * 4000,))
        for state in range(100):
            assert allows(automaton.mask(state), 0)
        assert automaton.most_bytes >= automaton._next.nbytes + 64 * automaton.mask(99).nbytes // 4
        assert len(automaton._masks) == 64
    kept = [*vocabulary._automata.values()]
    assert automaton in kept and vocabulary.words((f"{39:0>3}" + "a" * 4000,)) is automaton
    assert 4 < len(kept) < 9
    assert sum(one._next.nbytes for one in kept) <= 32 << 20


@given(
    st.lists(st.sampled_from(["a", "ab", "bc", "abc", "é", "caba", "cc"]), min_size=1, max_size=3),
    st.lists(st.integers(1, len(PIECES) - 1), max_size=8),
)
def test_bad_words_forbid_just_the_tokens_that_complete_one(words, tokens):
    constraint = ConstraintParams(bad_words=tuple(words)).make(VOCABULARY, frozenset())
    text = b""
    for token_id in tokens:
        for i, piece in enumerate(PIECES):
            completes = any(word.encode() in text + piece for word in words)
            assert allows(constraint.mask(), i) is not completes, (text, piece)
        if not allows(constraint.mask(), token_id):
            return
        constraint.accept(token_id)
        text += PIECES[token_id]


def test_a_fork_goes_its_own_way():
    params = ConstraintParams(bad_words=("ab",), min_tokens=2, allowed_token_ids=(0, 1, 2))
    constraint = params.make(VOCABULARY, frozenset({0}))
    fork = constraint.fork()
    fork.accept(1)
    assert not allows(fork.mask(), 2)
    assert allows(constraint.mask(), 2)
    assert not allows(constraint.mask(), 0)
    fork.accept(1)
    assert allows(fork.mask(), 0)


def test_masks_along_drafts_end_at_the_first_that_is_forbidden():
    constraint = ConstraintParams(bad_words=("ab",)).make(VOCABULARY, frozenset())
    assert len(masks_along(constraint, [1, 1, 2, 1])) == 3
    assert len(masks_along(constraint, [1, 1, 2, 1], forced=True)) == 5
    assert allows(constraint.mask(), 2), "looking ahead changed the constraint itself"


CONSTRAINTS = st.builds(
    ConstraintParams,
    allowed_token_ids=st.sampled_from([None, (97, 98, END), (97, 98, 195, 168, 169)]),
    bad_words=st.sampled_from([(), ("ab",), ("aa", "é"), ("b", "ba")]),
    min_tokens=st.sampled_from([0, 3, 12]),
)


def holds(params: ConstraintParams, tokens, reason) -> bool:
    """The definition: whether an output may have been written under these params."""
    ends = reason is FinishReason.END_TOKEN
    text = b"".join(token_bytes(t) for t in (tokens[:-1] if ends else tokens))
    allowed = params.allowed_token_ids
    return (
        (allowed is None or all(t in allowed for t in tokens))
        and not any(word.encode() in text for word in params.bad_words)
        and (not ends or len(tokens) > params.min_tokens)
    )


@given(
    CONSTRAINTS,
    st.sampled_from(["off", "ngram", "jacobi", "draft"]),
    st.sampled_from([0, 1.0]),
    st.integers(0, 5),
    st.integers(1, 4),
)
def test_texts_keep_to_their_constraint_and_are_the_same_in_every_way(
    params, speculate, temperature, seed, rows
):
    sampling = SamplingParams(temperature=temperature, seed=seed)
    request = MockRequest(tuple(b"abab"), sampling, StopParams(max_tokens=16), constraint=params)
    alone = request.run_on(make_engine(narrow))
    assert holds(params, alone.token_ids, alone.finish_reason)
    engine = make_engine(narrow, draft=noise, rows=rows + 1)
    assert replace(request, run=RunParams(speculate=speculate)).run_on(engine) == alone


def test_a_stop_string_before_min_tokens_is_text():
    forced = tuple(b"xxabab")
    request = MockRequest(
        (5,), SamplingParams(temperature=0), StopParams(max_tokens=8, stop=("ab",)),
        RunParams(forced=forced), constraint=ConstraintParams(min_tokens=5),
    )  # fmt: skip
    text = request.finish().written
    assert (text.text, text.finish_reason) == ("xxab", FinishReason.STOP_STRING)
    assert text.token_ids == forced


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"allowed_token_ids": ()}, "at least one id"),
        ({"bad_words": ("",)}, "empty string"),
        ({"bad_words": 7}, "list of strings"),
        ({"bad_words": ("\ud800",)}, "whole characters"),
        ({"bad_words": ("x" * 5000,)}, "5000 bytes"),
        ({"min_tokens": -1}, "min_tokens"),
    ],
)
def test_what_cannot_be_is_refused_by_name(given, said):
    with pytest.raises(InputError, match=said):
        ConstraintParams(**given)


def test_a_constraint_that_allows_nothing_ends_its_own_sequence_alone():
    engine = make_engine(noise)
    impossible = ConstraintParams(allowed_token_ids=(97,), bad_words=("a",))
    bad = MockRequest((5,), constraint=impossible).add_to(engine)
    good = MockRequest((5,)).add_to(engine)
    run_to_end(engine)
    assert (bad.finish_reason, good.finish_reason) == (FinishReason.ERROR, FinishReason.MAX_TOKENS)
    assert "no token" in str(bad.error)
