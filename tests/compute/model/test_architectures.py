"""Each architecture takes the tensors of llama.cpp's converter, all of them and no other."""

import pytest

from cutaway import FormatError
from cutaway.compute import model
from cutaway.compute.model.architectures import tables
from support.converter_files import file_of
from support.converter_layers import HEAD, LAYERS, N, is_optional


def test_no_architecture_is_forgotten():
    assert set(LAYERS) - {"mixtral"} == {name for rows in tables() for name in rows}


@pytest.mark.parametrize("name", ["neo-bert", "t5encoder"])
def test_encoders_that_are_wired_otherwise_are_refused_by_name(name):
    with pytest.raises(FormatError, match=rf"^architecture '{name}' is not supported; docs/fam"):
        model.build({"general.architecture": name}, {})


@pytest.mark.parametrize("name", LAYERS)
def test_every_tensor_is_read_and_none_is_missed(name):
    metadata, shapes = file_of(name)
    _, graph = model.build(metadata, shapes)
    used = {weight for op in graph.ops for weight in op.weights.values()}
    assert used == set(shapes) - ({"rope_factors_long.weight"} if name == "phi3" else set())
    for tensor in shapes:
        fewer = {other: shape for other, shape in shapes.items() if other != tensor}
        if is_optional(tensor):
            model.build(metadata, fewer)
        else:
            with pytest.raises(FormatError, match=r"lacks the tensor|no place|has no head"):
                model.build(metadata, fewer)


def test_a_fused_matrix_has_no_rows_that_nobody_reads():
    metadata, shapes = file_of("phi3")
    rows, cols = shapes["blk.1.attn_qkv.weight"]
    shapes["blk.1.attn_qkv.weight"] = (rows + HEAD, cols)
    with pytest.raises(FormatError, match=rf"blk\.1\.attn_qkv\.weight has {rows + HEAD} rows, not"):
        model.build(metadata, shapes)


def test_a_phi_that_may_read_longer_texts_than_at_first_takes_the_long_factors():
    metadata, shapes = file_of("phi3")
    metadata["phi3.rope.scaling.original_context_length"] = 32
    for context, length in ((None, "long"), (33, "long"), (32, "short")):
        _, graph = model.build(metadata, shapes, context)
        used = {op.weights["factors"] for op in graph.ops if op.kind == "rope"}
        assert used == {f"rope_factors_{length}.weight"}


def test_a_minicpm_without_its_scales_is_to_be_converted_again():
    metadata, shapes = file_of("minicpm")
    del metadata["minicpm.embedding_scale"]
    with pytest.raises(FormatError, match=r"minicpm\.embedding_scale is missing: convert"):
        model.build(metadata, shapes)


def test_every_fourth_layer_of_smollm3_has_no_positions():
    metadata, shapes = file_of("smollm3")
    for i in range(2, 8):
        shapes |= {n.replace("blk.0.", f"blk.{i}."): s for n, s in shapes.items() if "blk.0." in n}
    _, graph = model.build(metadata | {"smollm3.block_count": 8}, shapes)
    turned = {op.out.name.split(".")[1] for op in graph.ops if op.kind == "rope"}
    assert turned == set("012456")


@pytest.mark.parametrize(("said", "has_bias", "gating", "best"), [
    ({}, True, "sigmoid", 2), ({}, False, "softmax", 1),
    ({"deepseek2.expert_gating_func": 1}, True, "softmax", 1),
    ({"deepseek2.expert_gating_func": 2}, True, "sigmoid", 2),
])  # fmt: skip
def test_a_deepseek_that_adds_a_bias_for_the_choice_has_sigmoids(said, has_bias, gating, best):
    metadata, shapes = file_of("deepseek2")
    if not has_bias:
        shapes = {name: shape for name, shape in shapes.items() if "exp_probs_b" not in name}
    _, graph = model.build(metadata | said, shapes)
    [mixture] = {op.mixture for op in graph.ops if op.kind == "experts"}
    assert (mixture.gating, mixture.best_of_group) == (gating, best)


@pytest.mark.parametrize(("said", "gating"), [
    ({}, "sigmoid"), ({"deepseek2.expert_gating_func": 1}, "softmax"),
])  # fmt: skip
def test_a_draft_head_of_a_deepseek_chooses_its_experts_as_the_model_does(said, gating):
    metadata, shapes = file_of("deepseek2")
    metadata |= {"deepseek2.block_count": 3, "deepseek2.nextn_predict_layers": 1, **said}
    shapes |= {n.replace("blk.1.", "blk.2."): s for n, s in shapes.items() if "blk.1." in n}
    shapes |= {f"blk.2.nextn.{name}.weight": (N,) for name in ("enorm", "hnorm")}
    shapes["blk.2.nextn.eh_proj.weight"] = (N, 2 * N)
    graph = model.build_draft_head(metadata, shapes)
    assert {op.mixture.gating for op in graph.ops if op.kind == "experts"} == {gating}
