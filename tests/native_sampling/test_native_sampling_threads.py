"""Threads that share the rows of a batch: the same bits, whatever their number."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.errors import CutawayError
from cutaway.sampling import read_rows, sample
from native_rows import _native, by_twin, made, needs_native, request, requests, same

pytestmark = [
    needs_native,
    pytest.mark.filterwarnings("ignore:overflow"),
    pytest.mark.filterwarnings("ignore:invalid value"),
    pytest.mark.filterwarnings("ignore:divide by zero"),
]
POOLS = [_native.Pool(threads) for threads in (1, 2, 3, 5)] if _native else []


@settings(max_examples=100)
@given(st.lists(requests(), max_size=12), st.integers(1, 3000), st.integers(0, 2**32))
def test_drawn_rows(asked, n, seed):
    logits = np.array([made(n, seed + i, 3.0, None, 2) for i in range(len(asked))], np.float32)
    logits = logits.reshape(len(asked), n)
    alone = by_twin(logits, asked)
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
    logits = np.stack([made(49152, i, 3.0, None, 5) for i in range(7)])
    chains = [{}, {"temperature": 0}, {"top_p": 1 - 1e-12}, {"top_k": 3}, {"min_p": 0.1}]
    asked = [
        request(position=i, ledger=i == 2, top=5 * i, **chains[i % len(chains)]) for i in range(7)
    ]
    alone = sample(logits, asked)
    for pool in POOLS * 5:
        assert same(sample(logits, asked, pool=pool), alone)


def test_rows_of_the_twin_and_errors_among_them():
    def ban_zero(ids, row):
        row[0] = -np.inf
        return row

    logits = np.stack([made(300, i, 2.0, None, 0) for i in range(5)])
    logits[3, 7] = np.nan
    asked = [request(position=i, processors=(ban_zero,) if i == 1 else ()) for i in range(5)]
    alone = sample(logits, asked)
    assert [isinstance(row, CutawayError) for row in alone] == [i == 3 for i in range(5)]
    for pool in POOLS:
        assert same(sample(logits, asked, pool=pool), alone)
