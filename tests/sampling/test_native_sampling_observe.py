"""Observing a row, and forcing its token: natively as its definition, to the last bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.errors import InputError
from cutaway.sampling import PRESETS, Observe, sample
from support.examples import few_or_many
from support.native_rows import (
    ROWS,
    TIERS,
    assert_as_twin,
    by_twin,
    draws,
    extreme_rows,
    made,
    row_draw,
    same,
)

pytestmark = extreme_rows

TOPS = st.sampled_from([0, 1, 2, 5, 20, 300, 1000])


def observes(ids, most):
    """One id may be tracked twice."""
    track = st.lists(ids, max_size=most).map(tuple)
    return st.builds(
        Observe, top=TOPS, track=track, stages=st.booleans(), after_chain=st.booleans()
    )


@st.composite
def observed(draw):
    """A row and a draw that may observe it; more often than not its token is given."""
    row = draw(ROWS)
    ids = st.integers(0, len(row) - 1)
    likely = st.sampled_from(np.argsort(-row, kind="stable")[:3].tolist())
    forced = draw(st.none() | ids | likely)
    observe = draw(st.none() | observes(ids, 8) | observes(ids, 8))
    return row, draw(draws())._replace(observe=observe, forced=forced)


@few_or_many(100, 1200, observed())
def test_every_figure_equals_the_twins(case):
    row, asked = case
    kept = row.copy()
    expected = by_twin(row[None], [asked])
    for tier in TIERS:
        assert same(sample(row[None], [asked], tier=tier), expected), tier
    assert (row.view(np.uint32) == kept.view(np.uint32)).all()


@settings(max_examples=200)
@given(observed())
def test_observing_changes_nothing(case):
    """The same token by the same luck, the same hash."""
    row, asked = case
    seen, unobserved = sample(np.stack([row] * 2), [asked, asked._replace(observe=None)])
    assert same([seen._replace(observed=None)], [unobserved])


@settings(max_examples=200)
@given(observed())
def test_a_forced_token_leaves_what_would_be_drawn(case):
    row, asked = case
    forced, free = sample(np.stack([row] * 2), [asked, asked._replace(forced=None)])
    assert forced.sampled_id == free.token_id == free.sampled_id
    assert forced.token_id == (free.sampled_id if asked.forced is None else asked.forced)


@settings(max_examples=100)
@given(st.lists(draws(), min_size=1, max_size=5), st.integers(1, 900), st.data())
def test_rows_of_a_batch_do_not_notice_each_other(asked, n, data):
    rows = np.stack([made(n, i, 3.0, None, 2) for i in range(len(asked))])
    ids = st.integers(0, n - 1)
    observe = st.none() | observes(ids, 4)
    asked = [
        r._replace(observe=data.draw(observe), forced=data.draw(st.none() | ids)) for r in asked
    ]
    alone = [by_twin(row[None], [r])[0] for row, r in zip(rows, asked, strict=True)]
    assert same(sample(rows, asked), alone)


TRACK = (0, 49151, 5, 17, 17)
CHAINS = {
    "default": {},
    "greedy": {"temperature": 0, "repetition_penalty": 1.3},
    "pure": {"temperature": 1, "top_p": 1},
    "top_k": {"top_k": 3000, "top_p": 0.9, "temperature": 1.5},
    "min_p": {"min_p": 0.05, "top_p": 1, "temperature": 1},
    "bias": {"logit_bias": {5: 9.5, 49151: -3.25}, "presence_penalty": 0.5},
}


def observed_draws(history=(5, 5, 17), **settings):
    """Of one chain: drawn, forced, and without candidates."""
    plain = row_draw(history=((5, 9), history), seed=7, **settings)
    whole = Observe(top=20, track=TRACK, stages=True, after_chain=True)
    return [
        plain._replace(observe=whole),
        plain._replace(observe=whole, forced=17),
        plain._replace(observe=Observe(stages=True)),
    ]


@pytest.mark.parametrize("name", CHAINS)
def test_a_whole_vocabulary(name):
    asked = observed_draws(**CHAINS[name])
    for i, shape in enumerate([(3.0, None, 0), (1.0, None, 300), (3.0, 0.25, 5), (40.0, None, 1)]):
        rows = np.repeat(made(49152, i, *shape)[None], len(asked), axis=0)
        assert_as_twin(rows, asked)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset(preset):
    asked = observed_draws(preset=preset, top_k=200, top_p=0.8, min_p=0.02, repetition_penalty=1.1)
    rows = np.repeat(made(49152, 9, 2.0, None, 50)[None], len(asked), axis=0)
    assert_as_twin(rows, asked)


@pytest.mark.parametrize("ids", [{"observe": Observe(top=1, track=(9,))}, {"forced": 9}])
def test_an_id_beyond_the_vocabulary_is_its_own_rows_error(ids):
    fine = row_draw()
    wrong, right = sample(np.zeros((2, 9), np.float32), [fine._replace(**ids), fine])
    assert isinstance(wrong, InputError) and "9" in str(wrong)
    assert right.token_id in range(9)
