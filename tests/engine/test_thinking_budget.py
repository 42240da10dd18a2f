"""The thinking budget: what it lets pass, against its definition, in every way to write a text."""

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.engine import ConstraintParams, Limits, RunParams, StopParams
from cutaway.engine.constraint import ConstraintVocabulary, allows, missing_bytes
from cutaway.engine.constraint.tokens import NAME, BudgetedThought, ThinkingBudget
from cutaway.errors import InputError
from cutaway.sampling import SamplingParams
from support.engine_mock import MockRequest, make_engine
from support.mock_backend import END, narrow, noise, token_bytes

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
        if constraint.forced():
            break
        mask = constraint.mask()
        others = range(255, -1, -1)
        token = one if allows(mask, one) else next(i for i in others if allows(mask, i))
        constraint.accept(token)
        written += bytes([token])
        if len(written) == tokens:
            assert constraint.forced() == (0, 1) and constraint.refused_by == (NAME,)
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
    assert constraint.forced() == (9,)
    constraint.accept(9)
    assert constraint.mask() is None and constraint.forced() == ()


def test_a_token_that_was_forced_from_outside_is_followed():
    """As a branch does, in the middle of the mark."""
    budget = ThinkingBudget(tokens=0, opening=OPENING, closing=(7, 8), begun=True)
    constraint = ConstraintParams(thinking_budget=budget).make(MANY, frozenset())
    for token in (7, 3):
        constraint.accept(token)
    assert constraint.forced() == (7, 8)


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
def test_what_cannot_be_is_refused_by_name(given, said):
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
        assert not thought.forced()
        thought.accept(token)
    assert thought.forced() == (2,)
