"""Each stage against its definition by brute force, the order of the presets.

Typical, top-n-sigma, XTC and DRY are held against plain definitions over Python numbers.
"""

import math
import statistics
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cutaway.sampling import PRESETS, History, SamplingParams, Stage, apply, build_chain
from cutaway.sampling.chain import run_stages
from cutaway.sampling.definitions import Context
from cutaway.sampling.luck import coin
from support.sampling_oracles import (
    HISTORIES,
    NOBODY,
    SETTINGS,
    chain_of,
    philox_words,
    row,
    rows,
    snapshots,
)


def names(**settings):
    return [stage.name for stage in chain_of(**settings)]


def processed(logits, history=NOBODY, **settings):
    """Survivors and their logits after the chain of these settings."""
    survivors, _ = apply(chain_of(**settings), logits, history)
    return dict(zip(survivors.ids.tolist(), survivors.logits.tolist(), strict=True))


def kept(values, **settings):
    return list(processed(row(values), **settings))


def by_definition(logits, history=NOBODY, **settings):
    return snapshots(chain_of(**settings), logits, history)[-1]


def logs(*probabilities):
    return [math.log(p) for p in probabilities]


# --- filters --------------------------------------------------------------------------------


FILTERS = st.one_of(
    st.fixed_dictionaries({"top_k": st.integers(1, 14)}),
    st.fixed_dictionaries({"top_p": st.floats(1e-9, 1, exclude_max=True)}),
    st.fixed_dictionaries({"min_p": st.floats(1e-9, 0.999)}),
)


@given(rows(), FILTERS)
def test_a_filter_alone_keeps_what_its_definition_does(logits, settings):
    assert processed(logits, **settings) == by_definition(logits, **settings)


CROSSED = logs(0.15, 0.5, 0.05, 0.3)


@pytest.mark.parametrize(
    ("values", "settings", "left"),
    [
        ([1, 2, 1, 2, 1], {"top_k": 3}, [0, 1, 3]),  # ties go to the lowest id
        ([-5, -5, -5], {"top_k": 1}, [0]),
        ([3, -1, 2], {"top_k": 10**9}, [0, 1, 2]),
        (CROSSED, {"top_p": 0.49}, [1]),  # the token that crosses p stays
        (CROSSED, {"top_p": 0.51}, [1, 3]),
        (CROSSED, {"top_p": 0.79}, [1, 3]),
        (CROSSED, {"top_p": 0.81}, [0, 1, 3]),
        (CROSSED, {"top_p": 0.96}, [0, 1, 2, 3]),
        ([1, 7, 7, 3], {"top_p": 1e-9}, [1]),
        ([0.0] * 1000, {"top_p": 1e-9}, [0]),
        ([0.0] * 1000, {"top_p": math.nextafter(1, 0)}, [*range(1000)]),
        ([4, 5, 5, 4.99], {"min_p": math.nextafter(1, 0)}, [1, 2]),  # the best and its ties
    ],
)
def test_filters_at_their_ends(values, settings, left):
    assert kept(values, **settings) == left


@pytest.mark.parametrize(
    ("p", "count"), [(0.25, 1), (math.nextafter(0.25, 1), 2), (0.5, 2), (0.75, 3), (0.76, 4)]
)
def test_top_p_of_equal_tokens_stops_exactly_at_p(p, count):
    """A quarter each, which float64 holds exactly: reaching p is enough, ids ascending."""
    assert kept([-2.5] * 4, top_p=p) == list(range(count))


@pytest.mark.parametrize(
    "settings", [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 0.99}, {"temperature": 100}]
)
def test_a_vocabulary_of_one_survives_everything(settings):
    assert kept([-3.5], **settings) == [0]


# --- stages that change logits --------------------------------------------------------------


def test_temperature_divides_and_bias_is_added_to_its_own_token_only():
    assert processed(row([3, -2]), temperature=0.5) == {0: 6.0, 1: -4.0}
    assert processed(row([1, 2, -3]), logit_bias={2: 100, 0: -0.5}) == {0: 0.5, 1: 2.0, 2: 97.0}
    assert processed(row([1, 2]), logit_bias={2: 100}) == {0: 1.0, 1: 2.0}  # no such token


def test_repetition_penalty_sees_prompt_and_output_once_each():
    """Positive logits are divided, negative multiplied; zero stays; repeats do not add up."""
    history = History([0, 1, 1, 4], [2, 2, 1])
    after = processed(row([6, -6, 3, 3, 0]), history, repetition_penalty=2)
    assert after == {0: 3.0, 1: -12.0, 2: 1.5, 3: 3.0, 4: 0.0}


def test_presence_and_frequency_penalties_see_the_output_alone():
    history = History([0, 0, 3], [1, 2, 2, 2])
    logits = row([1, 1, 1, 1])
    assert processed(logits, history, presence_penalty=0.5) == {0: 1, 1: 0.5, 2: 0.5, 3: 1}
    assert processed(logits, history, frequency_penalty=0.25) == {0: 1, 1: 0.75, 2: 0.25, 3: 1}


