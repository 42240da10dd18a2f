"""SamplingParams: what it takes, and the one sentence that names the field it does not."""

import dataclasses
import math

import numpy as np
import pytest

from cutaway.base.checks import shown
from cutaway.errors import InputError
from cutaway.sampling import PRESETS, SamplingParams

NUMBERS = ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty",
           "frequency_penalty"]  # fmt: skip
NOT_NUMBERS = [math.nan, math.inf, -math.inf, True, False, "0.5", None, [0.5], 1j, 10**400]
NOT_INTEGERS = [math.nan, math.inf, 1.0, True, "1", [1], 1j]

OUT_OF_RANGE = [
    ({"temperature": -0.1}, "0.01 and 100"),
    ({"temperature": 0.0099}, "0 (greedy)"),
    ({"temperature": 100.1}, "0.01 and 100"),
    ({"temperature": 5e-324}, "0.01 and 100"),
    ({"top_k": -1}, "0 or more"),
    ({"top_p": 0}, "above 0"),
    ({"top_p": -0.5}, "above 0"),
    ({"top_p": math.nextafter(1, 2)}, "at most 1"),
    ({"min_p": -1e-9}, "at least 0"),
    ({"min_p": 1}, "below 1"),
    ({"repetition_penalty": 0.009}, "between 0.01 and 100"),
    ({"repetition_penalty": -1}, "between 0.01 and 100"),
    ({"repetition_penalty": 100.5}, "between 0.01 and 100"),
    ({"presence_penalty": -2.01}, "-2 and 2"),
    ({"presence_penalty": 2.01}, "-2 and 2"),
    ({"frequency_penalty": -2.01}, "-2 and 2"),
    ({"frequency_penalty": 2.01}, "-2 and 2"),
    ({"logit_bias": {7: 100.1}}, "logit_bias[7]"),
    ({"logit_bias": {7: -100.1}}, "-100 and 100"),
    ({"logit_bias": {7: math.nan}}, "logit_bias[7]"),
    ({"logit_bias": {7: True}}, "logit_bias[7]"),
    ({"logit_bias": {7: "1"}}, "logit_bias[7]"),
    ({"logit_bias": {1: 1, -1: 1}}, "token id"),
    ({"logit_bias": {"7": 1}}, "token id"),
    ({"logit_bias": {True: 1}}, "token id"),
    ({"logit_bias": {1.0: 1}}, "token id"),
    ({"logit_bias": [7]}, "map token ids"),
    ({"logit_bias": None}, "map token ids"),
    ({"seed": -1}, "18446744073709551615"),
    ({"seed": 2**64}, "18446744073709551615"),
    ({"preset": "openai"}, "llama.cpp"),
    ({"preset": ""}, "cutaway"),
    ({"preset": None}, "cutaway"),
    ({"preset": ["hf"]}, "cutaway"),
    ({"processors": 5}, "callables"),
    ({"processors": None}, "callables"),
    ({"processors": ("mask",)}, "callables"),
    ({"processors": len}, "callables"),
]
IN_RANGE = [
    {"temperature": 0}, {"temperature": 0.01}, {"temperature": 100}, {"temperature": 1},
    {"top_k": 0}, {"top_k": 10**12}, {"top_p": 1}, {"top_p": 1e-300}, {"min_p": 0},
    {"min_p": math.nextafter(1, 0)}, {"repetition_penalty": 100}, {"repetition_penalty": 0.5},
    {"presence_penalty": -2}, {"presence_penalty": 2}, {"frequency_penalty": -2},
    {"frequency_penalty": 2}, {"logit_bias": {}}, {"logit_bias": {0: -100, 10**6: 100}},
    {"seed": None}, {"seed": 0}, {"seed": 2**64 - 1}, {"processors": (max,)},
    {"temperature": np.float64(0.5)},
    *({"preset": preset} for preset in PRESETS),
]  # fmt: skip


def complaint(settings):
    with pytest.raises(InputError) as caught:
        SamplingParams(**settings)
    return str(caught.value)


@pytest.mark.parametrize(("settings", "word"), OUT_OF_RANGE)
def test_out_of_range_names_the_field_and_the_range(settings, word):
    sentence = complaint(settings)
    assert sentence.startswith(next(iter(settings)))
    assert word in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize("field", NUMBERS)
@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_not_a_number_names_the_field_and_the_value(field, value):
    assert complaint({field: value}) == f"{field} must be a finite number, not {shown(value)}"


@pytest.mark.parametrize("field", ["top_k", "seed"])
@pytest.mark.parametrize("value", NOT_INTEGERS)
def test_not_an_integer_names_the_field_and_the_value(field, value):
    sentence = complaint({field: value})
    assert sentence.startswith(f"{field} must be a whole number")
    assert sentence.endswith(f"not {shown(value)}")


def test_top_k_has_no_none():
    assert complaint({"top_k": None}).startswith("top_k must be a whole number")


@pytest.mark.parametrize("settings", IN_RANGE)
def test_the_ends_of_each_range_are_taken_as_they_are(settings):
    (field, value), params = next(iter(settings.items())), SamplingParams(**settings)
    assert getattr(params, field) == value


def test_numpys_numbers_are_stored_as_plain_ones():
    half, two = np.float32(0.5), np.int64(2)
    given = {"temperature": half, "top_p": half, "top_k": two, "seed": np.uint64(2**64 - 1)}
    params = SamplingParams(**given, logit_bias={two: half}, min_p=np.float16(0.25))
    assert (params.temperature, params.top_p, params.min_p) == (0.5, 0.5, 0.25)
    assert (params.top_k, params.seed, params.logit_bias) == (2, 2**64 - 1, {2: 0.5})
    values = [params.temperature, params.top_p, params.min_p, params.logit_bias[2]]
    assert {type(value) for value in values} == {float}
    assert {type(value) for value in (params.top_k, params.seed, *params.logit_bias)} == {int}


def test_defaults():
    assert dataclasses.asdict(SamplingParams()) == {
        "temperature": 0.7, "top_k": 0, "top_p": 0.9, "min_p": 0.0, "repetition_penalty": 1.0,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "logit_bias": {}, "seed": None,
        "preset": "cutaway", "processors": (), "chain": None, "typical_p": 1.0, "top_n_sigma": 0.0,
        "xtc_probability": 0.0, "xtc_threshold": 0.1, "dry_multiplier": 0.0, "dry_base": 1.75,
        "dry_allowed_length": 2, "dry_penalty_last_n": -1, "dry_breakers": (),
    }  # fmt: skip


def test_unknown_and_positional_options_raise():
    with pytest.raises(TypeError, match="topk"):
        SamplingParams(topk=1)
    with pytest.raises(TypeError, match="positional"):
        SamplingParams(0.5)


def test_params_cannot_be_changed_after_the_check():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().top_k = -1
