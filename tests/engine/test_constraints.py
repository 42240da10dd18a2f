"""Constraints: masks against their definitions, and texts under them in every way to write them.

A thinking budget lets pass what its definition says. With token healing a text begins with the
bytes that were taken back, and shows what is new.
"""

import pickle
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.engine import ConstraintParams, FinishReason, Limits, RunParams, StopParams
from cutaway.engine.constraint import (
    ConstraintVocabulary,
    allows,
    masks_along,
    missing_bytes,
    pack_mask,
)
from cutaway.engine.constraint.tokens import NAME, BudgetedThought, ThinkingBudget
from cutaway.errors import InputError
from cutaway.sampling import SamplingParams
from cutaway.text.grammar.compiler import GrammarCompiler
from support.engine_mock import MockRequest, make_engine, run_to_end
from support.mock_backend import END, VOCAB, Words, narrow, noise, token_bytes

# Tokens of several bytes, so that a word may be cut into tokens in many ways.
PIECES = [b"", b"a", b"b", b"ab", b"ba", b"abc", b"c", "é".encode(), b"\xc3", b"\xa9", b"cab"]
PIECE_LIMITS = Limits(context_length=64, vocab_size=len(PIECES), end_ids=frozenset({0}))
VOCABULARY = ConstraintVocabulary(PIECE_LIMITS, PIECES.__getitem__)


@given(st.lists(st.booleans(), min_size=1, max_size=100))
def test_a_packed_mask_holds_a_bit_for_each_token(allowed):
    mask = pack_mask(np.array(allowed))
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


# -- the thinking budget ---------------------------------------------------------------------------


OPENING, CLOSING = tuple(b"ab"), tuple(b"ba")
MANY = ConstraintVocabulary(
    Limits(context_length=64, vocab_size=257, end_ids=frozenset({END})), token_bytes
)

BUDGETS = st.builds(
    ThinkingBudget, tokens=st.integers(0, 9), opening=st.just(OPENING), closing=st.just(CLOSING),
    begun=st.booleans(), opens=st.booleans(),
)  # fmt: skip
GRAMMARS = st.sampled_from(["", "any", "answer"])


def params_of(budget, grammar):
    if not grammar:
        return ConstraintParams(thinking_budget=budget)
    thought = "thought answer" if budget.begun else '"ab" thought answer | answer'
    rules = f"start: {thought}\nthought[lazy]: /(?s:.*)ba/"
    answer = {"any": r"/(?s:.*)/", "answer": "/c{0,4}d/"}[grammar]
    return ConstraintParams(thinking_budget=budget, regex=answer[1:-1], thought=rules)


def thought_of(budget, ids):
    """(thought, whether it was closed) by the definition; None without a thought."""
    text = bytes(i for i in ids if i != END)
    if not budget.begun:
        if not text.startswith(b"ab"):
            return None
        text = text[2:]
    thought, closing, _ = text.partition(b"ba")
    return thought, bool(closing)


@given(
    BUDGETS, GRAMMARS, st.sampled_from(["off", "ngram", "jacobi", "draft"]),
    st.sampled_from([0, 1.0]), st.integers(0, 9), st.integers(1, 4),
)  # fmt: skip
def test_no_thought_is_longer_than_its_budget_in_any_way_to_write_it(
    budget, grammar, speculate, temperature, seed, rows
):
    sampling = SamplingParams(temperature=temperature, seed=seed)
    params = params_of(budget, grammar)
    request = MockRequest(tuple(b"abab"), sampling, StopParams(max_tokens=24), constraint=params)
    done = request.finish(make_engine(narrow))
    found = thought_of(budget, done.token_ids)
    assert found or not (budget.begun or budget.opens)
    if found and END not in done.token_ids[: budget.tokens + 4]:
        thought, closed = found
        assert closed and len(thought) <= budget.tokens
        thought.decode(errors="strict" if grammar else "replace")
    alone = done.written
    assert budget.opens <= (budget.begun or alone.token_ids[:2] == OPENING)
    engine = make_engine(narrow, draft=noise, rows=rows + 1)
    assert replace(request, run=RunParams(speculate=speculate)).run_on(engine) == alone


