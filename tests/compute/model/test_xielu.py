"""xIELU's constants, as files have them."""

from math import exp, log1p

import numpy as np
import pytest

from cutaway.compute.model.layers import xielu_of
from cutaway.errors import FormatError

STORED = {
    "xielu.alpha_p": [0.1, -0.2, 0.3], "xielu.alpha_n": np.float32([0, 1, 2]),
    "xielu.beta": 0.5, "xielu.eps": -1e-6,
}  # fmt: skip


def softplus(x):
    return log1p(exp(x))


def test_files_have_what_softplus_is_taken_of_for_each_layer_or_for_all():
    found = xielu_of(STORED, 3)
    assert [each.above for each in found] == pytest.approx([softplus(x) for x in (0.1, -0.2, 0.3)])
    assert [each.below for each in found] == pytest.approx([0.5 + softplus(x) for x in (0, 1, 2)])
    assert [each.linear for each in found] == [0.5] * 3


def test_a_file_without_them_has_none():
    assert xielu_of({}, 3) == ()


@pytest.mark.parametrize("key, value, said", [
    ("xielu.beta", None, "xielu.beta must be a number for each of 3 layers"),
    ("xielu.alpha_n", [1, 2], "xielu.alpha_n must be a number for each of 3 layers"),
    ("xielu.alpha_p", "many", "xielu.alpha_p must be a number for each of 3 layers"),
    ("xielu.alpha_p", [0, float("nan"), 0], "xielu.alpha_p must be a number for each"),
    ("xielu.eps", -0.5, "xielu.eps must be within 1e-05 of 0"),
])  # fmt: skip
def test_what_is_not_so_is_refused_by_key(key, value, said):
    with pytest.raises(FormatError, match=said):
        xielu_of({**STORED, key: value}, 3)
