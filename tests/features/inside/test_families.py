"""Every family looked into: what transformers has; sums that hold, and fail where one is wrong."""

import json
from dataclasses import replace

import numpy as np
import pytest

from cutaway import LLM, CutawayError
from cutaway.compute.model.anatomy import Anatomy
from cutaway.errors import InputError
from cutaway.features.inside.ablate import ablate
from cutaway.features.inside.inside_tables import describe_layer
from cutaway.features.inside.logit_attribution import logit_attribution
from cutaway.features.inside.look import inside
from cutaway.features.inside.summary import page_header
from cutaway.trace import Trace

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")

import torch

from support.families.recurrent import RECURRENT
from support.families.row import VOCAB, WINDOW
from support.random_models import FAMILIES, both_sides, context, save

INKLING = [name for name in FAMILIES if FAMILIES[name].architecture == "inkling2"]
SEVERAL = ("gemma3n", "gemma3n-other", *INKLING)
"""Those with several streams, or a mean of sums in place of a stream."""
ATTENDING = [name for name in FAMILIES if name not in (*RECURRENT, *SEVERAL)]
SCALED = [name for name in ATTENDING if FAMILIES[name].architecture == "gemma4"]
NORMED = ["bloom", "muse_glimmer", "nanochat"]
LATENT = [n for n in ATTENDING if FAMILIES[n].architecture in ("deepseek2", "minicpm3")]
"""Those whose heads read latents, and have a matrix each that makes values of these."""
LOOPED = [name for name in ATTENDING if FAMILIES[name].architecture == "hrm-text"]
"""Those whose layers run several times; the last run's alone add to the last stream."""
PLAIN = [name for name in ATTENDING if name not in LOOPED]
IDS = np.random.default_rng(1).integers(3, VOCAB, 24).tolist()
STEP = 5
CPU = 5e-3  # keys and values are halves
WAYS = {"reference": None, "cpu": None, "rounded": "q8_0"}


def dealt(names, ways):
    """Each model in one of the ways in turn; slow, in the others, too."""
    return [
        pytest.param(name, way, marks=() if j == i % len(ways) else pytest.mark.slow)
        for i, name in enumerate(names)
        for j, way in enumerate(ways)
    ]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def folder(name):
        if name not in made:
            path = tmp_path_factory.mktemp(name)
            made[name] = path, save(name, path)
        return made[name]

    return folder


def looked_into(path, name, way):
    llm = LLM(
        path, backend="reference" if way == "reference" else "cpu", context=context(name),
        quantize=WAYS[way],
    )  # fmt: skip
    file = path / f"{way}.jsonl"
    if not file.exists():
        llm.generate(IDS, max_tokens=STEP + 1, temperature=0.9, seed=4, trace=file, ignore_eos=True)
    return llm, inside(llm, Trace.read(file), STEP)


@pytest.mark.each_choice
@pytest.mark.parametrize(("way", "near"), [("reference", 1e-4), ("cpu", CPU)])
@pytest.mark.parametrize("name", ATTENDING)
def test_what_transformers_has(folders, name, way, near):
    path, model = folders(name)
    llm, look = looked_into(path, name, way)
    if name.startswith("falcon"):  # whose class cannot change it
        model = type(model).from_pretrained(path, attn_implementation="eager")
    else:
        model.set_attn_implementation("eager")
    prompt_tokens = len(IDS) if llm.config.attention == "prefix-lm" else 0
    with torch.no_grad():
        theirs = model(
            torch.tensor([look.token_ids]), output_attentions=True, output_hidden_states=True,
            **both_sides(prompt_tokens, len(look.token_ids)),
        )  # fmt: skip
    weights = look.weights
    if "_swa" in name:  # whose class tells the weights without the sink's
        weights = weights / weights.sum(axis=-1, keepdims=True)
    for mine, attention in zip(weights, theirs.attentions, strict=True):
        heads = attention.shape[1]  # layers with fewer heads than others have zeros after them
        assert np.abs(mine[:heads] - attention[0, :, -1].numpy()).max() < near
        assert not mine[heads:].any()
    stream = [look.tensor(tensor) for tensor in Anatomy(llm.graph).stream]
    *before, last = (state[0, -1].numpy() for state in theirs.hidden_states)
    for mine, state in zip(stream, before, strict=False):
        assert np.abs(mine - state).max() < near * max(np.abs(state).max(), 1)
    assert len(stream) == len(before) + 1
    normed = look.tensor(Anatomy(llm.graph).norm.out.name)  # as transformers has the last
    assert np.abs(normed - last).max() < near * max(np.abs(last).max(), 1)


