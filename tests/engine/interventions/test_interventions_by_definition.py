"""Interventions on the reference backend, against hooks in transformers' own models."""

import numpy as np
import pytest

from cutaway import LLM
from cutaway.engine.interventions import add, bind, check_interventions, patch, scale

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")

import torch

from support.families.row import VOCAB
from support.random_models import context, save

IDS = np.random.default_rng(1).integers(3, VOCAB, 24).tolist()
ROWS = [3, 4, 5, 11, 20]
WHERE = "3-5,11,20"
RNG = np.random.default_rng(2)
NORMED = ("gemma2", "gemma3", "olmo2")  # what is added went through a norm
WINDOWED = ("mistral-window", "gemma2", "gemma3")
FAMILIES = (
    "llama-biased", "mistral-window", "qwen2", "qwen3", "granite", "qwen3_moe", "mixtral", "gemma2",
    "gemma3", "olmo2", "gpt2", "gpt_neox", "gpt_neox-serial",
)  # fmt: skip


@pytest.fixture(scope="module", params=FAMILIES)
def both(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    theirs = save(request.param, path)
    theirs.set_attn_implementation("eager")
    with LLM(path, backend="reference", context=context(request.param)) as ours:
        yield request.param, ours, theirs


def modules(name, model, layer):
    """Of a layer: itself, what its attention and its MLP add, and the matrix behind the heads."""
    if name == "gpt2":
        one = model.transformer.h[layer]
        return one, one.attn, one.mlp, one.attn.c_proj
    if name.startswith("gpt_neox"):
        one = model.gpt_neox.layers[layer]
        return one, one.attention, one.mlp, one.attention.dense
    one = model.model.layers[layer]
    attn, mlp = one.self_attn, getattr(one, "mlp", None) or one.block_sparse_moe
    if name in NORMED:
        attn, mlp = one.post_attention_layernorm, one.post_feedforward_layernorm
    return one, attn, mlp, one.self_attn.o_proj


def edited(change):
    """A hook that changes rows of a module's result, be it the first of several."""

    def hook(module, given, result):
        first = result[0] if isinstance(result, tuple) else result
        whole = first.clone().reshape(1, len(IDS), -1)
        whole[0, ROWS] = change(whole[0, ROWS])
        whole = whole.reshape(first.shape)
        return (whole, *result[1:]) if isinstance(result, tuple) else whole

    return hook


def before(first, last, change):
    """A hook that changes columns of what a module reads."""

    def hook(module, given):
        whole = given[0].clone()
        whole[0, ROWS, first:last] = change(whole[0, ROWS, first:last])
        return (whole, *given[1:])

    return hook


def kinds(width, factor=1.0):
    """A change of rows at a place, and the same as a function; factor: what the model multiplies
    by behind it."""
    vector = RNG.normal(size=width).astype(np.float32)
    theirs = torch.from_numpy(vector / factor)
    return {
        "scale": (lambda place: scale(place, -0.5, positions=WHERE), lambda x: -0.5 * x),
        "add": (lambda place: add(place, vector, 0.5, positions=WHERE), lambda x: x + 0.5 * theirs),
        "patch": (lambda place: patch(place, vector, positions=WHERE), lambda x: theirs + 0 * x),
    }


def logits(model, **more):
    with torch.no_grad():
        return model(torch.tensor([IDS]), **more).logits[0].numpy()


def same(ours, theirs):
    return np.abs(ours - theirs).max() < 2e-4 * max(np.abs(theirs).max(), 1)


@pytest.mark.each_choice
@pytest.mark.parametrize("kind", ["scale", "add", "patch"])
@pytest.mark.parametrize("place", ["L1", "L1.attn", "L1.mlp", "L1.H2"])
def test_what_hooks_make_of_it(both, place, kind):
    name, ours, theirs = both
    plain = logits(theirs)
    layer, attn, mlp, matrix = modules(name, theirs, 1)
    dim, hidden = ours.config.head_dim, ours.config.hidden
    within = 0.5 if name == "granite" and place in ("L1.attn", "L1.mlp") else 1.0
    make, change = kinds(dim if place == "L1.H2" else hidden, within)[kind]
    if place == "L1.H2":
        handle = matrix.register_forward_pre_hook(before(2 * dim, 3 * dim, change))
    else:
        module = {"L1": layer, "L1.attn": attn, "L1.mlp": mlp}[place]
        handle = module.register_forward_hook(edited(change))
    try:
        expected = logits(theirs)
    finally:
        handle.remove()
    found = ours.logits(IDS, interventions=bind([make(place)], ours.graph, len(IDS)))
    assert same(ours.logits(IDS), plain)
    assert not same(expected, plain)
    assert same(found, expected)


def test_knock_out_is_a_mask(both):
    name, ours, theirs = both
    if name in WINDOWED:
        pytest.skip("a mask of one's own has no window")
    total = len(IDS)
    places = np.arange(total)
    hidden = places > places[:, None]
    for first, start in ((0, 0), (3, 0), (4, 15)):
        hidden[max(first + 1, start) :, first] = True
    least = torch.finfo(torch.float32).min
    mask = torch.from_numpy(np.where(hidden, np.float32(least), np.float32(0)))[None, None]
    expected = logits(theirs, attention_mask=mask)
    interventions = ["knock_out 0,3", "knock_out 4 from 5"]
    found = ours.logits(IDS, interventions=bind(check_interventions(interventions), ours.graph, 11))
    assert same(found, expected)
    assert not same(expected, logits(theirs))
