"""What differs from layer to layer: how many heads each has."""

import numpy as np
import pytest

from cutaway.compute.model.layers import HEADS, KV_HEADS, heads_by_layer
from cutaway.compute.model.metadata import MetadataReader
from cutaway.errors import FormatError


def read_heads(key, heads, kv_heads, usual=None, blocks=3):
    metadata = {f"x.{HEADS}": heads, f"x.{KV_HEADS}": kv_heads, "x.block_count": blocks}
    known = {name: value for name, value in metadata.items() if value is not None}
    return heads_by_layer(MetadataReader(known, "x"), key, 3, usual)


def test_one_of_the_two_numbers_of_heads_may_differ_from_layer_to_layer():
    assert read_heads(KV_HEADS, 8, np.array([2, 8, 1])) == (2, 8, 1)
    assert read_heads(HEADS, np.array([4, 8, 4]), 4) == (4, 8, 4)
    assert read_heads(KV_HEADS, 8, 2) == (2, 2, 2)
    assert read_heads(KV_HEADS, 8, None, usual=8) == (8, 8, 8)
    assert read_heads(KV_HEADS, 8, np.array([2, 8, 1, 4]), blocks=4) == (2, 8, 1)  # and one drafts


@pytest.mark.parametrize(
    "kv_heads",
    [
        None, 3, 0, -2, 2.0, np.array([2, 8]), np.array([2, 3, 8]), np.array([2.0, 2, 2]),
        np.array([2, 8, 1, 4]),
    ],
)  # fmt: skip
def test_kv_heads_that_do_not_share_the_heads_evenly_are_refused(kv_heads):
    told = r"x.attention.head_count_kv must be .* 3 layers, that divides attention.head_count \(8\)"
    with pytest.raises(FormatError, match=told):
        read_heads(KV_HEADS, 8, kv_heads)


def test_heads_that_kv_heads_do_not_share_evenly_are_refused():
    told = r"x.attention.head_count must be .*, divisible by attention.head_count_kv \(4\)"
    with pytest.raises(FormatError, match=told):
        read_heads(HEADS, np.array([4, 8, 6]), 4)
    with pytest.raises(FormatError, match=told):
        read_heads(HEADS, np.array([4, 8, 2**40]), 4)
