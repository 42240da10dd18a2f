"""SmolLM2 on the reference backend against logits from two independent engines."""

import numpy as np
import pytest

from cutaway import LLM
from support.golden import GOLDEN

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def llm(smollm2_path):
    return LLM(smollm2_path, backend="reference")


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["prompt"][:20])
def test_logits_and_greedy_tokens(llm, case):
    """One pass over the prompt and its greedy text: each token is the argmax after those before."""
    ids = case["ids"]
    whole = llm.logits([*ids, *case["greedy32"][:-1]])
    assert whole[len(ids) - 1 :].argmax(1).tolist() == case["greedy32"]
    logits = whole[: len(ids)].astype(np.float64)
    lse = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
    surprise = lse[:-1] - logits[np.arange(len(logits) - 1), ids[1:]]
    assert np.abs(logits[-1][case["top_ids"]] - case["top_logits"]).max() < 1e-4
    assert abs(lse[-1] - case["logsumexp"]) < 1e-4
    assert np.abs(surprise - case["prompt_nll"]).max(initial=0) < 1e-4


@pytest.mark.parametrize(("kv_cache", "tokens"), [(True, 32), (False, 6)])
def test_the_loop_writes_the_greedy_text(llm, kv_cache, tokens):
    case = GOLDEN[4]
    done = llm.generate(case["ids"], temperature=0, max_tokens=tokens, kv_cache=kv_cache)
    assert list(done.token_ids) == case["greedy32"][:tokens]
