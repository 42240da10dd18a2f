"""Two traces side by side."""

from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.trace import Change, CommonRun, Cost, Parent, diff_texts
from cutaway.trace.differences import SHORTEST_RUN
from support.trace_by_hand import ROW, TOP_K, made_step, made_text, made_trace, probabilities

texts = st.lists(st.integers(1, 5), max_size=30)


def test_a_trace_and_itself():
    trace = made_text(1, 2, 3)
    found = diff_texts(trace, trace)
    assert (found.changes, found.divergence, found.common_runs) == ((), None, ())
    assert (found.common, found.logits_differ_at, found.same_prompt) == (3, None, True)
    assert found.a == found.b
    assert found.a_after == Cost(0, 0.0)
    assert found.a_after.per_token is None


def test_where_they_diverge_and_what_each_text_cost():
    found = diff_texts(made_text(1, 2, 3), made_text(1, 4, 3))
    shares = probabilities(ROW)
    assert found.divergence.index == found.common == 1
    assert (found.divergence.a.token, found.divergence.b.token) == (" sofa", " moon")
    assert found.divergence.a.under_b == pytest.approx(shares[2])
    assert found.divergence.b.under_a == pytest.approx(shares[4])
    bits = -sum(log2(shares[i]) for i in (4, 3))
    assert found.b_after.bits == pytest.approx(bits)
    assert found.b_after.per_token == pytest.approx(bits / 2)


def test_one_text_continues_where_the_other_ended():
    found = diff_texts(made_text(1, 2), made_text(1, 2, 3)).divergence
    assert (found.index, found.a, found.b.token) == (2, None, " roof")


def test_they_meet_again():
    same = (1, 2, 3, 4, 5, 4, 3, 2, 1)
    found = diff_texts(made_text(1, 2, *same), made_text(1, 3, 5, *same))
    assert found.common_runs == (CommonRun(2, 3, 9),)


def test_a_fork_names_its_parent():
    first = made_text(1, 2, 3)
    fork = made_text(1, 4, 3, parent=Parent(first.sha256, 1, 4))
    assert diff_texts(first, fork).is_fork
    assert not diff_texts(fork, first).is_fork
    assert not diff_texts(made_text(1, 2), fork).is_fork


def test_settings_and_fields_that_differ_are_named_once():
    other = TOP_K | {"k": 3}
    found = diff_texts(
        made_text(1),
        made_text(1, seed=8, chain=(other,), params={"top_k": 3, "extra": 1, "seed": 8}),
    )
    assert found.changes == (
        Change("chain", (TOP_K,), (other,)), Change("seed", 7, 8),
        Change("top_k", 2, 3), Change("extra", None, 1),
    )  # fmt: skip


def test_the_first_logits_that_differ():
    a = made_trace([made_step(i, t) for i, t in enumerate((1, 2, 3))])
    b = made_trace([made_step(i, t, bits="0f" if i else "00") for i, t in enumerate((1, 4, 3))])
    assert diff_texts(a, b).logits_differ_at == 1  # that step still follows equal tokens
    late = made_trace(
        [made_step(i, t, bits="0f" if i > 1 else "00") for i, t in enumerate((1, 4, 3))]
    )
    assert diff_texts(a, late).logits_differ_at is None


def test_prompts_that_differ():
    assert not diff_texts(made_text(1), made_text(1, prompt_token_ids=(2, 2))).same_prompt


@given(texts, texts)
def test_the_definitions_hold(x, y):
    found = diff_texts(made_text(*x), made_text(*y))
    n = found.common
    assert x[:n] == y[:n]
    assert x[n : n + 1] != y[n : n + 1] or n == len(x) == len(y)
    assert (found.divergence is None) == (x == y)
    at = (n, n)
    for m in found.common_runs:
        assert m.length >= SHORTEST_RUN
        assert x[m.a : m.a + m.length] == y[m.b : m.b + m.length]
        assert m.a >= at[0]
        assert m.b >= at[1]
        at = (m.a + m.length, m.b + m.length)
    assert found.a.tokens == len(x)
    assert found.b_after.tokens == len(y) - n


@given(texts)
def test_a_long_enough_equal_stretch_is_found(x):
    """One token in front: the rest is the same text, one step later."""
    same = [1, 2, 3, 4, 4, 3, 2, 1, *x]
    found = diff_texts(made_text(5, *same), made_text(4, 3, *same))
    assert sum(m.length for m in found.common_runs) >= SHORTEST_RUN
