"""Typical, top-n-sigma, XTC and DRY: against plain definitions over Python numbers."""

import math
import statistics
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cutaway.sampling import History, SamplingParams, build_chain
from cutaway.sampling.chain import run_stages
from cutaway.sampling.definitions import Context
from cutaway.sampling.luck import coin
from support.sampling_oracles import NOBODY, philox_words, row, rows

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
