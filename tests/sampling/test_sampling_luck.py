"""Luck: Philox against its published vectors, and the rule that gives each token its number.

The luck in plain Python has the bits of the engine's own.
"""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.sampling import derive_seed, luck, seeded_luck, trial_seed
from cutaway.sampling.fixed_math import scalar_log
from support.sampling_oracles import gumbel_of, philox_words, uniform_of

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