def test_repetition_comes_before_what_is_subtracted():
    after = processed(row([4]), History([], [0, 0]), repetition_penalty=2, presence_penalty=1,
                      frequency_penalty=0.25)  # fmt: skip
    assert after == {0: 4 / 2 - 1 - 2 * 0.25}


def test_penalties_ignore_tokens_beyond_the_vocabulary():
    history = History([7], [9, 2])
    assert processed(row([1, 1]), history, presence_penalty=2, repetition_penalty=9) == {0: 1, 1: 1}


# --- whole chains ---------------------------------------------------------------------------


@given(rows(), HISTORIES, SETTINGS)
def test_any_chain_gives_the_survivors_and_logits_of_its_definition(logits, history, settings):
    assert processed(logits, history, **settings) == by_definition(logits, history, **settings)


@given(st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=12), HISTORIES, SETTINGS)
def test_the_logits_of_the_model_are_never_touched(values, history, settings):
    logits = np.array(values, np.float32)  # writable, so that a stage could
    before = logits.tobytes()
    apply(chain_of(**settings), logits, history)
    assert logits.tobytes() == before


def test_order_of_each_preset():
    every = {
        "temperature": 0.5, "top_k": 2, "top_p": 0.5, "min_p": 0.1, "presence_penalty": 1.0,
        "logit_bias": {1: 1.0}, "processors": (lambda ids, logits: logits,), "typical_p": 0.5,
        "top_n_sigma": 1.0, "xtc_probability": 0.5, "dry_multiplier": 0.8,
    }  # fmt: skip
    first, sigma = ["logit_bias", "penalties", "dry", "processors"], ["top_n_sigma"]
    orders = {preset: names(**every, preset=preset) for preset in PRESETS}
    assert orders == {
        "cutaway": [*first, "temperature", *sigma, "top_k", "typical", "top_p", "min_p", "xtc"],
        "hf": [*first, "temperature", "top_k", "top_p", "min_p", "typical", *sigma, "xtc"],
        "vllm": [*first, "temperature", "min_p", "top_k", "top_p", *sigma, "typical", "xtc"],
        "llama.cpp": [*first, *sigma, "top_k", "typical", "top_p", "min_p", "xtc", "temperature"],
        "mlx-lm": [*first, "top_p", "min_p", "xtc", "top_k", *sigma, "typical", "temperature"],
    }  # fmt: skip


def test_top_p_sees_the_temperature_only_where_temperature_comes_first():
    """At T = 2 the odds .81 : .16 : .03 become about .62 : .27 : .12."""
    values = logs(0.81, 0.16, 0.03)
    assert kept(values, temperature=2, top_p=0.8) == [0, 1]
    assert kept(values, temperature=2, top_p=0.8, preset="llama.cpp") == [0]


def test_min_p_before_top_p_shifts_what_top_p_sees():
    """min_p leaves .4 and .3, of which the first holds .57; of everything it holds .4."""
    values = logs(0.4, 0.3, 0.1, 0.1, 0.1)
    assert kept(values, min_p=0.5, top_p=0.55, preset="vllm") == [0]
    assert kept(values, min_p=0.5, top_p=0.55) == [0, 1]


def test_top_k_before_top_p_shifts_what_top_p_sees():
    values = logs(0.4, 0.3, 0.2, 0.1)
    assert kept(values, top_k=2, top_p=0.55) == [0]
    assert kept(values, top_k=2, top_p=0.55, preset="mlx-lm") == [0, 1]


# --- what build_chain leaves out ------------------------------------------------------------


def test_neutral_settings_make_an_empty_chain():
    assert names() == []


@pytest.mark.parametrize(
    ("settings", "stage"),
    [
        ({"logit_bias": {3: -1}}, Stage("logit_bias", {"bias": {3: -1}})),
        ({"temperature": 0.7}, Stage("temperature", {"temperature": 0.7})),
        ({"top_k": 1}, Stage("top_k", {"k": 1})),
        ({"top_p": 0.99}, Stage("top_p", {"p": 0.99})),
        ({"min_p": 0.01}, Stage("min_p", {"p": 0.01})),
        (
            {"repetition_penalty": 1.1},
            Stage("penalties", {"repetition": 1.1, "presence": 0, "frequency": 0}),
        ),
        (
            {"presence_penalty": -1},
            Stage("penalties", {"repetition": 1, "presence": -1, "frequency": 0}),
        ),
        (
            {"frequency_penalty": 0.5},
            Stage("penalties", {"repetition": 1, "presence": 0, "frequency": 0.5}),
        ),
    ],
)
def test_one_setting_puts_one_stage_in_force(settings, stage):
    assert chain_of(**settings) == (stage,)


def test_greedy_drops_temperature_and_filters_but_not_the_rest():
    settings = {"temperature": 0, "top_k": 2, "top_p": 0.5, "min_p": 0.5}
    assert names(**settings) == []
    assert names(**settings, presence_penalty=1, logit_bias={0: 1}) == ["logit_bias", "penalties"]


