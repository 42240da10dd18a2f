"""ModelConfig and Graph: what is read, and what is refused in one sentence."""

import re
from math import exp, log1p

import numpy as np
import pytest

from cutaway import FormatError
from cutaway.compute import model
from cutaway.compute.model.architectures import tables
from cutaway.compute.model.architectures.apertus import xielu_of
from cutaway.files.weights import GGUFFile
from support.random_llama import write_tiny_llama


def opened(path):
    with GGUFFile(path) as file:
        return file.metadata, {name: info.shape for name, info in file.tensors.items()}


@pytest.fixture
def tiny(tmp_path):
    return opened(write_tiny_llama(tmp_path / "tiny.gguf"))


def test_sizes_are_read(tiny):
    config, graph = model.build(*tiny)
    assert (config.layers, config.hidden, config.heads, config.kv_heads) == (2, 32, 6, 2)
    assert (config.head_dim, config.rope.dim, config.rope.base) == (8, 8, 10000.0)
    assert graph.ops[-1].out.width == 264


def test_ops_can_run_from_top_to_bottom(tiny):
    _, graph = model.build(*tiny)
    made = set()
    for op in graph.ops:
        assert made.issuperset(op.inputs)
        assert op.out.name not in made
        made.add(op.out.name)


def test_output_matrix_is_the_embedding_when_the_file_has_none(tmp_path):
    _, graph = model.build(*opened(write_tiny_llama(tmp_path / "tied.gguf", tied=True)))
    assert graph.ops[-1].weights["weight"] == "token_embd.weight"


MOE = {"llama.expert_count": 8, "llama.expert_used_count": 2}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"general.architecture": "rwkv6"}, ".rwkv6. is not supported; docs.families.md lists"),
        ({"general.architecture": None}, "architecture None is not supported"),
        ({"llama.block_count": None}, "lacks the metadata key llama.block_count"),
        ({"general.type": "adapter"}, "a LoRA adapter: name the model that it was made for"),
        ({"llama.block_count": 0}, "llama.block_count must be a positive number"),
        ({"llama.block_count": 1.5}, "llama.block_count must be a whole number"),
        ({"llama.block_count": "two"}, "llama.block_count must be a positive number"),
        ({"llama.attention.head_count": 5}, "5 heads cannot be shared evenly by 2 kv heads"),
        ({"llama.attention.head_count": 2}, "q, k, v are 48, 16, 16 wide"),
        ({"llama.attention.value_length": 4}, "head size differs"),
        ({"llama.rope.dimension_count": 7}, "rope dimension 7"),
        *(
            ({"llama.rope.dimension_count_swa": dim}, f"rope dimension {dim} does not fit a head")
            for dim in (7, 64)
        ),
        ({"llama.rope.scaling.type": "dynamic"}, "'dynamic' is not supported .*none, linear, yarn"),
        ({"llama.rope.scaling.type": np.array([1, 2])}, r"rope scaling array.* is not supported"),
        ({"llama.rope.scaling.type": "yarn"}, "lacks the metadata key llama.rope.scaling.factor"),
        ({"llama.rope.scaling.factor": float("nan")}, "rope.scaling.factor must be a positive"),
        ({"llama.rope.scale_linear": -4.0}, "rope.scale_linear must be a positive"),
        ({"llama.expert_count": 8}, "lacks the metadata key llama.expert_used_count"),
        ({"llama.expert_count": 8, "llama.expert_used_count": 9}, "a whole number up to 8"),
        ({"llama.expert_count": 8, "llama.expert_used_count": 2}, "no layer has experts"),
        ({"llama.expert_count": np.array([0, 1])}, "must be a positive number"),
        ({"llama.block_count": 10**9}, "llama.block_count must be a whole number up to 10000"),
        ({"llama.attention.sliding_window_pattern": np.array([True])}, "not one flag a layer"),
        ({"llama.attention.sliding_window_pattern": np.array([1, 2])}, "window_pattern must"),
        ({"llama.attention.sliding_window_pattern": np.array([], np.int32)}, "pattern must be a"),
        ({"general.architecture": "gpt2"}, "lacks the metadata key gpt2"),
        ({"llama.context_length": 2**24 + 1}, "must be a whole number up to 16777216"),
        ({"llama.embedding_length": 48}, "token_embd.weight is 32 wide and the metadata says 48"),
        ({"llama.rope.freq_base": float("inf")}, "must be a positive number"),
        ({"llama.attention.layer_norm_rms_epsilon": 1e300}, "must be a positive number"),
        ({"llama.attention.key_length": 16, "llama.attention.value_length": 16}, "wide"),
        (
            {"llama.attention.key_length": 32, "llama.attention.value_length": 32},
            "which is no whole number of heads",
        ),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "must be a positive number"),
        ({"llama.attention.head_count_kv": np.array([2, 1])}, "must be a positive number"),
        ({"llama.attention.head_count_kv": np.array([2])}, "kv has 1 values for 2 layers"),
        ({"llama.attention.layer_norm_rms_epsilon": np.array([1e-5])}, "1 values for 2 layers"),
        ({"llama.attention.sliding_window": 2**31}, "sliding_window must be .* up to 2147483647"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, "lacks .*layer_norm_rms_epsilon"),
        ({"llama.attention.layer_norm_rms_epsilon": np.array([1, 2])}, "rms_epsilon must be a pos"),
        ({"llama.attention.causal": 0}, "attention.causal must be true or false"),
        (
            {"llama.attention.causal": False, "llama.attention.sliding_window": 1},
            "sliding_window is 1, which holds no neighbour",
        ),
        ({"llama.attention.clamp_kqv": 8.0}, "attention.clamp_kqv is 8.0, .* only 0 is"),
        ({"llama.attention.max_alibi_bias": np.array([0, 0])}, "max_alibi_bias is array"),
        (MOE | {"llama.expert_gating_func": 4}, "gating_func is 4, .* only 1, 2, 3 are"),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 2.0,
                "llama.rope.scaling.original_context_length": 16,
                "llama.rope.scaling.yarn_log_multiplier": float("nan"),
            },
            "yarn_log_multiplier must be a positive",
        ),
        ({"llama.nextn_predict_layers": 2}, "is 2 of 2 layers, which leaves none"),
        ({"llama.attention.temperature_scale": 0.1}, "original_context_length is not"),
        ({"llama.block_count": 1}, r"tensor 'blk\.1\..* has no place"),
        ({"llama.block_count": 3}, r"lacks the tensor blk\.2\.attn_norm\.weight"),
    ],
)
def test_metadata_that_cannot_be_is_refused(tiny, change, sentence):
    metadata, shapes = dict(tiny[0]), tiny[1]
    for key, value in change.items():
        metadata[key] = value
    with pytest.raises(FormatError, match=sentence):
        model.build(metadata, shapes)


