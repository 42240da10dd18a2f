"""Batches whose numbers do not fit raise ValueError, and leave the plan as it was."""

import numpy as np
import pytest

from cutaway import LLM
from cutaway.compute.backends import Batch
from cutaway.features.measure.verify import differing_bits
from support.native_plans import batch_of

IDS = list(range(3, 63))


@pytest.fixture(scope="module")
def llm(q8_path):
    return LLM(q8_path, backend="cpu", threads=2, kv_tokens=256)


def batch(**changes):
    made = batch_of([(0, IDS[:40], [0, 1]), (0, IDS[:5], [2])])
    made = made._replace(logit_rows=np.array([39, 44], np.int32))
    for name, (where, value) in changes.items():
        getattr(made, name)[where] = value
    return made


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tokens": (3, -1)}, "outside the vocabulary"),
        ({"tokens": (44, 264)}, "outside the vocabulary"),
        ({"tokens": (0, 2**31 - 1)}, "outside the vocabulary"),
        ({"positions": (3, 5)}, "not in order"),
        ({"positions": (39, 0)}, "not in order"),
        ({"positions": (0, -1)}, "outside the context"),
        ({"positions": (44, 256)}, "outside the context"),
        ({"positions": (44, 2**31 - 1)}, "outside the context"),
        ({"positions": (40, 63)}, "not in order|names no KV block"),
        ({"sequences": (44, 2)}, "no block table"),
        ({"sequences": (0, -1)}, "no block table"),
        ({"block_tables": ((0, 1), -1)}, "names no KV block"),
        ({"block_tables": ((1, 0), 8)}, "names no KV block"),
        ({"block_tables": ((0, 0), 2**31 - 1)}, "names no KV block"),
        ({"logit_rows": (0, 45)}, "not one of the rows"),
        ({"logit_rows": (1, -1)}, "not one of the rows"),
    ],
)
def test_bad_numbers_are_refused_and_change_nothing(llm, change, sentence):
    before = llm.backend.run(batch()).copy()
    with pytest.raises(ValueError, match=sentence):
        llm.backend.run(batch(**change))
    assert differing_bits(llm.backend.run(batch()), before) == 0


@pytest.mark.parametrize("short", ["tokens", "positions", "sequences"])
def test_arrays_of_different_lengths_are_refused(llm, short):
    good = batch()
    with pytest.raises(ValueError, match="differ in length"):
        llm.backend.run(good._replace(**{short: getattr(good, short)[:-1].copy()}))


def test_arrays_of_other_dimensions_are_refused(llm):
    good = batch()
    for wrong in ({"tokens": good.block_tables}, {"block_tables": good.tokens}):
        with pytest.raises(TypeError):
            llm.backend.run(good._replace(**wrong))


def test_an_empty_batch_gives_no_logits(llm):
    none = np.empty(0, np.int32)
    logits = llm.backend.run(Batch(none, none, none, np.empty((0, 0), np.int32), none))
    assert logits.shape == (0, 264)


def test_more_logit_rows_than_rows_are_refused(llm):
    good = batch()
    with pytest.raises(ValueError, match="more logit rows than rows"):
        llm.backend.run(good._replace(logit_rows=np.tile(good.logit_rows, 500)))
