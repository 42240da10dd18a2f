"""The luck in plain Python: the published vectors, and the bits of the engine's own luck."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.sampling import luck, seeded_luck
from cutaway.sampling.fixed_math import scalar_log

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
