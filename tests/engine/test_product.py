"""The contract on a small model: the full product of all that must not change a bit."""

from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from support.engine_mock import score

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")


from cutaway.engine import ConstraintParams, RunParams, Step, StopParams
from cutaway.sampling import SamplingParams
from cutaway.sampling.observe import START, chain_hash, row_hash
from support.engine_mock import MockRequest
from support.random_granite_hybrid import write_tiny_granite_hybrid
from support.random_lfm2 import write_tiny_lfm2
from support.random_llama import write_tiny_llama
from support.random_qwen35 import write_tiny_qwen35
from support.random_rwkv7 import write_tiny_rwkv7
from support.ways import Alone, Trial, Way, new_draft, new_engine, open_llm, repeating

SHAPE = {"heads": 4, "kv_heads": 2, "head_dim": 16, "hidden": 64, "feed_forward": 96}
KV_BLOCKS = 18
WHOLE: dict[str, int] = {}
WINDOWS = {"llama.attention.sliding_window": 56, "llama.attention.sliding_window_pattern": 2}
"""A text's first block is let go of while it is written, and not before its prompt is read."""
PROMPT = repeating(0, 20, 75)
NEIGHBOURS = (repeating(1, 5, 5), repeating(2, 7, 41))
STOPS = StopParams(max_tokens=24, ignore_eos=True)
FEW = dict.fromkeys(range(70, 74), 12.0)  # a text of few words repeats itself: drafts are right
PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2}
CHAINS = {
    "greedy": SamplingParams(temperature=0, logit_bias=FEW, seed=7),
    "luck": SamplingParams(temperature=1, top_p=1, logit_bias=FEW, seed=7),
    "penalties": SamplingParams(temperature=1, top_p=0.9, logit_bias=FEW, seed=7, **PENALTIES),
}
SCHEMA = {
    "type": "array", "minItems": 3, "items": {
        "type": "object", "properties": {"n": {"enum": ["a", "b", "ab"]}}, "required": ["n"],
        "additionalProperties": False,
    },
}  # fmt: skip
"""Of a text that is long enough, has tokens without a choice, and repeats itself."""
GRAMMARS = {
    "any text": ConstraintParams(),
    "grammar": ConstraintParams(json_schema=SCHEMA, json_compact=True),
}
WAYS = [
    Way(*values)
    for values in product(
        ("alone", "beside", "late"),
        ("cold", "warm", "evicted"),
        (False, True),
        ("off", "ngram", "jacobi", "draft", "itself"),
        (1, 3),
    )
]


@pytest.fixture(scope="module", params=[WHOLE])
def paths(tmp_path_factory, request):
    """The model, and one of its weights in another format: they often agree."""
    folder = tmp_path_factory.mktemp("product")
    return {
        name: write_tiny_llama(
            folder / f"{name}.gguf", **SHAPE, context=256, format=format, metadata=request.param
        )
        for name, format in (("target", "Q8_0"), ("draft", "Q4_0"))
    }


@pytest.fixture(scope="module")
def alone(paths):
    return Alone(new_engine(open_llm(paths["target"], 1, KV_BLOCKS)))


@pytest.fixture(scope="module")
def drafts(paths):
    return {
        "draft": new_draft(open_llm(paths["draft"], 1, KV_BLOCKS)),
        "itself": new_draft(open_llm(paths["target"], 1, KV_BLOCKS)),
    }


@pytest.fixture
def trial(paths, drafts, threads, rows):
    engine = new_engine(open_llm(paths["target"], threads, KV_BLOCKS), rows=rows)
    return Trial(engine, drafts, PROMPT, NEIGHBOURS, STOPS)


ALSO = [(1, 512), (1, 33), (2, 512), (2, 7), (3, 33), (3, 7)]


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


ALL = range(6)
HERE = [(1, 7), (2, 33), (3, 512)]
"""Threads and rows among which half of the ways are dealt out; slow, each has all of them."""


