"""Two hundred texts of settings drawn by chance: every kind of drafts leaves them as they are.

Texts of unlike settings run side by side, some of them preempted, with keys and values in three
formats. ``test_assistant_head.py`` and ``test_draft_head.py`` have the heads of other models.
"""

import numpy as np
import pytest

from cutaway import LLM, CutawayError
from support.adapters import adapter_of
from support.random_dflash import HIDDEN, drafter_tensors, write_drafter
from support.random_eagle import eagle_tensors, write_eagle
from support.random_llama import write_tiny_llama

TEXTS, TOGETHER = 200, 8
FORMATS = ("f16", "q8_0", "q8_0,q4_0")
SETTINGS = {
    "temperature": (0, 0.4, 0.7, 1.0, 1.6), "top_k": (2, 8, 40), "top_p": (0.3, 0.9),
    "min_p": (0.02, 0.2), "typical_p": (0.5,), "repetition_penalty": (0.8, 1.3),
    "presence_penalty": (-1.0, 1.5), "frequency_penalty": (0.7,), "dry_multiplier": (0.8,),
    "logit_bias": ({97: 3.0, 98: -5.0},), "bad_words": (["a"], ["bc", "d"]), "min_tokens": (9,),
    "stop": (["b"], ["xy", "q"]), "ignore_eos": (True,), "adapter": ("poet",),
    "kv_cache": (False,), "cache_prompt": (False,), "n": (2,), "forced": ([70, 71, 72],),
    "priority": (-1,),
}  # fmt: skip
GRAMMARS = (
    {"regex": "(ab|ba|c){3,9}"}, {"choice": ["yes", "no", "perhaps not"]},
    {"json_schema": {"type": "object", "properties": {"a": {"type": "integer"}},
                     "required": ["a"], "additionalProperties": False}},
    {"grammar": 'root ::= ("x" [0-9] " "){2,6}'},
)  # fmt: skip


def draw_request(rng):
    """Return a prompt and its settings: a temperature, some others, a grammar for one in five."""
    chosen = {"temperature", *rng.choice(sorted(SETTINGS), 4, replace=False).tolist()}
    options = {name: SETTINGS[name][rng.integers(len(SETTINGS[name]))] for name in sorted(chosen)}
    if rng.random() < 0.2:
        for name in ("bad_words", "min_tokens", "forced", "stop", "ignore_eos"):
            options.pop(name, None)
        options |= GRAMMARS[rng.integers(len(GRAMMARS))]
    prompt = [1, *rng.integers(60, 120, rng.integers(2, 40)).tolist()]
    seed, length = (int(rng.integers(*limits)) for limits in ((0, 1000), (8, 90)))
    return prompt, {"seed": seed, "max_tokens": length, **options}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model for each format of keys and values, with an adapter."""
    at = tmp_path_factory.mktemp("target")
    path = write_tiny_llama(
        at / "t.gguf", hidden=HIDDEN, layers=4, heads=4, head_dim=16, context=192
    )
    poet = str(adapter_of(path, at / "poet.gguf"))
    return [LLM(path, kv=kv, kv_tokens=256, adapters={"poet": poet}) for kv in FORMATS]


@pytest.fixture(scope="module")
def texts(models):
    """The requests, and the fingerprints of their texts without drafts, by model."""
    rng = np.random.default_rng(62)
    requests = [draw_request(rng) for _ in range(TEXTS)]
    parts = [(llm, requests[i :: len(models)]) for i, llm in enumerate(models)]
    return [(llm, part, prints(llm, part, "off")[0]) for llm, part in parts]


@pytest.fixture(scope="module")
def drafts(models, tmp_path_factory):
    """Each kind of drafts, as it is named in a request."""
    at = tmp_path_factory.mktemp("drafts")
    small = write_tiny_llama(at / "small.gguf", layers=1, context=192)
    block = {
        kind: write_drafter(at / kind, drafter_tensors(2, markov=kind == "dspark"), kind)
        for kind in ("dflash", "dspark")
    }
    head = write_eagle(at / "eagle", eagle_tensors(3 * HIDDEN))
    paths = {"draft": small, "eagle": head, **block}
    return {kind: f"{kind}:{path}" for kind, path in paths.items()} | {
        kind: kind for kind in ("ngram", "jacobi")
    }


def prints(llm, requests, speculate):
    """Return the requests' texts with fingerprints; how many tokens were drafted and accepted."""
    found, counts = {}, np.zeros(2, int)
    for at in range(0, len(requests), TOGETHER):
        for i, result in llm.generate_each(requests[at : at + TOGETHER], speculate=speculate):
            assert not isinstance(result, CutawayError), result
            samples = result if isinstance(result, list) else [result]
            found[at + i] = [(c.token_ids, c.finish_reason, c.fingerprint) for c in samples]
            for sample in samples:
                counts += sample.speculation.proposed, sample.speculation.accepted
    return [found[i] for i in range(len(requests))], counts


@pytest.mark.parametrize("kind", ["dflash", "dspark", "eagle", "draft", "ngram", "jacobi"])
def test_two_hundred_texts_stay_as_they_are(texts, drafts, kind):
    total = np.zeros(2, int)
    for llm, requests, plain in texts:
        if ":" in drafts[kind]:
            llm.load_draft(drafts[kind])
            llm.engine.speculator.draft.cost = 0.1  # tiny models have heads as large as themselves
        drafted, counts = prints(llm, requests, drafts[kind])
        assert drafted == plain
        total += counts
    assert sum(len(requests) for _, requests, _ in texts) == TEXTS
    assert sum(llm.engine.scheduler.preemptions for llm, _, _ in texts) > 0
    assert total[0] > 50
    assert total[1] > 0
