"""Rows read without a draw: native and twin are equal in every figure, in every tier."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.sampling import read_rows, sample
from cutaway.sampling.observe import read_row
from support.native_rows import ROWS, TIERS, TOPS, _native, made, needs_native, row_draw, same

pytestmark = needs_native
SHAPES = [(3.0, None, 0), (1.0, None, 300), (0.01, None, 0), (3.0, 0.25, 5), (400.0, None, 1)]


@settings(max_examples=600)
@given(ROWS, st.data(), TOPS)
def test_every_figure_equals_the_twins(logits, data, top):
    next_id = data.draw(st.one_of(st.none(), st.integers(0, len(logits) - 1)))
    kept = logits.copy()
    for tier in TIERS:
        read = read_rows(logits[None], [next_id], top, tier=tier)
        assert same(read, [read_row(kept, next_id, top)]), tier
    assert (logits.view(np.uint32) == kept.view(np.uint32)).all()


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("vocab", [1, 49152, 262144])
def test_whole_vocabularies(vocab, tier):
    logits = np.stack([made(vocab, i, *shape) for i, shape in enumerate(SHAPES)])
    best, worst = int(logits[0].argmax()), int(logits[1].argmin())
    ids = [best, worst, 0, vocab - 1, None]
    for top in (0, 1, 20):
        twin = [read_row(row, i, top) for row, i in zip(logits, ids, strict=True)]
        assert same(read_rows(logits, ids, top, tier=tier), twin)


def test_a_draw_and_a_reading_tell_the_same():
    logits = made(5000, 3, 3.0, None, 4)[None]
    (drawn,) = sample(logits, [row_draw(top=20)])
    (read,) = read_rows(logits, [drawn.token_id], 20)
    assert (read.top, read.logprob) == (drawn.observed.logprobs(20).model, drawn.logprob)


def test_rows_may_be_read_only_views():
    table = made(900, 1, 3.0, None, 0).reshape(300, 3).T
    table.setflags(write=False)
    twin = [read_row(row, 5, 3) for row in table]
    assert same(read_rows(table, [5, 5, 5], 3), twin)


def test_the_native_routine_refuses_what_it_cannot_read():
    def read(rows, ids, pool=None):
        _native.read_rows(np.zeros(rows, np.float32), np.array(ids, np.int32), 1, "", pool)

    with pytest.raises(ValueError, match="outside the vocabulary"):
        read((1, 3), [3])
    with pytest.raises(ValueError, match="differ in number"):
        read((2, 3), [0])
    with pytest.raises(ValueError, match="out of range"):
        read((1, 0), [-1])
