"""Rows of runs with interventions, looked into: their parts add up too; and patches."""

from dataclasses import replace

import numpy as np
import pytest

from cutaway import LLM, CutawayError
from cutaway.engine.interventions import add, patch, scale
from cutaway.features.inside.logit_attribution import logit_attribution
from cutaway.features.inside.look import inside
from cutaway.trace import Trace

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")

from support.families.row import VOCAB
from support.random_models import context, save

IDS = np.random.default_rng(1).integers(3, VOCAB, 24).tolist()
STEP = 5
ROW = len(IDS) + STEP - 1  # the position that gives the step its logits
RNG = np.random.default_rng(2)
NAMES = [
    "llama-biased", "mistral-window", "granite", "gemma2", "gemma3", "qwen3_moe", "mixtral", "gpt2",
    "gpt_neox", "olmo2", "bloom", "gemma4",
]  # fmt: skip
WAYS = {"cpu": None, "rounded": "q8_0"}


@pytest.fixture(scope="module", params=NAMES)
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    save(request.param, path)
    return request.param, path


@pytest.fixture(scope="module", params=WAYS)
def llm(request, folder):
    name, path = folder
    with LLM(path, backend="cpu", context=context(name), quantize=WAYS[request.param]) as made:
        yield made


def recorded(llm, path, interventions, ids=IDS):
    how = {"max_tokens": STEP + 1, "temperature": 0.9, "seed": 4, "ignore_eos": True}
    llm.generate(ids, interventions=interventions, trace=path, **how)
    return Trace.read(path)


def dim(llm):
    return llm.config.head_dim


def some_changes(llm):
    vector, of_head = RNG.normal(size=llm.config.hidden), RNG.normal(size=dim(llm))
    return {
        "head": ["L1.H2 x 0"],
        "head by half, another patched": ["L1.H1 x 0.5", patch("L2.H0", of_head), "L0.H3 x -1"],
        "parts": ["L0.mlp x 0.5", scale("L2.attn", 2), add("L1.attn", vector, 0.3)],
        "stream": [add("L0", vector, 2), "L1 x 0.5", add("L1", vector, -1), "L2 x 1.5"],
        "stream patched": [add("L0", vector), patch("L1", vector, positions=[ROW])],
        "knock_out": ["knock_out 3-20 from 2", "knock_out 0"],
        "not this row": [scale("L0", 2, positions=[3, ROW + 1])],
    }


INTERVENTIONS = (
    "head", "head by half, another patched", "parts", "stream", "stream patched", "knock_out",
    "not this row",
)  # fmt: skip


@pytest.mark.each_choice
@pytest.mark.parametrize("name", INTERVENTIONS)
def test_attributions_of_a_row_with_interventions_add_up(llm, tmp_path, name):
    trace = recorded(llm, tmp_path / "run.jsonl", some_changes(llm)[name])
    look = inside(llm, trace, STEP)
    assert look.is_as_run and look.position == ROW
    np.testing.assert_allclose(look.weights.sum(axis=-1), 1)
    for rival in (None, 9):
        found = look.logit_attribution(rival)  # of which each sum is checked
        whole = sum(found.parts.values()) + found.bias + found.rounding
        assert whole == pytest.approx(found.total, abs=2e-4)
    assert (look.lens().drawn is None) or look.lens().drawn[-1] == look.step.sampled_id
    if name == "head":
        assert found.heads[1, 2] == 0 == np.abs(found.positions[1, 2]).max()
        assert np.abs(look.writes[1, 2]).max() == 0
    if name == "knock_out":
        assert np.abs(look.weights[:, :, [0, *range(3, 21)]]).max() == 0
        assert (look.weights[:, :, max(21, *look.first_seen) :] > 0).all()
    if name.startswith("stream"):
        assert {"L0.intervention", "L1.intervention"} <= found.parts.keys()
        assert (found.parts["L0.mlp"] == 0) == (name == "stream patched")
    seen, noise = look._decomposition, RNG.normal(size=512)
    mlps = {seen.anatomy.added_tensors[part.name] for part in seen.anatomy.parts if not part.path}
    for place, made in seen.interventions.items():
        if place in mlps or name == "stream patched":  # of which nothing is the sum
            continue
        other = made._replace(offset=made.offset + noise[: len(made.offset)])
        wrong = replace(seen, interventions={**seen.interventions, place: other})
        with pytest.raises(CutawayError, match="add up"):
            logit_attribution(wrong, (found.token, 9))


def test_a_patch_from_a_look(llm, tmp_path):
    """One's own numbers change nothing; another's make this row's place as it was there."""
    plain = recorded(llm, tmp_path / "plain.jsonl", [])
    look = inside(llm, plain, 2)
    places = ["L1", "L0.attn", "L2.mlp", "L1.H1"]
    own = [patch(place, look) for place in places]
    assert {one.positions for one in own} == {((look.position, look.position),)}
    same = recorded(llm, tmp_path / "same.jsonl", own)
    assert same.end.fingerprint == plain.end.fingerprint
    others = recorded(llm, tmp_path / "others.jsonl", [], IDS[::-1])
    there = inside(llm, others, 2)
    for place in places:
        made = recorded(llm, tmp_path / f"{place}.jsonl", [patch(place, there)])
        assert inside(llm, made, 2).part(place).tobytes() == there.part(place).tobytes()
        assert made.end.fingerprint != plain.end.fingerprint
