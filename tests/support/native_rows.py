"""Rows, settings and chains to compare the native sampler and its NumPy twin on."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from cutaway.sampling import (
    PRESETS,
    CompiledChain,
    History,
    Observe,
    RowDraw,
    Sampled,
    SamplingParams,
    Stage,
    build_chain,
    sample,
)
from cutaway.sampling.native import TWIN

try:
    from cutaway.base import _native
except ImportError:
    _native = None  # type: ignore[assignment]

needs_native = pytest.mark.skipif(_native is None, reason="cutaway.base._native was not built")
extreme_rows = [
    needs_native,
    pytest.mark.filterwarnings("ignore:overflow"),
    pytest.mark.filterwarnings("ignore:invalid value"),
    pytest.mark.filterwarnings("ignore:divide by zero"),
]
"""Marks for tests on whose rows NumPy warns."""
TIERS = _native.tiers().split(",") if _native else []

# -- rows ------------------------------------------------------------------------------------


def draw_noise(n: int, seed: int, scale: float, step: float | None, peaks: int) -> np.ndarray:
    """Return noise of this scale, rounded to a step (ties), with some tokens far above the rest."""
    rng = np.random.default_rng(seed)
    x = rng.normal(0, scale, n)
    x[rng.integers(0, n, peaks)] += 5 * scale
    return (x if step is None else np.round(x / step) * step).astype(np.float32)


EXTREMES = st.sampled_from(
    [0.0, -0.0, 1e-45, -1e-45, 1e-40, 1.0, 1e4, -1e4, 1e9, 2e9, -3e30, 3e30, 16777216.0]
)
VALUES = st.one_of(
    st.integers(-12, 12).map(lambda n: n / 4), st.floats(-30, 30, width=32), EXTREMES
)
SHORT = st.lists(VALUES, min_size=1, max_size=40).map(lambda v: np.array(v, np.float32))
SCALES = st.sampled_from([1e-40, 1e-6, 0.01, 0.5, 3.0, 20.0, 1e4, 1e20])
STEPS = st.sampled_from([None, None, 0.125, 1.0, 50.0])
SIZES = st.one_of(
    st.integers(1, 200), st.integers(200, 5000), st.sampled_from([16, 64, 4096, 4097])
)
LONG = st.builds(draw_noise, SIZES, st.integers(0, 2**32), SCALES, STEPS, st.integers(0, 30))
EQUAL = st.builds(lambda n, v: np.full(n, v, np.float32), SIZES, VALUES)
ROWS = st.one_of(SHORT, LONG, LONG, EQUAL)

# -- settings ----------------------------------------------------------------------------------

SETTINGS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0, 0.01, 0.3, 0.7, 1, 1, 1.7, 100]),
        "top_k": st.sampled_from([0, 0, 1, 2, 7, 40, 300, 1024, 1500, 4999, 2**40]),
        "top_p": st.sampled_from([1, 1e-9, 0.3, 0.9, 0.9, 0.999, 1 - 1e-9, 1 - 2**-53]),
        "min_p": st.sampled_from([0, 0, 5e-324, 1e-300, 1e-9, 0.05, 0.5, 1 - 2**-53]),
        "preset": st.sampled_from(sorted(PRESETS)),
    },
    optional={
        "repetition_penalty": st.sampled_from([0.01, 0.5, 1.1, 1.3, 100]),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "logit_bias": st.dictionaries(st.integers(0, 60), st.floats(-100, 100), max_size=5),
        "typical_p": st.sampled_from([1e-9, 0.2, 0.9, 1 - 2**-53]),
        "top_n_sigma": st.sampled_from([1e-9, 0.5, 1, 3, 100]),
        "xtc_probability": st.sampled_from([0.5, 1]),
        "xtc_threshold": st.sampled_from([1e-9, 0.01, 0.1, 0.5, 1]),
        "dry_multiplier": st.sampled_from([0.8, 100]),
        "dry_base": st.sampled_from([1, 1.75, 10]),
        "dry_allowed_length": st.integers(1, 4),
        "dry_penalty_last_n": st.integers(-1, 30),
        "dry_breakers": st.lists(st.integers(0, 3), max_size=2),
    },
)
IDS = st.one_of(
    st.lists(st.one_of(st.integers(0, 60), st.integers(0, 9000)), max_size=30),
    st.lists(st.integers(0, 3), max_size=40),  # repeats itself
)
SEEDS = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 2**32 - 1, 2**32, 2**64 - 1]))
TOPS = st.sampled_from([0, 0, 1, 2, 20, 300, 1000])
POSITIONS = st.one_of(st.integers(0, 5000), st.integers(0, 2**31 - 1))


@st.composite
def draws(draw: st.DrawFn) -> RowDraw:
    settings: dict[str, Any] = draw(SETTINGS)
    params = SamplingParams(**settings)
    chain = build_chain(params)
    if draw(st.booleans()):
        chain = tuple(draw(st.permutations(chain)))  # beyond the presets
    prompt, output = tuple(draw(IDS)), draw(IDS)
    observe = observing(draw(st.booleans()), draw(TOPS))
    compiled, history = CompiledChain(chain, params, prompt), History(prompt, output)
    return RowDraw(compiled, history, draw(SEEDS), draw(POSITIONS), observe)


def observing(stages: bool, top: int) -> Observe | None:
    if stages or top:
        return Observe(top=top, stages=stages, after_chain=top > 0)
    return None


def row_draw(
    chain: tuple[Stage, ...] | None = None,
    *,
    seed: int = 5,
    position: int = 100,
    stages: bool = False,
    top: int = 0,
    history: tuple[Sequence[int], Sequence[int]] = ((), ()),
    **settings: Any,
) -> RowDraw:
    params = SamplingParams(**settings)
    compiled = CompiledChain(build_chain(params) if chain is None else chain, params, history[0])
    return RowDraw(compiled, History(*history), seed, position, observing(stages, top))


# -- the two ------------------------------------------------------------------------------------


def draw_by_twin(logits: np.ndarray, draws: Sequence[RowDraw]) -> list[Sampled | Exception]:
    """Draw every row by the NumPy twin."""
    return sample(logits, draws, tier=TWIN)


def natively(logits: np.ndarray, draws: Sequence[RowDraw], tier: str) -> list[Sampled | Exception]:
    """Draw by the native routine; fail if it would pass a row on to the twin."""
    results = _native.sample_rows(logits, list(draws), tier)
    assert [status for status, *_ in results] == [0] * len(draws)
    return sample(logits, draws, tier=tier)


def assert_as_twin(logits: np.ndarray, draws: Sequence[RowDraw]) -> None:
    """Check that every tier's native draws equal the twin's, and none is passed on to the twin."""
    expected = draw_by_twin(logits, draws)
    for tier in TIERS:
        assert same(natively(logits, draws, tier), expected), tier


def same(a: Sequence[object], b: Sequence[object]) -> bool:
    """Return whether values and types are equal to the last bit; NaN equals NaN."""
    return repr(a) == repr(b)