@pytest.mark.each_choice
@pytest.mark.parametrize("way", ["cpu", "rounded"])
@pytest.mark.parametrize("name", SCALED)
def test_a_part_is_scaled_with_the_stream_by_each_layer_after_it(folders, name, way):
    llm, look = looked_into(folders(name)[0], name, way)
    found, layers = look.logit_attribution(9), llm.config.layers
    weights = [llm.backend.weight(f"blk.{i}.layer_output_scale.weight")[0] for i in range(layers)]
    assert len({*weights}) == layers and 1.0 not in weights
    along = look._decomposition.find_direction((found.token, 9))[0].along
    for part in look._anatomy.parts:
        scales = [float(weight) for weight in weights[part.layer or 0 :]]
        added = look.tensor(part.op.out.name).astype(float) * part.factor
        expected = np.prod(scales) * float(along @ added)
        assert found.parts[part.name] == pytest.approx(expected, rel=1e-9)
    assert ("L0.embedding" in found.parts) == llm.graph.has("per_layer_model_proj.weight")


@pytest.mark.parametrize("name", SEVERAL)
def test_a_model_with_several_streams_is_refused(folders, name):
    with pytest.raises(InputError, match=r"cannot be looked into: it adds (pick|mul)"):
        looked_into(folders(name)[0], name, "cpu")[1].logit_attribution()


@pytest.mark.each_choice
@pytest.mark.parametrize("way", ["cpu", "rounded"])
@pytest.mark.parametrize("name", NORMED)
def test_a_normed_embedding_is_the_first_part(folders, name, way):
    llm, look = looked_into(folders(name)[0], name, way)
    found, first = look.logit_attribution(9), look.tensor(Anatomy(llm.graph).stream[0])
    embedding = llm.backend.weight("token_embd.weight")[look.token_ids[-1]].astype(float)
    centred = embedding - embedding.mean() if name == "bloom" else embedding
    normed = centred / np.sqrt(np.mean(centred**2) + 1e-6)
    if name == "bloom":
        weight, bias = (llm.backend.weight(f"token_embd_norm.{w}") for w in ("weight", "bias"))
        normed = normed * weight + bias
    np.testing.assert_allclose(first, normed, rtol=1e-2, atol=1e-3)
    along = look._decomposition.find_direction((found.token, 9))[0].along
    assert found.parts["embedding"] == pytest.approx(float(along @ first), abs=1e-6)
    assert next(iter(found.parts)) == "embedding"


@pytest.mark.parametrize("name", INKLING)
def test_a_model_without_one_stream_is_neither_shown_nor_changed(folders, name, tmp_path):
    llm, file = LLM(folders(name)[0]), tmp_path / "run.jsonl"
    llm.generate(IDS, max_tokens=2, trace=file, ignore_eos=True)
    for refused in (
        lambda: inside(llm, Trace.read(file), 1),
        lambda: ablate(llm, Trace.read(file), 1),
        lambda: llm.generate(IDS, max_tokens=2, interventions=["L2 x 0"]),
    ):
        with pytest.raises(InputError, match="this architecture cannot be looked into: it adds"):
            refused()