@pytest.mark.parametrize(
    "key",
    ["rope.scaling.factor", "rope.scale_linear", "expert_count", "attention.clamp_kqv",
     "expert_group_count", "expert_weights_scale", "attention.sliding_window"],
)  # fmt: skip
@pytest.mark.parametrize("value", [0, 0.0])
def test_variants_that_change_nothing_are_fine(tiny, key, value):
    assert model.build(dict(tiny[0]) | {f"llama.{key}": value}, tiny[1])


def test_blocks_that_guess_ahead_are_read_past(tiny):
    metadata = dict(tiny[0]) | {"llama.block_count": 3, "llama.nextn_predict_layers": 1}
    more = {"blk.2.nextn.eh_proj.weight": (32, 64), "blk.2.attn_norm.weight": (32,)}
    config, graph = model.build(metadata, {**tiny[1], **more})
    assert (config.layers, config.unrun_layers) == (2, 1)
    assert graph.ops == model.build(*tiny)[1].ops


def test_queries_may_grow_with_their_positions_and_keys_do_not(tiny):
    metadata = dict(tiny[0]) | {
        "llama.attention.temperature_scale": 0.1, "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0, "llama.rope.scaling.original_context_length": 16,
        "llama.rope.scaling.yarn_log_multiplier": 1.0,
    }  # fmt: skip
    config, graph = model.build(metadata, tiny[1])
    ropes = [op.rope for op in graph.ops if op.kind == "rope"]
    assert ropes == [config.rope_queries, config.rope] * 2
    assert (config.rope_queries.growth, config.rope_queries.period) == (0.1, 16)
    assert config.rope.attention_factor == 1  # of yarn's own and the scores', one by the other