def sixth(way, chain, grammar):
    """One of six, so that each has every two values of company, prefix, chain and guess."""
    company, prefix = ("alone", "beside", "late"), ("cold", "warm", "evicted")
    third = (company.index(way.company) + prefix.index(way.prefix) + [*CHAINS].index(chain)) % 3
    return third + 3 * ((way.preempted + way.n // 2 + (grammar == "grammar")) % 2)


@pytest.mark.parametrize(
    ("paths", "threads", "rows", "sixths"),
    [
        *((WHOLE, *pair, (i,)) for pair, i in zip(HERE, (0, 4, 2), strict=True)),
        (WINDOWS, 2, 33, (1,)),
        *(slow(WHOLE, *pair, ALL) for pair in HERE + ALSO),
        slow(WINDOWS, 1, 512, ALL), slow(WINDOWS, 2, 33, ALL), slow(WINDOWS, 3, 33, ALL),
    ],
    indirect=["paths"],
)  # fmt: skip
def test_no_way_of_writing_changes_a_text(trial, alone, sixths):
    """Every text in every way: the same tokens from the same logits, of neighbours too."""
    happened, sources = {}, set()
    for way, (chain, params), grammar in product(WAYS, CHAINS.items(), GRAMMARS):
        if sixth(way, chain, grammar) not in sixths:
            continue
        trial.constraint = GRAMMARS[grammar]
        trial.stops = replace(STOPS, ignore_eos=grammar == "any text")
        counts = trial.write(way, params)
        for request, wrote in trial.texts():
            assert wrote == alone.write(request), (way, chain, grammar)
        assert (counts["preempted"] > 0) == way.preempted, (way, chain, grammar)
        sources |= {step.source for step in trial.steps if isinstance(step, Step)}
        happened.setdefault((way.speculate, chain, grammar), Counter()).update(counts)
    for (speculate, chain, grammar), counts in happened.items():
        assert counts["evicted"] > 0
        assert (counts["accepted"] > 0) == (counts["proposed"] > 0) == (speculate != "off"), chain
        if (
            grammar == "any text"
        ):  # a grammar cuts the drafts, and may leave only those that are right
            assert (counts["accepted"] < counts["proposed"]) == (
                speculate in ("ngram", "jacobi", "draft")
            )
    assert sources >= {"grammar", "sampled"}


@pytest.mark.parametrize(
    ("write", "threads", "rows", "sixths"),
    [
        (write_tiny_lfm2, 2, 33, (4,)), slow(write_tiny_lfm2, 3, 7, ALL),
        (write_tiny_qwen35, 2, 7, (5,)), slow(write_tiny_qwen35, 3, 33, ALL),
        slow(write_tiny_granite_hybrid, 3, 7, ALL), slow(write_tiny_rwkv7, 2, 7, ALL),
    ],
)  # fmt: skip
def test_no_way_of_writing_changes_a_text_of_a_model_with_a_state(
    tmp_path, drafts, write, threads, rows, sixths
):
    """Short convolutions, gated delta nets, Mamba 2, RWKV-7; a draft model must have no state."""
    path = write(tmp_path / "tiny.gguf")
    alone = Alone(new_engine(open_llm(path, 1, KV_BLOCKS)))
    engine = new_engine(open_llm(path, threads, KV_BLOCKS), rows=rows)
    trial = Trial(engine, drafts, PROMPT, NEIGHBOURS, STOPS)
    happened = dict[str, Counter[str]]()
    for way, (chain, params), grammar in product(WAYS, CHAINS.items(), GRAMMARS):
        if way.speculate == "itself" or sixth(way, chain, grammar) not in sixths:
            continue
        trial.constraint = GRAMMARS[grammar]
        trial.stops = replace(STOPS, ignore_eos=grammar == "any text")
        counts = trial.write(way, params)
        for request, wrote in trial.texts():
            assert wrote == alone.write(request), (way, chain, grammar)
        assert (counts["preempted"] > 0) == way.preempted, (way, chain, grammar)
        happened.setdefault(way.speculate, Counter()).update(counts)
    for speculate, counts in happened.items():
        assert counts["evicted"] > 0
        assert (0 < counts["accepted"] < counts["proposed"]) == (speculate != "off")


# -- that there is something to see ------------------------------------------------------------


@pytest.mark.parametrize("chain", CHAINS)
def test_the_plain_text_is_the_model_s(alone, chain):
    """Its fingerprints are those of the logits that come of reading the whole text at once."""
    wrote = alone.write(MockRequest(PROMPT, CHAINS[chain], STOPS))
    logits = score(alone.engine, (*PROMPT, *wrote.token_ids))[len(PROMPT) - 1 : -1]
    fingerprint, expected = START, []
    for row in logits:
        expected.append(fingerprint := chain_hash(fingerprint, row_hash(row)))
    assert wrote.fingerprints == tuple(expected)
    biased = logits + 12 * np.isin(np.arange(logits.shape[1]), list(FEW))
    assert (wrote.token_ids == tuple(biased.argmax(1))) == (chain == "greedy")


def test_the_texts_differ_by_chain_seed_and_prompt(alone):
    requests = [MockRequest(PROMPT, params, STOPS) for params in CHAINS.values()]
    requests.append(replace(requests[1], params=replace(requests[1].params, seed=8)))
    requests.append(replace(requests[0], prompt=(PROMPT[0] + 1, *PROMPT[1:])))
    texts = [alone.write(request) for request in requests]
    assert len({text.token_ids for text in texts}) == len(texts)
    assert len({text.fingerprints[-1] for text in texts}) == len(texts)


@pytest.mark.parametrize("threads", [2])
@pytest.mark.parametrize("rows", [512])
@pytest.mark.parametrize("speculate", ["off", "ngram", "jacobi", "draft"])
def test_a_block_that_another_wrote_into_shows(trial, alone, speculate):
    """The control: a neighbour's keys and values in the text's second block, in mid-text."""
    trial.engine.speculator.draft = trial.drafts["draft"]
    sample = trial.add(MockRequest(PROMPT, CHAINS["luck"], STOPS, RunParams(speculate=speculate)))
    other = trial.add(MockRequest(NEIGHBOURS[1], CHAINS["luck"], STOPS))
    while len(sample.output_token_ids) < 4:
        trial.step()
    before = len(sample.output_token_ids)
    trial.engine.backend.copy_blocks([(other.memory.blocks[0], sample.memory.blocks[1])])
    trial.finish()
    (request, spoiled), (neighbour, untouched) = trial.texts()
    plain = alone.write(request)
    assert untouched == alone.write(neighbour)
    assert spoiled.fingerprints[:before] == plain.fingerprints[:before]
    assert spoiled.fingerprints[before] != plain.fingerprints[before]
