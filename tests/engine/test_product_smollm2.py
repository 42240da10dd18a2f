"""The contract on SmolLM2: every two values of all that must not change a bit, together."""

from collections import Counter
from dataclasses import replace
from itertools import combinations, islice, product

import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

from cutaway.engine import ConstraintParams, StopParams
from cutaway.sampling import SamplingParams
from support.ways import Alone, Trial, Way, new_draft, new_engine, open_llm

pytestmark = pytest.mark.model
KV_BLOCKS = 20
STOPS = StopParams(max_tokens=20, ignore_eos=True)
PASSAGE = "The keeper wrote a line every evening, and one day he found that someone had answered. "
CHAINS = {
    "greedy": SamplingParams(temperature=0, seed=7),
    "luck": SamplingParams(temperature=1, top_p=1, seed=7),
    "penalties": SamplingParams(temperature=1, top_p=0.9, repetition_penalty=1.1, seed=7),
}
SCHEMA = {
    "type": "array", "minItems": 2, "items": {
        "type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"], "additionalProperties": False,
    },
}  # fmt: skip
GRAMMAR = ConstraintParams(json_schema=SCHEMA, json_compact=True)
VALUES = {
    "company": ("alone", "beside", "late"),
    "prefix": ("cold", "warm", "evicted"),
    "preempted": (False, True),
    "speculate": ("off", "ngram", "jacobi", "itself"),
    "n": (1, 3),
    "rows": (512, 33, 7),
    "threads": (1, 2, 3),
    "chain": tuple(CHAINS),
    "grammar": (False, True),
}


def pairs(values):
    return set(combinations(enumerate(values), 2))


def pairwise(dimensions):
    """Few of the product's members, such that any two values of two dimensions meet in one."""
    members = {values: pairs(values) for values in product(*dimensions)}
    missing = set().union(*members.values())
    while missing:
        best = max(members, key=lambda values: len(members[values] & missing))
        missing -= members[best]
        yield best


def test_every_two_values_meet():
    chosen = list(pairwise(VALUES.values()))
    assert set().union(*map(pairs, chosen)) == set().union(*map(pairs, product(*VALUES.values())))
    assert len(chosen) < 20


@pytest.fixture(scope="module")
def llms(smollm2_path):
    """By the number of threads."""
    return {threads: open_llm(smollm2_path, threads, KV_BLOCKS) for threads in VALUES["threads"]}


@pytest.fixture(scope="module")
def draft(smollm2_path):
    return new_draft(open_llm(smollm2_path, 2, KV_BLOCKS))


@pytest.fixture(scope="module")
def alone(smollm2_path):
    return Alone(new_engine(open_llm(smollm2_path, 2, KV_BLOCKS)))


@pytest.mark.parametrize("most", [8, pytest.param(None, marks=pytest.mark.slow)])
def test_no_way_of_writing_changes_a_text(llms, draft, alone, most):
    """Every text in every way: the same tokens from the same logits, of neighbours too."""
    happened = {}
    for *values, rows, threads, chain, grammar in islice(pairwise(VALUES.values()), most):
        way, llm = Way(*values), llms[threads]
        words = llm.tokenize(PASSAGE * 5)
        neighbours = tuple(llm.tokenize("The sky is")), tuple(words[3:45])
        engine = new_engine(llm, rows=rows)
        stops = replace(STOPS, ignore_eos=not grammar)
        trial = Trial(engine, {"itself": draft}, tuple(words[:75]), neighbours, stops)
        trial.constraint = GRAMMAR if grammar else ConstraintParams()
        counts = trial.write(way, CHAINS[chain])
        for request, wrote in trial.texts():
            assert wrote == alone.write(request), (way, rows, threads, chain, grammar)
        assert (counts["preempted"] > 0) == way.preempted, (way, rows, threads, chain, grammar)
        happened.setdefault(way.speculate, Counter()).update(counts)
    plain = happened.pop("off")
    assert plain["proposed"] == 0
    if most is None:  # the first ones find nothing in the cache
        assert plain["evicted"] > 0
    assert all(counts["evicted"] > 0 for counts in happened.values())
    assert 0 < happened["ngram"]["accepted"] < happened["ngram"]["proposed"]
    assert happened["jacobi"]["proposed"] > 0
    assert 0 < happened["itself"]["accepted"] == happened["itself"]["proposed"]
