"""The lesson on experts: the shares are those by which a mixture computed the token."""

import numpy as np
import pytest

from cutaway import LLM
from cutaway.features.practice.lessons import lessons, scene
from cutaway.trace import Trace

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")

from support.families.row import VOCAB
from support.random_models import context, save

IDS = np.random.default_rng(1).integers(3, VOCAB, 12).tolist()


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "qwen3_moe-unnormed"])
def test_the_shares_of_the_experts(tmp_path, name):
    save(name, tmp_path)
    llm = LLM(tmp_path, context=context(name))
    llm.generate(IDS, max_tokens=3, seed=4, trace=tmp_path / "run.jsonl", ignore_eos=True)
    here = scene(llm, Trace.read(tmp_path / "run.jsonl"), 2)
    [exercise] = lessons(here, ["experts"])
    layer = len(here.look.experts) // 2
    [op] = [op for op in llm.graph.ops if op.kind == "experts" and f".{layer}." in op.out.name]
    scores = here.look.tensor(op.inputs[1]).astype(float)
    best = np.argsort(-scores)[:2]
    weights = np.exp(scores)
    whole = weights.sum() if name.endswith("unnormed") else weights[best].sum()
    assert exercise.answer.values == pytest.approx(weights[best] / whole)
    assert exercise.answer.labels == tuple(f"expert {i}" for i in best)
    assert exercise.answer.judge(exercise.answer.solution).right
    # As a person works it out, from what is shown.
    shown = {row[0]: float(row[2]) for row in exercise.given_table.rows}
    by_hand = [
        shown[str(i)] / float(exercise.question.split(" is ")[1].split(". ")[0]) for i in best
    ]
    assert exercise.answer.judge(" ".join(map(str, by_hand))).right
    assert [row[0] for row in exercise.arithmetic[0].rows] == [str(i) for i in best]


def test_a_logit_scale_is_not_taken_for_an_effect(tmp_path):
    """Attributions are before it, and so is what a cut loses."""
    save("granite", tmp_path)
    llm = LLM(tmp_path, context=context("granite"))
    llm.generate(IDS, max_tokens=3, seed=4, trace=tmp_path / "run.jsonl", ignore_eos=True)
    here = scene(llm, Trace.read(tmp_path / "run.jsonl"), 2)
    [exercise] = lessons(here, ["cut"])
    row, found = exercise.arithmetic[0].rows[0], here.attribution
    change = f"{row[0]} x 0 at {len(here.ids) - 1}"
    done = llm.generate(here.ids, interventions=[change], max_tokens=1, logprobs=VOCAB)
    a, b = (dict(done.logprobs[0].model)[token] for token in (found.token, found.rival))
    lead = float(here.look.logits[found.token]) - float(here.look.logits[found.rival])
    scale = found.total / lead
    assert scale > 1.5
    assert float(row[2].replace("−", "-")) == pytest.approx(scale * (lead - (a - b)), abs=0.006)
