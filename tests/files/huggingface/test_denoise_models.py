"""Canvases of models from folders: a pass's rows are those of its text read alone, in every way."""

import os

import numpy as np
import pytest

from cutaway import LLM
from cutaway.compute.backends.cpu import tiers
from cutaway.sampling.observe import row_hash

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")

from support.diffusion_models import DIFFUSION, VOCAB

PROMPT = np.random.default_rng(2).integers(6, VOCAB, 21).tolist()
MODELS = [
    "llada",
    "dream",
    "sdar",
    "sdar-blocks",
    "llada2-blocks",
    "a2d-blocks",
    "diffugpt",
    "mdlm",
]
RULES = [
    {"rule": "llada", "steps": 6, "temperature": 0.9},
    {"rule": "edit", "threshold": 0.02, "edit_threshold": 0.02, "temperature": 1.5},
    {"rule": "mask-predict", "steps": 4, "temperature": 0},
    {"rule": "entropy-bound", "entropy_bound": 5, "noise": "fresh", "temperature": 1.1},
]


def run(llm, rule, **more):
    settings = {"seed": 5, "max_tokens": 12, "ignore_eos": True, **rule, **more}
    return llm.denoise(PROMPT, **settings)


def told(completion):
    passes = [p._replace(id=0, phases=None) for p in completion.passes]
    return completion.token_ids, completion.fingerprint, passes


def texts_of(completion, mask, attention):
    """Of each pass, the text that it was computed from."""
    first = len(PROMPT)
    cells = {first + i: mask for i in range(len(completion.token_ids))}
    for made in completion.passes:
        end = first + len(cells) if attention == "bidirectional" else made.block[1]
        yield made, [*PROMPT, *(cells[p] for p in range(first, end))]
        cells |= {p: mask if token is None else token for p, token in made.stands.items()}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["rule"])
def test_each_row_of_a_pass_is_that_of_its_text_read_alone(random_model, name, rule):
    llm = LLM(random_model(name)[0])
    shift = int(DIFFUSION[name].shift)
    completion = run(llm, rule)
    assert completion.passes
    for made, text in texts_of(completion, DIFFUSION[name].mask, DIFFUSION[name].attention):
        logits = llm.logits(text)
        for cell in made.cells:
            assert cell.logits_hash == row_hash(logits[cell.position - shift])


@pytest.mark.parametrize("name", MODELS)
def test_bits_are_the_same_over_threads_and_tiers(random_model, name, monkeypatch):
    expected = [told(run(LLM(random_model(name)[0], threads=2), rule)) for rule in RULES[:2]]
    for tier in tiers():
        monkeypatch.setitem(os.environ, "CUTAWAY_ISA", tier)
        llm = LLM(random_model(name)[0], threads=1)
        assert [told(run(llm, rule)) for rule in RULES[:2]] == expected, tier


@pytest.mark.parametrize(
    ("name", "stored"),
    [*((name, "exact") for name in MODELS), ("llada", "prefix"), ("dream", "dual")],
)
def test_company_and_luck_of_samples_change_no_bit(random_model, name, stored):
    """Four canvases at once, one of them in front of the text of another, and a warm cache."""
    llm, rule = LLM(random_model(name)[0], threads=2), replace_cache(RULES[0], stored)
    alone = [told(run(LLM(random_model(name)[0]), rule, seed=seed)) for seed in (5, 6)]
    streams = [
        llm.stream(
            PROMPT, seed=seed, max_tokens=12, ignore_eos=True, temperature=0.9,
            denoise={k: v for k, v in rule.items() if k != "temperature"},
        )
        for seed in (5, 6, 5, 6)
    ]  # fmt: skip
    for stream, expected in zip(streams, [*alone, *alone], strict=True):
        assert told(stream.finish()) == expected
    assert told(run(llm, rule)) == alone[0]


def replace_cache(rule, stored):
    return {**rule, "cache": stored, **({"block": 4} if stored != "exact" else {})}


@pytest.mark.parametrize("stored", ["prefix", "dual"])
def test_what_is_kept_is_that_of_the_block_s_first_pass(random_model, stored):
    """So its rows are exact in the first pass of a block, and not in all passes."""
    llm = LLM(random_model("llada")[0])
    completion = run(llm, replace_cache(RULES[0], stored), temperature=0, steps=12)
    blocks, exact = set(), []
    for made, text in texts_of(completion, DIFFUSION["llada"].mask, "bidirectional"):
        logits = llm.logits(text)
        same = all(cell.logits_hash == row_hash(logits[cell.position]) for cell in made.cells)
        assert same or made.block in blocks
        assert made.rows == (
            len(text) if made.block not in blocks
            else 4 if stored == "dual" else len(text) - made.block[0]
        )  # fmt: skip
        blocks.add(made.block)
        exact.append(same)
    assert not all(exact)


def test_one_cell_at_a_time_from_the_left_is_the_loop_on_a_real_model(smollm2_path):
    smollm2 = LLM(smollm2_path)
    options = {"max_tokens": 24, "seed": 4, "temperature": 0.8}
    loop = smollm2.generate("The first rule of a canvas is", **options)
    cells = smollm2.denoise("The first rule of a canvas is", rule="left", block=1, **options)
    assert (cells.text, cells.fingerprint) == (loop.text, loop.fingerprint)
    assert len(cells.passes) == len(loop.token_ids)
