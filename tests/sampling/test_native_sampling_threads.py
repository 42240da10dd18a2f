"""Threads that share the rows of a batch: the same bits, whatever their number."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.errors import CutawayError
from cutaway.sampling import read_rows, sample
from support.examples import few_or_many
from support.native_rows import (
    _native,
    draw_by_twin,
    draw_noise,
    draws,
    extreme_rows,
    row_draw,
    same,
)

pytestmark = extreme_rows
POOLS = [_native.Pool(threads) for threads in (1, 2, 3, 5)] if _native else []


@few_or_many(40, 100, st.lists(draws(), max_size=12), st.integers(1, 3000), st.integers(0, 2**32))
def test_drawn_rows(asked, n, seed):
    logits = np.array(
        [draw_noise(n, seed + i, 3.0, None, 2) for i in range(len(asked))], np.float32
    )
    logits = logits.reshape(len(asked), n)
    alone = draw_by_twin(logits, asked)
    for pool in POOLS:
        assert same(sample(logits, asked, pool=pool), alone)


@settings(max_examples=100)
@given(st.integers(0, 40), st.integers(1, 3000), st.integers(0, 2**32), st.integers(0, 30))
def test_read_rows(count, n, seed, top):
    logits = np.random.default_rng(seed).normal(0, 3, (count, n)).astype(np.float32)
    ids = [None if i % 5 == 0 else (7 * i) % n for i in range(count)]
    alone = read_rows(logits, ids, top)
    for pool in POOLS:
        assert same(read_rows(logits, ids, top, pool=pool), alone)


def test_whole_vocabularies_of_unequal_cost():
    logits = np.stack([draw_noise(49152, i, 3.0, None, 5) for i in range(7)])
    chains = [{}, {"temperature": 0}, {"top_p": 1 - 1e-12}, {"top_k": 3}, {"min_p": 0.1}]
    asked = [
        row_draw(position=i, stages=i == 2, top=5 * i, **chains[i % len(chains)]) for i in range(7)
    ]
    alone = sample(logits, asked)
    for pool in POOLS * 5:
        assert same(sample(logits, asked, pool=pool), alone)


def test_rows_of_the_twin_and_errors_among_them():
    def ban_zero(ids, row):
        row[0] = -np.inf
        return row

    logits = np.stack([draw_noise(300, i, 2.0, None, 0) for i in range(5)])
    logits[3, 7] = np.nan
    asked = [row_draw(position=i, processors=(ban_zero,) if i == 1 else ()) for i in range(5)]
    alone = sample(logits, asked)
    assert [isinstance(row, CutawayError) for row in alone] == [i == 3 for i in range(5)]
    for pool in POOLS:
        assert same(sample(logits, asked, pool=pool), alone)


SHARED = [
    {}, {"temperature": 0}, {"temperature": 1}, {"temperature": 1.3, "top_p": 1},
    {"temperature": 0.4, "top_p": 0.999}, {"min_p": 0.02, "top_p": 0.5}, {"top_k": 50},
]  # fmt: skip


@pytest.mark.parametrize("chain", SHARED)
@pytest.mark.parametrize("spread", [0.02, 1.0, 4.0])
def test_one_row_that_two_threads_share(chain, spread):
    """Of a large vocabulary one takes the row's own log-sum, the other draws."""
    for seed in range(4):
        logits = draw_noise(40_000 + seed, seed, spread, None, 3)[None]
        asked = [row_draw(position=9, seed=seed, stages=seed == 3, **chain)]
        twin = draw_by_twin(logits, asked)
        assert same(sample(logits, asked), twin)
        for pool in POOLS:
            assert same(sample(logits, asked, pool=pool), twin)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("chain", SHARED)
def test_a_row_that_is_not_finite_and_shared(chain, bad):
    logits = draw_noise(40_000, 1, 3.0, None, 3)[None]
    logits[0, 777] = bad
    for pool in POOLS:
        (failed,) = sample(logits, [row_draw(**chain)], pool=pool)
        assert isinstance(failed, CutawayError)


@settings(max_examples=60)
@given(
    st.integers(4097, 9000), st.integers(0, 2**32), st.sampled_from([1e-3, 0.3, 2.0, 9.0]),
    st.sampled_from([0.1, 0.5, 0.9, 0.99999, 1 - 1e-9]),
)  # fmt: skip
def test_a_nearly_known_mass_cuts_where_the_exact_one_does(n, seed, spread, p):
    """Also where the target falls between two weights that are too near to tell."""
    logits = draw_noise(n, seed, spread, 0.125 if seed % 2 else None, seed % 7)[None]
    asked = [row_draw(temperature=0.7, top_p=p)]
    assert same(sample(logits, asked), draw_by_twin(logits, asked))