def test_one_value_per_layer_is_fine_when_all_agree(tiny):
    metadata = dict(tiny[0]) | {"llama.attention.head_count_kv": np.array([2, 2])}
    assert model.build(metadata, tiny[1])[0].kv_heads == 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"output_norm.weight": None}, "lacks the tensor output_norm.weight"),
        ({"output_norm.weight": (31,)}, r"output_norm.weight has shape \(31,\), not \(32,\)"),
        ({"output_norm.weight": (32, 1)}, "has 2 dimensions, not 1"),
        ({"blk.0.ffn_up.weight": (96, 33)}, "takes 33 inputs; 32 come in"),
        ({"blk.0.attn_q_norm.weight": (8,)}, "attn_q_norm.weight' .* has no place"),
        ({"\udcff\x1b": (8,)}, r"tensor '\\udcff\\x1b' .* has no place"),
        ({"blk.0.ffn_gate.weight": None}, r"lacks the tensor blk\.0\.ffn_gate\.weight"),
        ({"blk.1.attn_qkv.weight": (80, 32)}, r"blk\.1\.attn_q\.weight' .* has no place"),
        ({"token_embd.weight": (263, 32)}, "the model reads 263 tokens and predicts 264"),
        ({"rope_freqs.weight": (5,)}, r"rope_freqs.weight has shape \(5,\), not \(4,\)"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tiny, change, sentence):
    shapes = dict(tiny[1]) | change
    shapes = {name: shape for name, shape in shapes.items() if shape is not None}
    with pytest.raises(FormatError, match=sentence):
        model.build(tiny[0], shapes)


def test_experts_in_a_tensor_each_are_refused_with_what_to_do(tiny):
    """Mixtral's first files."""
    metadata = dict(tiny[0]) | {"llama.expert_count": 2, "llama.expert_used_count": 1}
    shapes = dict(tiny[1]) | {"blk.0.ffn_up.0.weight": (96, 32)}
    shapes["blk.0.ffn_gate_inp.weight"] = (2, 32)
    with pytest.raises(FormatError, match=r"a tensor for each expert.* convert the model again"):
        model.build(metadata, shapes)


def test_every_sentence_is_one_line(tiny):
    with pytest.raises(FormatError) as caught:
        model.build(tiny[0], {})
    assert re.fullmatch(r"[^\n]+", str(caught.value))


def sizes(architecture, layers=4, besides=None, **more):
    """What a file of an architecture says that says as little as it may.

    more: with the architecture's prefix; besides: as they are
    """
    plain = {
        "context_length": 8192, "embedding_length": 96, "block_count": layers,
        "attention.head_count": 4, "attention.key_length": 16, "attention.value_length": 16,
        "attention.layer_norm_rms_epsilon": 1e-6, "attention.layer_norm_epsilon": 1e-5,
    }  # fmt: skip
    keys = plain | {key.replace("__", "."): value for key, value in more.items()}
    own = {f"{architecture}.{key}": value for key, value in keys.items()}
    return model.config_of({"general.architecture": architecture} | own | (besides or {}))


def test_what_the_first_files_of_gemma_2_leave_unsaid():
    """llama.cpp: they had neither the window nor the caps."""
    config = sizes("gemma2")
    assert config.windows == (4096, 0, 4096, 0)
    assert (config.attention_softcap, config.logit_softcap) == (50.0, 30.0)
    assert sizes("gemma2", attention__sliding_window=64).windows == (64, 0, 64, 0)


@pytest.mark.parametrize(("architecture", "large"), [("gemma2", 46), ("gemma3", 62)])
def test_the_largest_gemma_scales_by_its_share_of_the_stream(architecture, large):
    """gemma_pytorch's config: 27B has query_pre_attn_scalar hidden / heads, others head_dim."""
    assert sizes(architecture, large).attention_scale == (96 / 4) ** -0.5
    assert sizes(architecture, large - 1).attention_scale == 16**-0.5
    assert sizes(architecture, large, attention__scale=0.5).attention_scale == 0.5


def test_windows_of_gemma_3():
    """Its local layers turn by a base of their own, and are not stretched."""
    config = sizes("gemma3", 7, attention__sliding_window=512, rope__scaling__factor=8.0)
    assert config.windows == (512,) * 5 + (0, 512)
    assert (config.rope.linear_factor, config.rope_local.linear_factor) == (8.0, 1.0)
    assert (config.rope.rotate_half, config.rope_local.base) == (True, 10000.0)
    every = sizes("gemma3", attention__sliding_window=8, attention__sliding_window_pattern=2)
    flags = np.array([True, False, True, False])
    named = sizes("gemma3", attention__sliding_window=8, attention__sliding_window_pattern=flags)
    assert every.windows == named.windows == (8, 0, 8, 0)
    assert sizes("gemma3").windows == (0,) * 4


