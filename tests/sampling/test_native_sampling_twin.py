"""Native sampler and NumPy twin: equal in every figure, on every instruction set."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.sampling import PRESETS
from support.native_rows import assert_as_twin, extreme_rows, made, row_draw

pytestmark = extreme_rows


CHAINS = {
    "default": {},
    "greedy": {"temperature": 0},
    "pure": {"temperature": 1, "top_p": 1},
    "hot": {"temperature": 2.0, "top_p": 1},
    "top_k": {"top_k": 40, "top_p": 1},
    "many": {"top_k": 3000, "top_p": 0.95},
    "most": {"top_k": 30000, "top_p": 0.99, "temperature": 1.5},
    "min_p": {"min_p": 0.05, "top_p": 1, "temperature": 1},
    "tight": {"top_p": 1 - 1e-12, "temperature": 1},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.1},
    "greedy penalties": {"repetition_penalty": 1.2, "temperature": 0},
    "bias": {"logit_bias": {0: 100.0, 49151: -3.25}},
    "typical": {"typical_p": 0.9, "top_p": 1},
    "sigma": {"top_n_sigma": 1.5, "top_p": 1},
    "xtc": {"xtc_probability": 1, "xtc_threshold": 0.01, "top_p": 1},
    "dry": {"dry_multiplier": 0.8, "dry_breakers": (12,), "temperature": 0},
}
HISTORY = (tuple(range(0, 4000, 7)), [5, 5, 6, 49151, 12, 5, 5, 6])


@pytest.mark.parametrize("name", CHAINS)
def test_a_whole_vocabulary(name):
    shapes = [(3.0, None, 0), (1.0, None, 300), (0.01, None, 0), (3.0, 0.25, 5), (400.0, None, 1)]
    for i, shape in enumerate(shapes):
        logits = made(49152, i, *shape)[None]
        for ledger in (False, True):
            asked = [row_draw(history=HISTORY, seed=i, position=i, stages=ledger, **CHAINS[name])]
            assert_as_twin(logits, asked)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(4097, 12000), st.integers(0, 2**32), st.sampled_from([0.0, 0.01, 0.5, 1.0, 4.0]),
    st.sampled_from([None, 0.25]), st.floats(0, 1, exclude_min=True), st.booleans(),
)  # fmt: skip
def test_top_p_of_many_cuts_where_the_definition_does(n, seed, spread, grid, share, ledger):
    """Flat rows, and ties at the very target: all equal, with p a whole number of tokens."""
    logits = made(n, seed, spread, grid, 3)[None]
    p = max(1, round(share * n)) / n if spread == 0 else share
    asked = [row_draw(temperature=1, top_p=p, seed=seed, stages=ledger)]
    assert_as_twin(logits, asked)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_on_a_whole_vocabulary(preset):
    logits = made(49152, 9, 2.0, None, 50)[None]
    given = {"top_k": 200, "top_p": 0.8, "min_p": 0.02, "temperature": 1.4, "preset": preset}
    asked = [row_draw(stages=True, history=HISTORY, repetition_penalty=1.1, **given)]
    assert_as_twin(logits, asked)


def test_a_large_vocabulary():
    logits = np.stack([made(262144, 1, 3.0, None, 9), made(262144, 2, 3.0, 0.5, 0)])
    asked = [row_draw(), row_draw(temperature=1, top_p=1)]
    assert_as_twin(logits, asked)


def test_luck_alone_decides_between_equals():
    """All logits equal: the bound that spares logarithms must never spare the winner."""
    logits = np.zeros((1, 5000), np.float32)
    for position in range(150):
        asked = [row_draw(position=position, temperature=1, top_p=1)]
        assert_as_twin(logits, asked)


@pytest.mark.parametrize("spread", [0.5, 3.0, 12.0])
def test_pure_sampling_draws_the_twins_token_at_many_positions(spread):
    logits = made(3001, 4, spread, None, 0)[None]
    for position in range(100):
        asked = [row_draw(position=position, seed=2**40 + 1, temperature=1, top_p=1)]
        assert_as_twin(logits, asked)


@pytest.mark.parametrize("value", [2e9, 3e30, -2e9, 1e-45])
def test_scores_too_coarse_for_luck_go_to_the_lowest_id(value):
    logits = np.full((1, 700), value, np.float32)
    logits[0, 0] = -3e30
    asked = [row_draw(temperature=1, top_p=1, seed=s) for s in range(9)]
    rows = np.repeat(logits, 9, axis=0)
    assert_as_twin(rows, asked)


def test_both_zeros_are_one_value():
    logits = np.array([[-1.0, -0.0, 0.0, -0.0, 0.0, -2.0]], np.float32)
    for chain in ({"temperature": 0}, {"top_k": 2}, {"top_p": 0.3, "temperature": 1}):
        asked = [row_draw(stages=True, **chain)]
        assert_as_twin(logits, asked)
