"""Diffusion models from end to end: what published samplers write on transformers' bodies, and the
same bits in every way. Rules by themselves are in tests/engine/canvas.
"""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")

from cutaway import LLM
from cutaway.sampling.observe import row_hash
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


@pytest.mark.each_choice
@pytest.mark.parametrize("quantize", [None, "q8_0"])
@pytest.mark.parametrize("name", WAYS)
def test_a_canvas_has_the_same_bits_in_every_way(name, quantize, tmp_path, each_tier):
    save(name, tmp_path)
    expected = written(tmp_path, name, threads=2, quantize=quantize)
    assert expected[0] == expected[3]
    assert len({text for text, _ in expected}) == 3
    assert written(tmp_path, name, threads=3, prefix_cache=False, quantize=quantize) == expected
    for tier in each_tier:
        assert written(tmp_path, name, threads=1, quantize=quantize) == expected, tier


# -- canvases: a pass's rows are those of its text read alone, in every way ------------------------


LONGER = np.random.default_rng(2).integers(6, VOCAB, 21).tolist()
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
    {"rule": "diffusion-gemma", "entropy_bound": 9, "max_passes": 5, "temperature": 1.1},
]


def run(llm, rule, **more):
    settings = {"seed": 5, "max_tokens": 12, "ignore_eos": True, **rule, **more}
    return llm.denoise(LONGER, **settings)


def told(completion):
    passes = [p._replace(id=0, phases=None) for p in completion.passes]
    return completion.token_ids, completion.fingerprint, passes


def texts_of(completion, mask, attention):
    """Of each pass, the text that it was computed from."""
    first = len(LONGER)
    cells = {first + i: mask for i in range(len(completion.token_ids))}
    for made in completion.passes:
        cells |= {cell.position: cell.read for cell in made.cells if cell.read is not None}
        end = first + len(cells) if attention == "bidirectional" else made.block[1]
        yield made, [*LONGER, *(cells[p] for p in range(first, end))]
        cells |= {p: mask if token is None else token for p, token in made.tokens_after.items()}


@pytest.mark.each_choice
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
def test_bits_are_the_same_over_threads_and_tiers(random_model, name, each_tier):
    expected = [told(run(LLM(random_model(name)[0], threads=2), rule)) for rule in RULES[:2]]
    for tier in each_tier:
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
            LONGER, seed=seed, max_tokens=12, ignore_eos=True, temperature=0.9,
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
