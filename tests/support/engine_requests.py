"""Requests of every kind for the mock engine, as hypothesis draws them."""

from hypothesis import strategies as st

from cutaway.engine import RunParams, StopParams
from cutaway.sampling import Observe, SamplingParams
from support.engine_mock import MockRequest
from support.mock_backend import END, LETTERS, narrow, noise

CONTEXT = 24

PROMPTS = st.lists(st.sampled_from(LETTERS), min_size=1, max_size=CONTEXT - 1).map(tuple)
SAMPLING = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0, 0.7, 3]),
    repetition_penalty=st.sampled_from([1.0, 1.5]),
    seed=st.integers(0, 3),
)
STOPS = st.builds(
    StopParams,
    max_tokens=st.integers(1, CONTEXT),
    stop=st.sampled_from([(), ("ab",), ("é", "aa"), ("bbb", "aé")]),
    stop_token_ids=st.sampled_from([(), (), (ord("b"),), (END,)]),
    ignore_eos=st.booleans(),
)
RUNS = st.builds(
    RunParams,
    kv_cache=st.sampled_from([True, True, True, False]),
    cache_prompt=st.sampled_from([True, True, False]),
    priority=st.integers(-1, 1),
    speculate=st.sampled_from(["off", "ngram", "jacobi", "draft"]),
    forced=st.just(()) | st.lists(st.sampled_from(LETTERS), max_size=12).map(tuple),
)
OBSERVES = st.builds(
    Observe,
    top=st.sampled_from([0, 0, 2]),
    stages=st.booleans(),
    after_chain=st.booleans(),
    prompt_top=st.sampled_from([0, 0, 2]),
)
REQUESTS = st.builds(MockRequest, PROMPTS, SAMPLING, STOPS, RUNS, OBSERVES)


WAYS = {
    "plain": ({}, {}),
    "n-gram": ({"speculate": "ngram"}, {}),
    "look-ahead": ({"speculate": "jacobi"}, {}),
    "draft model": ({"speculate": "draft"}, {"draft": narrow}),
    "no KV cache": ({"kv_cache": False}, {}),
    "no prefix cache": ({}, {"prefix_cache": False}),
    "a row at a time": ({}, {"rows": 1}),
    "few blocks": ({}, {"kv_blocks": 6}),
    "small blocks": ({}, {"kv_blocks": 40, "block": 4}),
    "states": ({"speculate": "ngram"}, {"kv_blocks": 40, "block": 4, "has_state": True}),
    "few states": ({"speculate": "jacobi"}, {"kv_blocks": 6, "has_state": True}),
    "windows": ({"speculate": "ngram"}, {"kv_blocks": 40, "block": 4, "window": 7}),
}
"""Ways to compute a constrained text: run parameters, and arguments of ``make_engine``."""


def often_wrong(tokens):
    """A draft model that agrees with ``narrow`` on about half of all texts."""
    return narrow(tokens) if sum(tokens) % 2 else noise(tokens)