def test_windows_to_both_sides():
    """A file has the whole of it; the first of three layers sees all, and turns by another base."""
    config = sizes("modern-bert", 5, attention__sliding_window=128, rope__freq_base=160000.0)
    assert config.windows == (0, 64, 64, 0, 64)
    assert (config.rope.base, config.rope_local.base) == (160000.0, 10000.0)
    every = {"attention__sliding_window": 129, "attention__sliding_window_pattern": 2}
    assert sizes("modern-bert", 4, **every).windows == (0, 64, 0, 64)
    flags = np.array([True, False, True, False])
    every["attention__sliding_window_pattern"] = flags
    assert sizes("modern-bert", **every).windows == (64, 0, 64, 0)
    assert sizes("modern-bert").windows == (0,) * 4
    with pytest.raises(FormatError, match="sliding_window is 1, which holds no neighbour"):
        sizes("modern-bert", attention__sliding_window=1)


def test_the_activation_of_an_encoder_is_what_the_file_says():
    names = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
    for architecture in ("bert", "modern-bert"):
        assert sizes(architecture).activation == "gelu"
        for name, activation in names.items():
            assert sizes(architecture, hidden_activation=name).activation == activation
        with pytest.raises(FormatError, match=r"activation is 'relu', .* supported: gelu, "):
            sizes(architecture, hidden_activation="relu")
    assert sizes("modern-bert", hidden_activation="silu").activation == "silu"
    with pytest.raises(FormatError, match="'silu', which is not supported"):
        sizes("bert", hidden_activation="silu")


def test_sight_is_what_the_file_says_and_else_the_architecture_s():
    assert sizes("llama").attention == "causal"
    assert sizes("llama", attention__causal=False).attention == "bidirectional"
    for name in ("bert", "dream", "llada", "llada-moe", "rnd1"):
        assert sizes(name).attention == "bidirectional"
    assert sizes("llama", besides={"cutaway.block_size": 4}).attention == 4
    with pytest.raises(FormatError, match=r"cutaway\.block_size must be a positive number"):
        sizes("llama", besides={"cutaway.block_size": "four"})
    with pytest.raises(FormatError, match="windows are not supported where tokens see blocks of 4"):
        sizes("llama", besides={"cutaway.block_size": 4}, attention__sliding_window=64)


def test_rows_are_shifted_where_the_file_says_so_and_else_as_llama_cpp_has_it():
    key = "diffusion.shift_logits"
    assert [sizes(name).shift for name in ("llama", "dream", "llada")] == [False, True, False]
    assert [sizes(name).shift for name in ("llada-moe", "rnd1")] == [False, True]
    assert sizes("llama", besides={key: True}).shift
    assert not sizes("dream", besides={key: False}).shift


XIELU = dict.fromkeys((f"xielu.{name}" for name in ("alpha_p", "alpha_n", "beta", "eps")), 0.0)


INKLING = {
    "loop__first": 1, "loop__last": 2, "loop__passes": 2, "attention__residual_block_size": 1,
    "attention__head_clip": 1.0, "attention__relative_clip": 1.0,
    "attention__query_growth_floor": 8,
}  # fmt: skip


def test_each_architecture_has_its_own_epsilon():
    needed = {  # by one or another
        "ssm__group_count": 2, "ssm__time_step_rank": 4, "ssm__state_size": 8,
        "ssm__inner_size": 64, "ssm__conv_kernel": 4, "attention__kv_lora_rank": 16,
        "rope__dimension_count": 2, "attention__relative_buckets_count": 8,
        "attention__head_count_kv": 4, "wkv__head_size": 8, "slow_cycles": 2, "fast_cycles": 2,
        **INKLING,
    }  # fmt: skip
    for name, row in ((name, row) for rows in tables() for name, row in rows.items()):
        eps = 1e-5 if row.layer_norm else 1e-6
        assert sizes(name, besides=XIELU, **needed).norm_eps == eps


@pytest.mark.parametrize("slow", [129, 10**9])
def test_a_small_file_is_not_deeper_than_1024_layers(slow):
    cycles = {"fast_cycles": 3, "attention__head_count_kv": 4}
    assert sizes("hrm-text", slow_cycles=128, **cycles).slow_cycles == 128
    sentence = f"slow_cycles and fast_cycles make the model {8 * slow} layers deep; up to 1024 are"
    with pytest.raises(FormatError, match=rf"^hrm-text\.{sentence} supported$"):
        sizes("hrm-text", slow_cycles=slow, **cycles)


@pytest.mark.parametrize("passes", [1022, 10**9])
def test_a_small_file_does_not_run_some_layers_any_number_of_times(passes):
    loop = INKLING | {"attention__head_count_kv": 4}
    assert sizes("inkling2", **loop | {"loop__passes": 1021}).loop.passes == 1021
    sentence = f"loop.passes makes the model {passes + 3} layers deep; up to 1024 are supported"
    with pytest.raises(FormatError, match=rf"^inkling2\.{sentence}$"):
        sizes("inkling2", **loop | {"loop__passes": passes})