@pytest.mark.each_choice
@pytest.mark.parametrize("way", ["cpu", "rounded"])
@pytest.mark.parametrize("name", LATENT)
def test_heads_that_read_latents_write_through_two_matrices(folders, name, way):
    """By brute force: each position's latent through the head's matrix, and the layer's."""
    llm, look = looked_into(folders(name)[0], name, way)
    found = look.logit_attribution(9)
    along = look._decomposition.find_direction((found.token, 9))[0].along
    for layer, part in enumerate(p for p in Anatomy(llm.graph).parts if p.path):
        project, of_heads, _ = part.path
        latents = look._row.values[layer][0].astype(float)  # (n, rank)
        values = llm.backend.weight(of_heads.weights["weight"]).astype(float)
        values = values.reshape(llm.config.heads, -1, latents.shape[1])
        matrix = part.factor * llm.backend.weight(project.weights["weight"]).astype(float)
        matrix = matrix.reshape(len(matrix), llm.config.heads, -1)
        for h, t in ((0, 0), (1, 3), (llm.config.heads - 1, len(IDS))):
            written = look.weights[layer, h, t] * (matrix[:, h] @ (values[h] @ latents[t]))
            assert look.writes[layer, h, t] == pytest.approx(np.linalg.norm(written), rel=1e-6)
            assert found.positions[layer, h, t] == pytest.approx(float(along @ written), abs=1e-7)


@pytest.mark.parametrize(("name", "way"), dealt(PLAIN, [*WAYS]))
def test_attributions_add_up_to_the_difference_of_two_logits(folders, name, way):
    path, _ = folders(name)
    llm, look = looked_into(path, name, way)
    assert look.is_as_run or way == "reference"
    anatomy = Anatomy(llm.graph)
    head = look.tensor(anatomy.head.out.name).astype(float)
    for rival in (None, 9, 200):
        found = look.logit_attribution(rival)
        whole = sum(found.parts.values()) + found.bias + found.rounding
        assert whole == pytest.approx(found.total, abs=1e-4)
        assert found.total == head[found.token] - head[found.rival]
        assert found.positions.shape == look.weights.shape
        assert (found.rounding == 0) == (way != "rounded")
        assert (found.rounded == 0).all() == (way != "rounded")
        np.testing.assert_allclose(found.positions.sum(axis=-1), found.heads, atol=1e-3)
        names = [f"L{i}.{kind}" for i in range(llm.config.layers) for kind in ("attn", "mlp")]
        assert [
            p for p in found.parts if p[0] == "L" and not p.endswith((".shared", ".embedding"))
        ] == names
        if not any("bias" in op.weights for part in anatomy.parts for op in part.path):
            for layer, heads in enumerate(found.heads):
                mine = heads.sum() + found.rounded[layer]
                assert mine == pytest.approx(found.parts[f"L{layer}.attn"], abs=1e-3)


@pytest.mark.parametrize("changes", [[], ["L1 x 0.5", "L3.attn x 0.25", "L5 x 2", "L14 x 0.5"]])
def test_states_of_a_looped_model_are_parts_beside_its_last_run(folders, tmp_path, changes):
    """Earlier runs write to streams of their own, also where an intervention changed these."""
    path, _ = folders("hrm_text")
    with LLM(path, backend="cpu") as llm:
        how = {"max_tokens": STEP + 1, "temperature": 0.9, "seed": 4, "ignore_eos": True}
        llm.generate(IDS, interventions=changes, trace=tmp_path / "run.jsonl", **how)
        look = inside(llm, Trace.read(tmp_path / "run.jsonl"), STEP)
        found = look.logit_attribution(9)
        last = [f"L{i}.{kind}" for i in (14, 15) for kind in ("attn", "mlp")]
        after = ["L14.intervention"] if changes else []
        assert [*found.parts] == ["slow.1", "fast.6", *last, *after]
        assert not found.heads[:14].any() and found.heads[14:].all()
        assert not look.writes[:14].any() and (look.writes[14:] > 0).all()
        table = describe_layer(look, found, 3, llm.tokenizer.token_name)
        assert table[0].startswith("layer 1 in its run 2, L3: attention has no attribution, as")
        assert describe_layer(look, found, 15, str)[0].startswith("layer 3 in its run 2, L15: attr")
        header = page_header(look, found, None, str, trace="", model="")
        assert json.loads(header["runs"])[2:5] == [[0, 2], [1, 2], [0, 3]]
        with pytest.raises(InputError, match="the layers are 0 to 15"):
            llm.generate(IDS, interventions=["L16 x 0"], max_tokens=1)
        for layer, weight in look._decomposition.weights.items():
            wrong = {**look._decomposition.weights, layer: weight * 1.01}
            if layer >= 14:
                with pytest.raises(CutawayError, match="the positions of"):
                    logit_attribution(replace(look._decomposition, weights=wrong), (4, 9))


