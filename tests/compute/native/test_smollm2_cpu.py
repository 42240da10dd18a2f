"""SmolLM2 on the cpu backend: the same bits in every way, and close to the reference."""

import numpy as np
import pytest

from cutaway import LLM
from cutaway.features.measure.verify import Sample, differing_bits, instruction_set
from support.golden import GOLDEN
from support.native_plans import TIERS

pytestmark = pytest.mark.model
LLAMACPP_DIVERGENCE = 0.00472
"""Mean over the golden prompts of llama-cpp-python 0.3.36 on the same file, by ``divergence``."""

PROMPT = (
    "The lighthouse keeper wrote one line in his book every evening, and on the last page he found "
    "that someone had been answering him. "
) * 12


@pytest.fixture(scope="module")
def llm(smollm2_path):
    return LLM(smollm2_path, backend="cpu", context=1024)


@pytest.fixture(scope="module")
def reference(smollm2_path):
    return LLM(smollm2_path, backend="reference", context=1024)


@pytest.fixture(scope="module")
def plain(llm):
    """300 tokens, and the logits of every 7th position and the last 8."""
    tokens = llm.tokenize(PROMPT)[:300]
    text = Sample(tokens, range(10), frozenset({*range(0, 300, 7), *range(292, 300)}))
    return text, text.run(llm.backend)


@pytest.mark.parametrize("rows", [7, 8, 33, 257])
def test_rows_per_call(llm, plain, rows):
    text, logits = plain
    assert differing_bits(text.run(llm.backend, [rows]), logits) == 0


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_few_rows_after_a_long_history(llm, plain, rows):
    text, logits = plain
    assert differing_bits(text.run(llm.backend, [270, *[rows] * 30]), logits) == 0


@pytest.mark.parametrize("threads", [1, 3, 5])
def test_threads(smollm2_path, plain, threads):
    text, logits = plain
    other = LLM(smollm2_path, backend="cpu", threads=threads, context=512)
    assert differing_bits(text.run(other.backend, [290, 1, 9]), logits) == 0


@pytest.fixture(scope="module")
def other_tier(smollm2_path, request):
    with instruction_set(request.param):
        other = LLM(smollm2_path, backend="cpu", context=512)
    assert other.backend.tier == request.param
    return other


PLAIN = [tier for tier in TIERS[1:] if tier in ("generic", "amx-plain")]
"""Those without instructions of their own, which are slow."""


@pytest.mark.parametrize("other_tier", [t for t in TIERS[1:] if t not in PLAIN], indirect=True)
def test_tiers(plain, other_tier):
    text, logits = plain
    assert differing_bits(text.run(other_tier.backend, [297, 1, 2]), logits) == 0


@pytest.mark.parametrize("other_tier", PLAIN, indirect=True)
@pytest.mark.parametrize(
    ("tokens", "rows"), [(36, [33, 1, 2]), pytest.param(300, [297, 1, 2], marks=pytest.mark.slow)]
)
def test_plain_tiers(plain, other_tier, tokens, rows):
    """The beginning, in as many rows as a matrix unit wants; small models have the rest."""
    text, logits = plain
    scored = frozenset(i for i in text.positions if i < tokens)
    begin = Sample(text.tokens[:tokens], text.blocks, scored)
    assert differing_bits(begin.run(other_tier.backend, rows), logits[: len(scored)]) == 0


def test_fingerprints_do_not_depend_on_company(llm):
    prompts = [case["ids"] for case in GOLDEN[:5]]
    options = {"temperature": 0.8, "seed": 4, "max_tokens": 12, "ignore_eos": True}
    alone = [llm.generate(p, **options) for p in prompts]
    together = llm.generate(prompts, **options)
    assert [c.fingerprint for c in together] == [c.fingerprint for c in alone]
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]
    naive = llm.generate(prompts[2], kv_cache=False, **options)
    assert naive.fingerprint == alone[2].fingerprint


# -- close to the reference ------------------------------------------------------------------


def relative_error(ours, reference):
    """As the golden file measures llama.cpp: of all the last row's logits."""
    return float(np.linalg.norm(ours - reference) / np.linalg.norm(reference))


def divergence(ours, reference):
    """Mean KL(reference || ours) over the rows, in nats."""
    a, b = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (reference, ours))
    return float((np.exp(a) * (a - b)).sum(-1).mean())


@pytest.fixture(scope="module")
def errors(llm, reference):
    rows = []
    for case in GOLDEN:
        ours = llm.logits(case["ids"]).astype(np.float64)
        ideal = reference.logits(case["ids"]).astype(np.float64)
        rows.append((relative_error(ours[-1], ideal[-1]), divergence(ours, ideal)))
    return np.array(rows)


def test_relative_error_no_worse_than_llama_cpp_s(errors):
    """Of a prompt's last logits. llama.cpp rounds activations to 8 bits too."""
    theirs = np.array([case["llamacpp_rel_err"] for case in GOLDEN])
    assert errors[:, 0].max() < 0.06
    assert errors[:, 0].mean() <= theirs.mean()


def test_mean_divergence_no_worse_than_llama_cpp_s(errors):
    assert errors[:, 1].mean() <= LLAMACPP_DIVERGENCE


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["prompt"][:20])
def test_the_likeliest_tokens_are_the_reference_s(llm, case):
    """Each of the best three is among the reference's best ten."""
    best = np.argsort(llm.logits(case["ids"])[-1])[::-1][:3]
    assert set(best.tolist()) <= set(case["top_ids"][:10])


def test_greedy_text_is_sensible(llm):
    assert "Paris" in llm.generate("The capital of France is", temperature=0, max_tokens=8).text
    answer = llm.chat([{"role": "user", "content": "Name three colours."}], temperature=0)
    assert sum(c in answer.text.lower() for c in ("red", "blue", "green", "yellow")) >= 1