def test_a_small_file_does_not_mix_any_number_of_sums():
    """With what mixes them, the graph would have millions of ops."""
    loop = INKLING | {"attention__head_count_kv": 4}
    assert sizes("inkling2", 89, **loop).layers == 89  # 90 · 90 = 8,100
    keys = r"block_count, attention\.residual_block_size and loop\.passes make"
    sentence = f"{keys} 1024 layers read up to 1024 sums each; up to 8192 sums in all are supported"
    with pytest.raises(FormatError, match=rf"^inkling2\.{sentence}$"):
        sizes("inkling2", 1023, **loop)


def test_neox_is_parallel_unless_it_says_otherwise():
    assert sizes("gptneox").is_parallel
    assert not sizes("gptneox", use_parallel_residual=False).is_parallel
    assert not sizes("starcoder2").is_parallel
    with pytest.raises(FormatError, match=r"gptneox\.use_parallel_residual must be true or false"):
        sizes("gptneox", use_parallel_residual=1)


@pytest.mark.parametrize(("architecture", "heads"), [("deepseek2", 4), ("minicpm3", 128)])
def test_a_length_of_values_that_cannot_be_guessed_is_missed(architecture, heads):
    """Only MiniCPM 3's files leave it out; it is the hidden size divided by the heads."""
    metadata = {
        f"{architecture}.{key}": value for key, value in {
            "context_length": 64, "embedding_length": 96, "block_count": 1,
            "attention.head_count": heads, "attention.key_length": 48,
            "attention.kv_lora_rank": 32, "rope.dimension_count": 16,
        }.items()
    }  # fmt: skip
    with pytest.raises(FormatError, match=rf"lacks .* {architecture}\.attention\.value_length"):
        model.config_of({"general.architecture": architecture} | metadata)


@pytest.mark.parametrize(
    ("architecture", "key", "value"),
    [("granite", "rope__scaling__finetuned", False)],
)
def test_variants_of_one_architecture_are_refused(architecture, key, value):
    """Granite 4 without positions."""
    with pytest.raises(FormatError, match=f"{key.replace('__', '.')} is {value}, .* not supported"):
        sizes(architecture, **{key: value})
    assert sizes("llama", **{key: value})


def test_longrope_with_a_factor_is_stretched_too():
    stretch = {"rope__scaling__type": "longrope", "rope__scaling__factor": 4.0}
    assert sizes("phi3", **stretch).rope.linear_factor == 4.0
    assert sizes("phi3", **stretch | {"rope__scaling__type": "none"}).rope.linear_factor == 1.0


# -- xIELU's constants, as files have them ---------------------------------------------------------


STORED = {
    "xielu.alpha_p": [0.1, -0.2, 0.3], "xielu.alpha_n": np.float32([0, 1, 2]),
    "xielu.beta": 0.5, "xielu.eps": -1e-6,
}  # fmt: skip


def softplus(x):
    return log1p(exp(x))


def test_files_have_what_softplus_is_taken_of_for_each_layer_or_for_all():
    found = xielu_of(STORED, 3)
    assert [each.above for each in found] == pytest.approx([softplus(x) for x in (0.1, -0.2, 0.3)])
    assert [each.below for each in found] == pytest.approx([0.5 + softplus(x) for x in (0, 1, 2)])
    assert [each.linear for each in found] == [0.5] * 3


def test_a_file_without_them_is_refused():
    with pytest.raises(FormatError, match=r"xielu\.alpha_p must be a number for each of 4 layers"):
        sizes("apertus")


@pytest.mark.parametrize("key, value, said", [
    ("xielu.beta", None, "xielu.beta must be a number for each of 3 layers"),
    ("xielu.alpha_n", [1, 2], "xielu.alpha_n must be a number for each of 3 layers"),
    ("xielu.alpha_p", "many", "xielu.alpha_p must be a number for each of 3 layers"),
    ("xielu.alpha_p", [0, float("nan"), 0], "xielu.alpha_p must be a number for each"),
    ("xielu.eps", -0.5, "xielu.eps must be within 1e-05 of 0"),
])  # fmt: skip
def test_what_is_not_so_is_refused_by_key(key, value, said):
    with pytest.raises(FormatError, match=said):
        xielu_of({**STORED, key: value}, 3)
