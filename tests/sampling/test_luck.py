"""Luck: Philox against its published vectors, and the rule that gives each token its number.

The luck in plain Python has the bits of the engine's own.
"""

import json
import math
import random
import sys
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cutaway.sampling import derive_seed, luck, seeded_luck, trial_seed
from cutaway.sampling.fixed_math import (
    cosine,
    dots,
    exp,
    log,
    log_sum_exp,
    ordered_sum,
    scalar_log,
)
from support.sampling_oracles import e_to, gumbel_of, ln, philox_words, uniform_of

# Random123, tests/kat_vectors, the lines "philox4x32 10": counter, key, words
KNOWN_ANSWERS = [
    ("00000000 " * 4, "00000000 " * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff " * 4, "ffffffff " * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip
WORD = st.integers(0, 2**32 - 1)
SEED = st.integers(0, 2**64 - 1)
POSITION = st.integers(0, 2**31 - 1)
IDS = st.lists(st.integers(0, 300_000), min_size=1, max_size=20, unique=True)


def hexed(text):
    return [int(word, 16) for word in text.split()]


def room_philox(counters, key):
    columns = np.array(counters, np.uint64).T
    words = luck.philox((columns[0], columns[1], columns[2], columns[3]), key)
    return np.stack(words).T.tolist()


def uniform(seed, position, ids):
    return luck.uniform(seed, position, np.array(ids, np.int64)).tolist()


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_philox_and_its_oracle_give_the_published_words(counter, key, words):
    assert room_philox([hexed(counter)], hexed(key)) == [hexed(words)]
    assert philox_words(hexed(counter), hexed(key)) == hexed(words)


@given(st.lists(st.tuples(WORD, WORD, WORD, WORD), min_size=1, max_size=8), WORD, WORD)
def test_many_counters_at_once_equal_one_at_a_time(counters, low, high):
    expected = [philox_words(counter, (low, high)) for counter in counters]
    assert room_philox([list(counter) for counter in counters], (low, high)) == expected


@given(SEED, POSITION, IDS)
def test_uniform_is_the_documented_rule(seed, position, ids):
    got = [Fraction(u) for u in uniform(seed, position, ids)]
    assert got == [uniform_of(seed, position, token_id) for token_id in ids]


@given(SEED, POSITION, IDS, st.data())
def test_luck_does_not_depend_on_the_company(seed, position, ids, data):
    lucks = dict(zip(ids, uniform(seed, position, ids), strict=True))
    fewer = data.draw(st.lists(st.sampled_from(ids), min_size=1))
    assert uniform(seed, position, fewer) == [lucks[token_id] for token_id in fewer]


def test_luck_of_nobody_is_empty():
    assert uniform(1, 2, []) == []


@pytest.mark.parametrize(
    ("word", "u"), [(0, Fraction(1, 2**33)), (2**32 - 1, 1 - Fraction(1, 2**33))]
)
def test_extreme_words_stay_inside_0_and_1(monkeypatch, word, u):
    monkeypatch.setattr(
        luck, "philox", lambda counter, key: (counter[0] * 0 + np.uint64(word),) * 4
    )
    assert [Fraction(got) for got in uniform(0, 0, [0, 1, 2, 3])] == [u] * 4
    assert np.isfinite(luck.gumbel(0, 0, np.arange(4))).all()


@given(SEED, POSITION, st.integers(0, 300_000))
def test_gumbel_is_minus_log_of_minus_log(seed, position, token_id):
    expected = float(gumbel_of(seed, position, token_id))
    got = luck.gumbel(seed, position, np.array([token_id]))[0]
    assert got == pytest.approx(expected, rel=1e-15, abs=1e-15)


def test_seed_position_and_token_all_matter():
    base = uniform(1, 2, [3])
    others = [uniform(*at) for at in ((2, 2, [3]), (1 + 2**32, 2, [3]), (1, 3, [3]), (1, 2, [4]))]
    assert base not in others
    assert uniform(1, 2, [3]) != uniform(2, 1, [3])


def test_one_row_has_no_repeated_luck():
    """131,072 words of 32 bits: two equal ones are expected twice, a cycle would give thousands."""
    values = luck.uniform(9, 5, np.arange(131_072))
    assert len(values) - len(np.unique(values)) < 20


@given(SEED)
def test_the_first_sample_uses_the_seed_itself(seed):
    assert derive_seed(seed, 0) == seed


@given(SEED, st.integers(1, 2**31))
def test_derived_seed_is_philox_of_n_and_seed(seed, n):
    low, high, *_ = philox_words((n, 0, 0, 1), (seed % 2**32, seed // 2**32))
    assert derive_seed(seed, n) == low + 2**32 * high


@given(SEED, st.integers(0, 2**31))
def test_a_trial_s_seed_is_philox_for_trials(seed, n):
    low, high, *_ = philox_words((n, 0, 0, 4), (seed % 2**32, seed // 2**32))
    assert trial_seed(seed, n) == low + 2**32 * high


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**64 - 1])
def test_derived_seeds_are_distinct_seeds(seed):
    seeds = [derive_seed(seed, n) for n in range(500)]
    assert len(set(seeds)) == 500
    assert all(0 <= derived < 2**64 for derived in seeds)
    assert not set(seeds[1:]) & {derive_seed(seed ^ 1, n) for n in range(500)}


# -- in plain Python -------------------------------------------------------------------------------


VECTORS = json.loads((Path(__file__).parents[2] / "docs" / "luck.json").read_text())
words = st.integers(0, 2**32 - 1)
seeds = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("case", VECTORS["philox"], ids=lambda case: str(case["key"]))
def test_philox_has_its_authors_vectors(case):
    assert seeded_luck.philox(tuple(case["counter"]), tuple(case["key"])) == tuple(case["words"])


@pytest.mark.parametrize("case", VECTORS["tokens"], ids=lambda case: case["seed"])
def test_the_vectors_that_others_test_with(case):
    at = int(case["seed"]), case["position"], case["token_id"]
    assert seeded_luck.uniform(*at).hex() == case["uniform"]
    assert seeded_luck.gumbel(*at).hex() == case["gumbel"]


@given(seeds, words, st.lists(words, min_size=1, max_size=8))
def test_it_is_the_luck_of_the_engine(seed, position, ids):
    array = np.array(ids, np.int64)
    assert [seeded_luck.gumbel(seed, position, i) for i in ids] == list(
        luck.gumbel(seed, position, array)
    )


@given(st.floats(1e-300, 1e300))
def test_the_logarithm_has_the_same_bits(x):
    assert seeded_luck.log(x) == scalar_log(x)


def test_equal_sums_go_to_the_lowest_id(monkeypatch):
    monkeypatch.setattr(seeded_luck, "gumbel", lambda *_: 0.0)
    assert seeded_luck.draw({9: 1.0, 4: 1.0, 7: 0.5}, 1, 1) == 4


def test_it_imports_nothing_of_ours():
    source = Path(seeded_luck.__file__).read_text()
    assert "cutaway." not in "".join(x for x in source.splitlines(True) if "import" in x[:7])


def test_a_model_draws_by_it(tiny):
    """Every token of a text is argmax(logit + noise), by the plain module alone."""
    settings = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 6, "ignore_eos": True}
    done = tiny.generate("ab", seed=11, **settings)
    ids = [*done.prompt_token_ids, *done.token_ids]
    rows = tiny.logits(ids[:-1], len(done.prompt_token_ids) - 1)
    for n, row in enumerate(rows):
        drawn = seeded_luck.draw(dict(enumerate(row.tolist())), 11, len(done.prompt_token_ids) + n)
        assert drawn == done.token_ids[n]


# -- sampling fixed math ---------------------------------------------------------------------------

# exp, log and sums: close to the truth, and the same bits whatever the shape they come in.


EXPONENTS = st.floats(-700, 0)
NORMALS = st.floats(sys.float_info.min, sys.float_info.max)
NEAR_ONE = st.floats(0.5, 2)
LENGTHS = [0, 1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 4_097, 49_152]


def ulps(got, truth):
    return float(abs(Decimal(got) - truth) / Decimal(math.ulp(float(truth))))


def numbers(count, seed=0):
    """Numbers of very different sizes, so that any other order of adding shows."""
    rng = random.Random(seed)
    return [rng.uniform(-1, 1) * 10 ** rng.uniform(-8, 8) for _ in range(count)]


def sum_in_documented_order(values):
    """16 interleaved lanes, each added in order; then halves are added until one is left."""
    lanes = [0.0] * 16
    for i, value in enumerate(values):
        lanes[i % 16] += value
    for half in (8, 4, 2, 1):
        lanes = [lanes[i] + lanes[i + half] for i in range(half)]
    return lanes[0]


@given(EXPONENTS)
def test_exp_is_within_2_ulp(x):
    assert ulps(float(exp(np.array([x]))[0]), e_to(x)) <= 2


@given(EXPONENTS)
def test_exp_agrees_with_libm(x):
    assert float(exp(np.array([x]))[0]) == pytest.approx(math.exp(x), rel=1e-15, abs=0)


def test_exp_at_its_ends():
    far = exp(np.array([-700.0, -701.0, -1e300, -np.inf]))
    assert far.tolist() == [far[0]] * 4
    assert 0 < far[0] < 1e-300
    assert exp(np.array([0.0, -0.0])).tolist() == [1.0, 1.0]


@given(st.one_of(NORMALS, NEAR_ONE))
@example(1.0628253170137965)  # 2.74, the worst of 300,000
def test_log_is_within_3_ulp(x):
    assert ulps(scalar_log(x), ln(x)) <= 3


@given(st.one_of(NORMALS, NEAR_ONE))
def test_log_agrees_with_libm(x):
    assert scalar_log(x) == pytest.approx(math.log(x), rel=1e-15, abs=0)


@pytest.mark.parametrize("at", [1.0, math.sqrt(0.5), 2.0, sys.float_info.min])
def test_log_where_its_pieces_meet(at):
    for x in (math.nextafter(at, 9), at, max(math.nextafter(at, 0), sys.float_info.min)):
        assert x == 1 or ulps(scalar_log(x), ln(x)) <= 3
    assert scalar_log(1.0) == 0.0


@given(st.lists(EXPONENTS, min_size=1, max_size=40))
def test_a_vector_gets_the_bits_of_its_elements(xs):
    """No element may depend on where in a SIMD register it stands, or on its neighbours."""
    alone = [float(exp(np.array([x]))[0]) for x in xs]
    assert exp(np.array(xs)).tolist() == alone
    assert log(np.array(alone)).tolist() == [scalar_log(y) for y in alone]


@pytest.mark.parametrize(
    ("x", "bits"),
    [
        (-0.1, "0x1.cf46d99d52b3ap-1"),
        (-1.0, "0x1.78b56362cef38p-2"),
        (-9.75, "0x1.e902d64e003bbp-15"),
        (-123.456, "0x1.da9fb9e4ee720p-179"),
        (-699.9, "0x1.32132bfae6577p-1010"),
    ],
)
def test_bits_of_exp_are_pinned(x, bits):
    assert float(exp(np.array([x]))[0]).hex() == bits


@pytest.mark.parametrize(
    ("x", "bits"),
    [
        (2.0**-33, "-0x1.6dfb516f20bbfp+4"),
        (0.3, "-0x1.34378fcbda721p+0"),
        (0.999, "-0x1.064670d979b73p-10"),
        (3.0, "0x1.193ea7aad030bp+0"),
        (22.9, "0x1.90c9182313c70p+1"),
    ],
)
def test_bits_of_log_are_pinned(x, bits):
    assert scalar_log(x).hex() == bits


@pytest.mark.parametrize("length", LENGTHS)
def test_sum_is_the_documented_order_bit_for_bit(length):
    values = numbers(length)
    assert ordered_sum(np.array(values)) == sum_in_documented_order(values)


@given(st.lists(st.floats(-1e300, 1e300), max_size=80))
def test_sum_of_anything_is_the_documented_order(values):
    assert ordered_sum(np.array(values)) == sum_in_documented_order(values)


def test_the_order_of_a_sum_shows():
    """The control of the two tests above: NumPy's own order gives other bits."""
    values = [numbers(1_000, seed) for seed in range(20)]
    assert any(float(np.sum(np.array(v))) != sum_in_documented_order(v) for v in values)


@pytest.mark.parametrize("length", LENGTHS)
def test_sum_does_not_depend_on_memory_layout(length):
    values = np.array(numbers(length))
    strided = np.zeros((length, 3))
    strided[:, 1] = values
    assert ordered_sum(strided[:, 1]) == ordered_sum(values)


@given(st.lists(st.floats(-300, 300), min_size=1, max_size=40))
def test_log_sum_exp_is_the_log_of_the_sum(xs):
    truth = ln(sum((e_to(x) for x in xs), Decimal(0)))
    assert log_sum_exp(np.array(xs)) == pytest.approx(float(truth), rel=1e-14, abs=1e-14)


@pytest.mark.parametrize("xs", [[], [-np.inf], [-np.inf] * 17])
def test_log_sum_exp_of_nothing_is_minus_infinity(xs):
    assert log_sum_exp(np.array(xs)) == -np.inf


def test_log_sum_exp_neither_overflows_nor_counts_the_absent():
    assert log_sum_exp(np.array([1e5])) == 1e5
    assert log_sum_exp(np.array([-1e5, -np.inf])) == -1e5
    assert log_sum_exp(np.array([3e4, 3e4])) == pytest.approx(3e4 + math.log(2), rel=1e-15)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 70))
def test_a_dot_product_adds_in_order_whatever_is_beside_it(seed, rows, width):
    rng = np.random.default_rng(seed)
    a, b = (rng.normal(size=(rows, width)).astype(np.float32) for _ in range(2))
    table = dots(a[:, None], b)
    for i, j in ((0, 0), (rows - 1, rows // 2)):
        expected = 0.0
        for x, y in zip(a[i].tolist(), b[j].tolist(), strict=True):
            expected += x * y
        assert table[i, j] == expected == dots(a[i], b[j])
    assert dots(a, b).tolist() == table.diagonal().tolist()


def test_a_cosine_is_that_of_the_angle():
    a, b = np.array([3.0, 4.0]), np.array([4.0, 3.0])
    assert cosine(a, b) == pytest.approx(24 / 25)
    assert cosine(a, 7 * a) == 1
    assert cosine(np.zeros(2), a) == 0
    same = np.random.default_rng(0).normal(size=(20, 384)).astype(np.float32)
    assert cosine(same, same).tolist() == [1.0] * 20
