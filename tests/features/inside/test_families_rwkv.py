"""Steps of RWKV-7: a normed embedding, and heads whose states a token's own value passes by."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")
pytest.importorskip("safetensors", reason="needs safetensors: pip install '.[test-transformers]'")

from cutaway import LLM
from cutaway.compute.model.anatomy import Anatomy
from cutaway.engine.interventions import bind, scale
from cutaway.errors import CutawayError
from cutaway.features.inside.layers import wkv7
from cutaway.features.inside.logit_attribution import logit_attribution
from cutaway.features.inside.look import inside
from cutaway.trace import Trace
from support.families.row import VOCAB
from support.random_models import save

IDS = np.random.default_rng(5).integers(3, VOCAB, 30).tolist()
STEP = 4
WAYS = {"reference": None, "cpu": None, "rounded": "q8_0"}


@pytest.fixture(scope="module", params=["rwkv7", "rwkv7-old"])
def path(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp(request.param)
    save(request.param, folder)
    return folder


def looked_into(path, way="cpu", interventions=()):
    backend = "reference" if way == "reference" else "cpu"
    llm = LLM(path, backend=backend, quantize=WAYS[way], progress=False)
    file = path / "run.jsonl"
    file.unlink(missing_ok=True)
    how = {"max_tokens": STEP + 1, "temperature": 0.9, "seed": 4, "ignore_eos": True}
    llm.generate(IDS, interventions=list(interventions), trace=file, **how)
    return llm, inside(llm, Trace.read(file), STEP)


def weights_by_definition(op, r, keep, k, removed, loss):
    """The recurrence on values that are each a direction of its own: (heads, T)."""
    (heads, n, _), tokens = op.state, len(r)
    state, values = np.zeros((heads, n, tokens)), np.eye(tokens)
    for t in range(tokens):
        had = np.einsum("hk,hkt->ht", removed[t], state)
        state = keep[t, :, :, None] * state - loss[t, :, :, None] * had[:, None]
        state += k[t, :, :, None] * values[t]
    return np.einsum("hk,hkt->ht", r[-1], state)


def test_the_weights_are_those_of_the_recurrence_on_directions(path):
    llm = LLM(path, backend="reference", progress=False)
    for op in (op for op in llm.graph.ops if op.kind == "wkv7"):
        tensors = llm.tensors(IDS, list(op.inputs))
        read = [tensors[name].astype(float) for name in op.inputs]
        by_head = [x.reshape(len(x), *op.state[:2]) for x in read]
        computed = wkv7(op, {}, read)
        expected = weights_by_definition(op, *by_head[1:])
        np.testing.assert_allclose(computed.weights, expected, atol=1e-9)
        assert np.array_equal(computed.values, by_head[0])


def attributions_by_definition(llm, look, part, along):
    """Each token's value through norm, gate and matrix, and the token's own: (heads, tokens)."""
    project, gate, own, norm, mix = part.path
    tensor = {name: look.tensor(name).astype(float) for op in part.path for name in op.inputs}
    state = look._decomposition.states[mix.out.name]
    each = state.weights[:, :, None] * state.values.swapaxes(0, 1)  # (heads, T, numbers)
    heads, _, n = each.shape
    weight = llm.backend.weight(norm.weights["weight"]).reshape(-1, n)
    deviation = np.sqrt(tensor[norm.inputs[0]].reshape(heads, n).var(axis=1) + norm.eps)
    each = (each - each.mean(axis=-1, keepdims=True)) * (weight / deviation[:, None])[:, None]
    a, b, v = (tensor[name].reshape(heads, n) for name in own.inputs[:3])
    each[:, -1] += v * (a * b).sum(axis=1, keepdims=True)
    through = along @ llm.backend.weight(project.weights["weight"]).astype(float)
    through = (through * tensor[gate.inputs[0]]).reshape(heads, n)
    return np.einsum("htn,hn->ht", each, through)


@pytest.mark.each_choice
@pytest.mark.parametrize("way", WAYS)
def test_attributions_add_up_and_those_of_tokens_are_by_definition(path, way):
    llm, look = looked_into(path, way)
    assert look.is_as_run
    attribution, anatomy = look.logit_attribution(9), Anatomy(llm.graph)
    layers = range(llm.config.layers)
    names = [f"L{i}.{kind}" for i in layers for kind in ("wkv7", "mlp")]
    assert [*attribution.parts] == ["embedding", *names]
    whole = sum(attribution.parts.values()) + attribution.bias + attribution.rounding
    assert whole == pytest.approx(attribution.total, abs=1e-4)
    assert [*attribution.states] == [f"L{i}.wkv7" for i in layers] and [*look.states] == [*layers]
    along = look._decomposition.find_direction((attribution.token, 9))[0].along
    for part in (part for part in anatomy.parts if part.path):
        layer = attribution.states[part.name]
        assert (layer.rounded != 0) == (way == "rounded")
        expected = attributions_by_definition(llm, look, part, along)
        np.testing.assert_allclose(layer.positions, expected, atol=1e-5)
        assert np.abs(expected).max() > 1e-4
    lens = look.lens()
    assert (lens.rank[-1], lens.drawn[-1]) == (look.step.observed.rank, look.step.sampled_id)


def test_a_wrong_weight_or_own_value_is_an_error(path):
    _, look = looked_into(path)
    seen, pair = look._decomposition, (look.step.token_id, 9)
    for name, own in seen.states.items():
        wrong = {**seen.states, name: replace(own, weights=own.weights * 1.1)}
        with pytest.raises(CutawayError, match="the positions of"):
            logit_attribution(replace(seen, states=wrong), pair)
    for part in (part for part in seen.anatomy.parts if part.path):
        value = part.path[2].inputs[2]
        wrong = {**seen.tensors, value: seen.tensors[value] * np.float32(1.1)}
        with pytest.raises(CutawayError, match=f"the heads of {part.name} add up to"):
            logit_attribution(replace(seen, tensors=wrong), pair)


@pytest.mark.parametrize(
    "change",
    ["L1.wkv7 x 0.5", "L1.H1 x 0", "L0.V1 x 0 at 7", "L1.V0 x 2", "L1.S x 0 at 5", "L0 x 0.5"],
)
def test_attributions_of_a_changed_run_add_up(path, change):
    _, look = looked_into(path, interventions=[change])
    attribution = look.logit_attribution(9)  # CutawayError where a sum is wrong
    parts = {*attribution.parts}
    assert ("L0.intervention" in parts) == (change == "L0 x 0.5")
    assert look.states[1].weights.shape[1] == len(look.token_ids)
    _, plain = looked_into(path)
    assert plain.row_hash != look.row_hash


def test_a_value_taken_out_of_a_state_takes_what_its_weight_says(path):
    llm, look = looked_into(path)
    op, n = Anatomy(llm.graph).heads[0]
    state, ids = look.states[0], look.token_ids
    for at in (0, 20, len(ids) - 1):
        cut = bind([scale("L0.V1", 0, positions=str(at))], llm.graph, len(IDS))
        out = llm.tensors(ids, [op.out.name], cut)[op.out.name][-1].reshape(-1, n)
        whole = look.tensor(op.out.name).reshape(-1, n)
        lost = state.weights[1, at] * state.values[at, 1]
        np.testing.assert_allclose(whole[1] - out[1], lost, atol=1e-5 * np.abs(whole).max())
        assert np.array_equal(np.delete(out, 1, axis=0), np.delete(whole, 1, axis=0))