# -- further filters -------------------------------------------------------------------------------


OFF = {"temperature": 1, "top_p": 1}
CLOSE = 1e-9


def left(logits, history=NOBODY, *, seed=0, position=0, **given):
    """Token id -> processed logit, of those that the chain leaves."""
    chain = build_chain(SamplingParams(**OFF | given))
    last = run_stages(chain, logits, Context(history, None, seed, position))[-1]
    return dict(zip(last.ids.tolist(), last.logits.tolist(), strict=True))


def shares(logits):
    weights = [math.exp(float(z) - float(logits.max())) for z in logits]
    return [w / math.fsum(weights) for w in weights]


@given(rows(), st.floats(0.01, 0.999))
def test_typical_keeps_the_surprises_nearest_to_the_entropy(logits, p):
    each = shares(logits)
    entropy = -math.fsum(q * math.log(q) for q in each)
    distance = [abs(-math.log(q) - entropy) for q in each]
    apart = sorted(distance)
    ties = zip(distance, logits.tolist(), strict=True)
    assume(all(b - a > CLOSE or b == a for a, b in pairwise(apart)))
    assume(len({d for d, _ in ties}) == len({*logits.tolist()}))  # ties are ties of logits
    kept, mass = set(), 0.0
    for token in sorted(range(len(each)), key=lambda i: (distance[i], i)):
        kept.add(token)
        mass += each[token]
        assume(abs(mass - p) > CLOSE)
        if mass >= p:
            break
    assert {*left(logits, typical_p=p)} == kept


def test_typical_may_remove_the_likeliest():
    logits = row([math.log(q) for q in (0.4, 0.2, 0.2, 0.2)])
    assert 0 not in left(logits, typical_p=0.5)


@given(rows(), st.floats(0.01, 5))
def test_top_n_sigma_keeps_what_is_near_the_highest(logits, n):
    values = [float(z) for z in logits]
    bound = max(values) - n * statistics.pstdev(values)
    assume(all(abs(z - bound) > CLOSE for z in values if z != max(values)))
    assert {*left(logits, top_n_sigma=n)} == {i for i, z in enumerate(values) if z >= bound} | {
        i for i, z in enumerate(values) if z == max(values)
    }


@given(rows(), st.sampled_from([0.01, 0.1, 0.3, 0.5]))
def test_xtc_leaves_one_of_the_likely(logits, threshold):
    each = shares(logits)
    assume(all(abs(q - threshold) > CLOSE for q in each))
    likely = [i for i, q in enumerate(each) if q >= threshold]
    likely.sort(key=lambda i: (-float(logits[i]), i))
    expected = {*range(len(each))} - {*likely[:-1]}
    given = {"xtc_probability": 1, "xtc_threshold": threshold}
    assert {*left(logits, **given)} == expected


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**31 - 1))
def test_the_coin_is_luck_of_its_own(seed, position):
    word = philox_words((0, position, 0, 2), (seed % 2**32, seed >> 32))[0]
    assert coin(seed, position) == (word + 0.5) / 2**32


@pytest.mark.parametrize("probability", [0.25, 0.5, 0.9])
def test_xtc_acts_as_often_as_it_says(probability):
    logits = row([3, 3, 3])
    given = {"xtc_probability": probability, "xtc_threshold": 0.1}
    acted = sum(len(left(logits, position=i, seed=9, **given)) == 1 for i in range(4000))
    assert abs(acted / 4000 - probability) < 0.03


WORDS = st.lists(st.integers(0, 3), max_size=14)


@given(WORDS, WORDS, st.integers(1, 4), st.sets(st.integers(0, 3), max_size=1), st.integers(-1, 12))
def test_dry_lowers_what_would_repeat(prompt, output, allowed, breakers, last_n):
    text = prompt + output
    text = text if last_n < 0 else text[len(text) - min(last_n, len(text)) :]
    expected = {}
    for token in range(4):
        longest = 0
        for length in range(1, len(text)):
            ending = text[-length:]
            if breakers & {*ending} or token in breakers:
                break
            again = [*ending, token]
            if any(text[i : i + length + 1] == again for i in range(len(text) - length)):
                longest = length
        fall = 0.8 * 1.75 ** (longest - allowed) if longest >= allowed else 0.0
        expected[token] = pytest.approx(1.0 - fall, abs=1e-4)
    found = left(
        row([1, 1, 1, 1]), History(tuple(prompt), output), dry_multiplier=0.8,
        dry_allowed_length=allowed, dry_breakers=tuple(breakers), dry_penalty_last_n=last_n,
    )  # fmt: skip
    assert found == expected


def test_dry_has_an_upper_end():
    found = left(row([1.0, 2.0]), History((), [0] * 500), dry_multiplier=100, dry_base=10)
    assert found == {0: np.float32(-1e32), 1: 2.0}
