"""Diffusion models from end to end: what published samplers write on transformers' bodies, and the
same bits in every way. Rules by themselves are in tests/engine/canvas."""

import os

import numpy as np
import pytest

from cutaway import LLM
from cutaway.compute.backends.cpu import tiers

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")

from support.diffusion_models import DIFFUSION, VOCAB, save

PROMPT = np.random.default_rng(2).integers(6, VOCAB, 9).tolist()


class Body:
    """What a sampler sees of a model.

    sees_mask: whether the mask is one of the tokens that share the probability. Models that are
    trained give it none; ours leaves it out of what is drawn, and so of figures after the chain
    """

    def __init__(self, name, logits, *, sees_mask):
        self.logits, self.sees_mask = logits, sees_mask
        self.shift, self.mask = DIFFUSION[name].shift, DIFFUSION[name].mask

    def probabilities(self, x):
        rows = self.logits(x).astype(np.float64)
        if self.shift:
            rows = np.concatenate([rows[:1], rows[:-1]])
        if not self.sees_mask:
            rows[:, self.mask] = -np.inf
        rows = np.exp(rows - rows.max(-1, keepdims=True))
        return rows / rows.sum(-1, keepdims=True)


def even(cells, steps):
    """How many cells each step reveals, the first ones more."""
    return [cells // steps + (i < cells % steps) for i in range(steps)]


def reveal(x, masked, confidence, tokens, number):
    """The tokens of the so many masked places of which the sampler is surest."""
    for i in sorted(masked, key=lambda i: -confidence[i])[:number]:
        x[i] = int(tokens[i])


def places(body, x, first, last):
    return [i for i in range(first, last) if x[i] == body.mask]


def llada(body, prompt, cells, *, block, steps):
    """ML-GSAI/LLaDA, generate.py: blocks from the left, the likeliest tokens first."""
    x = [*prompt, *[body.mask] * cells]
    for begin in range(len(prompt), len(x), block):
        for number in even(block, steps * block // cells):
            p = body.probabilities(x)
            masked = places(body, x, begin, begin + block)
            reveal(x, masked, p.max(-1), p.argmax(-1), number)
    return x[len(prompt) :]


def dream(body, prompt, cells, *, steps, alg):
    """Dream's diffusion_generate: a share of what is masked in each step, eps 1e-3."""
    x, times = [*prompt, *[body.mask] * cells], np.linspace(1, 1e-3, steps + 1)
    for i in range(steps):
        p = body.probabilities(x)
        confidence = {
            "maskgit_plus": p.max(-1),
            "entropy": (p * np.log(p + 1e-10)).sum(-1),
        }[alg]
        masked = places(body, x, len(prompt), len(x))
        share = 1 - times[i + 1] / times[i] if i < steps - 1 else 1
        reveal(x, masked, confidence, p.argmax(-1), int(len(masked) * share))
    return x[len(prompt) :]


def sdar(body, prompt, cells, *, block, threshold=None):
    """JetAstra/SDAR, generate.py, and LLaDA 2's generate with as many steps as cells of a block:
    blocks from the text's first token, one cell at a time, or all that are above a threshold."""
    x = [*prompt, *[body.mask] * cells]
    for begin in range(len(prompt) // block * block, len(x), block):
        while masked := places(body, x, begin, begin + block):
            p = body.probabilities(x[: begin + block])
            sure = 0 if threshold is None else sum(p[i].max() > threshold for i in masked)
            reveal(x, masked, p.max(-1), p.argmax(-1), max(sure, 1))
    return x[len(prompt) :]


CASES = {
    "llada": ("llada", llada, {"block": 8, "steps": 9}, {}),
    "llada-one-block": ("llada-untied", llada, {"block": 24, "steps": 7}, {}),
    "llada-moe": ("llada-moe", llada, {"block": 6, "steps": 12}, {}),
    "mdlm": ("mdlm", llada, {"block": 24, "steps": 24}, {}),
    "dream": ("dream", dream, {"steps": 9, "alg": "entropy"}, {"rule": "dream"}),
    "dream-maskgit": (
        "dream", dream, {"steps": 10, "alg": "maskgit_plus"},
        {"rule": "dream", "order": "confidence"},
    ),
    "diffugpt": ("diffugpt", dream, {"steps": 24, "alg": "entropy"}, {"rule": "dream"}),
    "rnd1": ("rnd1", dream, {"steps": 8, "alg": "entropy"}, {"rule": "dream"}),
    "sdar": ("sdar", sdar, {"block": 4}, {"rule": "confidence"}),
    "sdar-moe": ("sdar-moe", sdar, {"block": 4}, {"rule": "confidence"}),
    "sdar-dynamic": ("sdar", sdar, {"block": 4, "threshold": 0.5}, {"rule": "threshold"}),
    "llada2": ("llada2", sdar, {"block": 32, "threshold": 0.05}, {"rule": "threshold"}),
    "llada2-blocks": (
        "llada2-blocks", sdar, {"block": 8, "threshold": 0.05}, {"rule": "threshold"},
    ),
    "a2d-blocks": ("a2d-blocks", sdar, {"block": 32}, {"rule": "confidence"}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_published_sampler_writes_the_same_tokens(random_model, case):
    name, sampler, settings, rule = CASES[case]
    path, logits = random_model(name)
    llm = LLM(path, backend="reference")
    cells = 23 if sampler is sdar else 24
    seen = Body(name, logits, sees_mask=rule.get("rule") != "dream")
    theirs = sampler(seen, PROMPT, cells, **settings)
    assert seen.mask not in theirs  # which ours never draws, so that nothing could be compared
    given = {key: value for key, value in settings.items() if key != "alg"}
    if sampler is sdar:
        given.pop("block")
    ours = llm.denoise(
        PROMPT, **{"rule": "llada", **given, **rule}, max_tokens=cells, temperature=0,
        ignore_eos=True,
    )  # fmt: skip
    assert list(ours.token_ids) == theirs


WAYS = {"dream": {"rule": "dream", "steps": 9}, "sdar": {}, "llada": {"rule": "llada", "block": 8}}


def written(path, name, **more):
    """Of three canvases together, and of the first alone: the text and what its passes computed."""
    llm = LLM(path, **more)
    options = {"max_tokens": 21, "temperature": 0.8, "seed": 3, "ignore_eos": True}
    prompts = [PROMPT, PROMPT[:2], [*PROMPT, *PROMPT]]
    together = llm.denoise(prompts, **WAYS[name], **options)
    alone = llm.denoise(PROMPT, **WAYS[name], **options)
    return [(one.token_ids, one.passes[-1].fingerprint) for one in (*together, alone)]


@pytest.mark.parametrize("quantize", [None, "q8_0"])
@pytest.mark.parametrize("name", WAYS)
def test_a_canvas_has_the_same_bits_in_every_way(name, quantize, tmp_path, monkeypatch):
    save(name, tmp_path)
    expected = written(tmp_path, name, threads=2, quantize=quantize)
    assert expected[0] == expected[3]
    assert len({text for text, _ in expected}) == 3
    assert written(tmp_path, name, threads=3, prefix_cache=False, quantize=quantize) == expected
    for tier in tiers():
        monkeypatch.setitem(os.environ, "CUTAWAY_ISA", tier)
        assert written(tmp_path, name, threads=1, quantize=quantize) == expected, tier