@given(st.integers(1, 9), st.lists(st.sampled_from([*"aé漢😀c".encode()]), max_size=12))
def test_a_thought_ends_with_a_whole_character(tokens, wanted):
    """Whatever is drawn from what the masks leave."""
    budget = ThinkingBudget(tokens=tokens, opening=OPENING, closing=(0, 1), begun=True)
    constraint = ConstraintParams(thinking_budget=budget).make(MANY, frozenset({END}))
    written = b""
    for one in wanted:
        if constraint.find_forced_tokens():
            break
        mask = constraint.mask()
        others = range(255, -1, -1)
        token = one if allows(mask, one) else next(i for i in others if allows(mask, i))
        constraint.accept(token)
        written += bytes([token])
        if len(written) == tokens:
            assert constraint.find_forced_tokens() == (0, 1) and constraint.refused_by == (NAME,)
            assert not missing_bytes(written)


@given(st.text(max_size=4), st.integers(0, 3))
def test_missing_bytes_is_how_much_was_cut(text, cut):
    data = text.encode()
    last = text[-1:].encode()
    cut = min(cut, max(len(last) - 1, 0))
    assert missing_bytes(data[: len(data) - cut]) == cut


def test_what_was_forced_is_said_of_its_step():
    budget = ThinkingBudget(tokens=2, opening=OPENING, closing=(7, 8), begun=True)
    params = ConstraintParams(thinking_budget=budget)
    asked = MockRequest((5,), SamplingParams(temperature=0), StopParams(max_tokens=8))
    steps = replace(asked, constraint=params).finish().steps
    assert [step.refused_by for step in steps[:5]] == [(), (), (NAME,), (NAME,), ()]
    assert [step.token_id for step in steps[2:4]] == [7, 8]
    assert steps[3].source == "grammar"


def test_a_mark_that_has_begun_is_completed_and_none_twice():
    budget = ThinkingBudget(tokens=3, opening=OPENING, closing=(7, 8, 9), begun=True)
    constraint = ConstraintParams(thinking_budget=budget).make(MANY, frozenset())
    for token in (7, 7, 8):
        constraint.accept(token)
    assert constraint.find_forced_tokens() == (9,)
    constraint.accept(9)
    assert constraint.mask() is None and constraint.find_forced_tokens() == ()


def test_a_token_that_was_forced_from_outside_is_followed():
    """As a branch does, in the middle of the mark."""
    budget = ThinkingBudget(tokens=0, opening=OPENING, closing=(7, 8), begun=True)
    constraint = ConstraintParams(thinking_budget=budget).make(MANY, frozenset())
    for token in (7, 3):
        constraint.accept(token)
    assert constraint.find_forced_tokens() == (7, 8)


def test_it_goes_to_json_and_to_other_processes():
    budget = ThinkingBudget(tokens=3, opening=OPENING, closing=CLOSING, opens=True)
    params = ConstraintParams(thinking_budget=budget)
    assert ConstraintParams(thinking_budget=budget.to_json()) == params
    assert pickle.loads(pickle.dumps(params)) == params


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (7, "must be an object of tokens, opening"),
        ({"tokens": 3}, "must be an object of tokens, opening"),
        ({"tokens": -1}, "thinking_budget.tokens must be"),
        ({"closing": ()}, "at least one token id"),
        ({"opening": "x"}, "thinking_budget.opening"),
        ({"begun": 1}, "thinking_budget.begun"),
    ],
)
def test_a_budget_that_cannot_be_is_refused_by_name(given, said):
    whole = ThinkingBudget(tokens=3, opening=OPENING, closing=CLOSING).to_json()
    if isinstance(given, dict) and "said" not in given and given != {"tokens": 3}:
        given = whole | given
    with pytest.raises(InputError, match=said):
        ConstraintParams(thinking_budget=given)


def test_healing_is_no_part_of_a_chat():
    budget = ThinkingBudget(tokens=3, opening=OPENING, closing=CLOSING)
    with pytest.raises(InputError, match=r"^heal: "):
        ConstraintParams(thinking_budget=budget, heal=True)