@pytest.mark.each_choice
@pytest.mark.parametrize("way", ["cpu", "rounded"])
@pytest.mark.parametrize(
    "name",
    [name for name in RECURRENT if name not in INKLING],
)
def test_attributions_of_models_with_recurrent_states_add_up(folders, name, way):
    """CutawayError where parts, heads or positions do not; each layer with a state has its own."""
    llm, look = looked_into(folders(name)[0], name, way)
    found = look.logit_attribution(9)
    whole = sum(found.parts.values()) + found.bias + found.rounding
    assert whole == pytest.approx(found.total, abs=1e-4)
    kinds = {op.layer: op.kind for op in llm.graph.states}
    assert [*found.states] == [f"L{layer}.{kind}" for layer, kind in kinds.items()]
    for part, own in found.states.items():
        if not any("bias" in op.weights for op in llm.graph.ops):
            mine = own.heads.sum() + own.rounded
            assert mine == pytest.approx(found.parts[part], abs=1e-3)
    assert [*look.states] == [layer for layer, kind in kinds.items() if kind != "conv"]
    assert look.lens().rank[-1] == look.step.observed.rank


@pytest.mark.each_choice
@pytest.mark.parametrize("way", ["cpu", "rounded"])
@pytest.mark.parametrize(
    "name",
    ["llama-tied", "gemma2", "gpt_neox", "qwen3_moe", "gpt2", "granite", "bloom", "deepseek_v3"],
)
def test_a_part_that_is_wrong_by_a_hundredth_is_found(folders, name, way):
    path, _ = folders(name)
    _, look = looked_into(path, name, way)
    seen, pair = look._decomposition, (look.step.token_id, 9)
    anatomy, tensors = seen.anatomy, seen.tensors
    logit_attribution(seen, pair)
    for part in anatomy.parts:
        wrong = tensors | {part.op.out.name: tensors[part.op.out.name] * np.float32(1.01)}
        with pytest.raises(CutawayError, match="add up"):
            logit_attribution(replace(seen, tensors=wrong), pair)
    for op in anatomy.attends:
        wrong = tensors | {op.out.name: tensors[op.out.name] * np.float32(1.01)}
        with pytest.raises(CutawayError, match="add up"):
            logit_attribution(replace(seen, tensors=wrong), pair)
    for layer, weight in seen.weights.items():
        with pytest.raises(CutawayError, match="the positions of"):
            logit_attribution(replace(seen, weights={**seen.weights, layer: weight * 1.01}), pair)


@pytest.mark.parametrize(("name", "way"), dealt(ATTENDING, ["cpu", "rounded"]))
def test_the_lens_ends_in_the_row_and_its_draw(folders, name, way):
    path, _ = folders(name)
    _, look = looked_into(path, name, way)
    lens = look.lens(top=3)
    assert len(lens.rank) == look.layers + 1
    seen = look.step.observed
    assert lens.rank[-1] == seen.rank
    assert lens.drawn[-1] == look.step.sampled_id
    assert lens.ids[-1].tolist() == [c.id for c in seen.candidates[:3]]
    logprobs = [c.logit - seen.log_sum_exp for c in seen.candidates[:3]]
    np.testing.assert_allclose(lens.logprobs[-1], logprobs, atol=1e-6)