def test_a_mark_of_one_token_is_not_what_spells_it():
    """A thought that names its own end goes on, and its budget with it."""
    texts = [b"<", b"/t>", b"</t>", b"a"]
    vocabulary = ConstraintVocabulary(
        Limits(context_length=64, vocab_size=4, end_ids=frozenset()), texts.__getitem__
    )
    budget = ThinkingBudget(tokens=4, opening=(3,), closing=(2,), begun=True)
    thought = BudgetedThought(budget, vocabulary)
    for token in (0, 1, 3, 3):
        assert not thought.find_forced_tokens()
        thought.accept(token)
    assert thought.find_forced_tokens() == (2,)


# -- token healing ---------------------------------------------------------------------------------


SHORT_PIECES = [
    *map("".join, product("ab1", repeat=2)),
    *map("".join, product("ab1", repeat=3)),
]


def pieces(token_id):
    """Bytes below 128, then words of two and three letters; the end has no bytes."""
    if token_id == END or token_id - 128 >= len(SHORT_PIECES):
        return b""
    return bytes([token_id]) if token_id < 128 else SHORT_PIECES[token_id - 128].encode()


class PieceWords(Words):
    def token_bytes(self, token_id):
        return pieces(token_id)

    def encode(self, text, *, goes_on=False):
        return [*text.encode()]


COMPILER = GrammarCompiler(PieceWords())
IDS = {pieces(i): i for i in range(256) if pieces(i)}


def write(taken, seed=0, run=None, max_tokens=8, **constraint):
    engine = make_engine(noise, pieces=pieces)
    engine.grammars = lambda: COMPILER
    asked = ConstraintParams(heal=IDS[taken], **constraint)
    stops = StopParams(max_tokens=max_tokens, stop=("bb",))
    params, how = SamplingParams(seed=seed, temperature=2), RunParams(**run or {})
    one = MockRequest((1, 2), params, stops, how, constraint=asked).finish(engine)
    return b"".join(map(pieces, one.token_ids)), one.text, one.token_ids, one.end


RUNS = st.sampled_from([{}, {"speculate": "ngram"}, {"speculate": "jacobi"}, {"kv_cache": False}])


@settings(max_examples=60)
@given(taken=st.sampled_from([*IDS]), seed=st.integers(0, 99), run=RUNS)
def test_the_text_goes_on_from_what_was_taken_back(taken, seed, run):
    written, text, ids, ended = write(taken, seed, run)
    assert written.startswith(taken)
    new = written[len(taken) :].decode("utf-8", "replace")
    assert text == new.partition("bb")[0]
    assert ended.usage.prompt_tokens == 2 and ended.usage.completion_tokens == len(ids)
    assert (ended.reason == FinishReason.STOP_STRING) is ("bb" in new)
    assert ids == write(taken, seed)[2]


@pytest.mark.parametrize("taken", [b"a", b"ab", b"b1a", b"x"])
def test_the_first_token_is_any_that_begins_so(taken):
    constraint = ConstraintParams(heal=IDS[taken])
    mask = constraint.make(make_engine(pieces=pieces).vocabulary, frozenset({END})).mask()
    may = {pieces(i) for i in range(VOCAB) if allows(mask, i)}
    begun = {data for data in IDS if taken.startswith(data) or data.startswith(taken)}
    assert may == begun


@settings(max_examples=60)
@given(taken=st.sampled_from([b"a", b"ab", b"1", b"b1a"]), seed=st.integers(0, 99), run=RUNS)
def test_a_grammar_and_a_check_see_what_is_new(taken, seed, run):
    class NoOnes:
        def allows(self, text, token):
            assert text == b"" or text[:1] in b"ab"
            return b"1" not in text + token

    _, text, _, ended = write(taken, seed, run, 20, regex="[ab][ab1]{2,4}x", check=NoOnes())
    assert ended.error is None
    assert ended.reason == FinishReason.STOP_STRING or re.fullmatch("[ab]{3,5}x", text)
    bad = write(taken, seed, run, bad_words=["b", "1"])[1]
    assert not {*"b1"} & {*bad}


def test_the_engine_wants_to_know_which_token():
    with pytest.raises(InputError, match="heal: pass the id of the trimmed"):
        MockRequest((1, 2), constraint=ConstraintParams(heal=True)).add_to(make_engine())
    with pytest.raises(InputError, match="heal"):
        MockRequest((1, 2), constraint=ConstraintParams(heal=5000)).add_to(make_engine())
    with pytest.raises(InputError, match="heal: true, false or a token id"):
        ConstraintParams(heal="yes")