@pytest.mark.parametrize("name", ["mistral-window", "gemma3", "phi3-window"])
def test_what_a_window_hides_is_not_read(folders, name):
    path, _ = folders(name)
    llm, look = looked_into(path, name, "cpu")
    total = len(IDS) + STEP
    assert total > WINDOW
    seen = {w: total - w if w else 0 for w in (0, WINDOW)}
    assert look.first_seen == tuple(seen[window] for window in llm.config.windows)
    row = look._row
    stored = 2 * sum(a.size for both in (row.keys, row.values) for a in both.values())  # halves
    assert look.kv_bytes == stored  # heads of 32, or 16, which need no filling up
    for weights, writes, first in zip(look.weights, look.writes, look.first_seen, strict=True):
        assert (weights[:, :first] == 0).all()
        assert (weights[:, first:] > 0).all()
        assert (writes[:, :first] == 0).all()
        assert (writes[:, first:] > 0).all()
        np.testing.assert_allclose(weights.sum(axis=-1), 1)


@pytest.mark.parametrize("name", ["llama", "olmo2", "granite", "gemma2"])
def test_writes_are_as_long_as_what_was_written(folders, name):
    """By brute force: each position's value through the matrix, what follows it, and the scale."""
    path, _ = folders(name)
    llm, look = looked_into(path, name, "cpu")
    backend, tensors, weights = llm.backend, look._decomposition.tensors, look.weights
    for i, part in enumerate(p for p in Anatomy(llm.graph).parts if p.path):
        linear = next(op for op in part.path if op.kind == "linear")
        matrix = backend.weight(linear.weights["weight"]).astype(float)
        matrix = matrix.reshape(len(matrix), llm.config.heads, -1)
        norm = np.ones(len(matrix))
        if part.path[0].kind == "rms_norm":
            x = tensors[linear.out.name].astype(float)
            size = np.sqrt(np.mean(x * x) + part.path[0].eps)
            norm = backend.weight(part.path[0].weights["weight"]) / size
        group = llm.config.heads // llm.config.kv_heads
        for h, t in ((0, 0), (1, 3), (llm.config.heads - 1, len(IDS))):
            if t < look.first_seen[i]:
                continue
            v = look._row.values[i][h // group, t - look.first_seen[i]].astype(float)
            written = weights[i, h, t] * part.factor * norm * (matrix[:, h] @ v)
            assert look.writes[i, h, t] == pytest.approx(np.linalg.norm(written), rel=1e-6)


MIXTURES = [name for name in PLAIN if "moe" in name or name in ("mixtral", "llama4")]


@pytest.mark.each_choice
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MIXTURES)
def test_attributions_of_experts_add_up_to_that_of_their_layer(folders, name, way):
    path, _ = folders(name)
    _, look = looked_into(path, name, way)
    found, seen = look.logit_attribution(9), look._decomposition
    for layer, each in found.experts.items():
        assert [*each] == look.experts[layer][0].tolist()
        part = found.parts[f"L{layer}.mlp"]
        assert sum(each.values()) == pytest.approx(part, rel=1e-3, abs=1e-3)
    for part in seen.anatomy.parts:
        if part.op.kind != "experts" or part.op.mixture.gating == "sparsemixer":
            continue  # whose share may stay the same
        scores, first = part.op.inputs[1], look.experts[part.layer][0][0]
        other = seen.tensors[scores].copy()
        other[first] -= 4.0  # as if its share had been smaller, or it had not been chosen
        with pytest.raises(CutawayError, match="the experts of"):
            logit_attribution(
                replace(seen, tensors={**seen.tensors, scores: other}), (found.token, 9)
            )


def test_the_experts_that_were_chosen(folders):
    path, model = folders("qwen3_moe-unnormed")
    _, look = looked_into(path, "qwen3_moe-unnormed", "reference")
    with torch.no_grad():
        theirs = model(torch.tensor([look.token_ids]), output_router_logits=True)
    assert [*look.experts] == [0, 1, 2, 3]
    for layer, (chosen, share) in look.experts.items():
        probability = torch.softmax(theirs.router_logits[layer][-1].double(), -1).numpy()
        assert chosen.tolist() == np.argsort(-probability)[:2].tolist()
        np.testing.assert_allclose(share, probability[chosen], atol=1e-4)
    _, normed = looked_into(folders("qwen3_moe")[0], "qwen3_moe", "reference")
    assert all(share.sum() == pytest.approx(1) for _, share in normed.experts.values())
