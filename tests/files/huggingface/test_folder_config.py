"""config.json as GGUF's metadata: what each family says, and what is refused by name.

`test_absent_keys` has what is read where a key is absent; `test_families` has logits.
"""

import json
import re
from math import log, sqrt

import numpy as np
import pytest

from cutaway import FormatError
from cutaway.files.huggingface.config import Config
from support.random_models import FAMILIES

BASE = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
}  # fmt: skip
GEMMA = {"head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 24}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}


def read(folder, **values):
    (folder / "config.json").write_text(json.dumps(values))
    return Config(folder)


def own(found):
    """The metadata that not every family has, without the prefix."""
    common = {"context_length", "embedding_length", "block_count", "feed_forward_length"}
    items = {k.partition(".")[2]: v for k, v in found.metadata.items()}
    return {
        k: v for k, v in items.items()
        if k not in common | {"architecture", "name"}
        and not re.match("attention.(head|key|value|layer)", k)
    }  # fmt: skip


ROPE = {"rope.freq_base": 10000.0, "rope.dimension_count": 16}
MEANT = {
    "llama": ({}, ROPE),
    "mistral": ({"sliding_window": 9}, ROPE | {"attention.sliding_window": 9}),
    "mixtral": (
        {"num_local_experts": 3},
        ROPE | {"rope.freq_base": 1e6, "expert_count": 3, "expert_used_count": 2},
    ),
    "smollm3": ({}, ROPE | {"rope.freq_base": 2e6}),
    "granite": (
        {"attention_multiplier": 0.5, "logits_scaling": 8},
        ROPE | {"attention.scale": 0.5, "embedding_scale": 1.0, "residual_scale": 1.0,
                "logit_scale": 8.0},
    ),
    "qwen2": ({"rope_theta": 1e6, "sliding_window": 4096}, ROPE | {"rope.freq_base": 1e6}),
    "qwen3": ({}, ROPE | {"rope.dimension_count": 128}),
    "qwen3_moe": (
        {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
         "norm_topk_prob": True, "head_dim": 32},
        {"rope.freq_base": 10000.0, "rope.dimension_count": 32, "expert_count": 5,
         "expert_used_count": 2, "expert_feed_forward_length": 32, "expert_weights_norm": True},
    ),
    "gemma2": (
        GEMMA | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        {"rope.freq_base": 10000.0, "rope.dimension_count": 32, "attention.sliding_window": 8,
         "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
         "attention.scale": 24**-0.5},
    ),
    "gemma3_text": (
        GEMMA | {"query_pre_attn_scalar": 32, "rope_local_base_freq": 300,
                 "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {"rope.freq_base": 1e6, "rope.dimension_count": 32, "attention.sliding_window": 8,
         "rope.freq_base_swa": 300.0, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0,
         "attention.scale": 32**-0.5},
    ),
    "phi3": ({"partial_rotary_factor": 0.75}, ROPE | {"rope.dimension_count": 12,
                                                      "attention.sliding_window": 0}),
    "gpt_neox": (
        {"layer_norm_eps": 1e-5, "rotary_pct": 0.5, "rotary_emb_base": 500},
        {"rope.freq_base": 500.0, "rope.dimension_count": 8, "use_parallel_residual": True},
    ),
    "olmo2": ({}, ROPE),
}  # fmt: skip


@pytest.mark.parametrize("family", MEANT)
def test_what_a_family_says_of_itself(tmp_path, family):
    values, wanted = MEANT[family]
    found = read(tmp_path, model_type=family, **(BASE | values))
    assert own(found) == wanted
    assert found.metadata["general.name"] == tmp_path.name


def test_sizes_have_ggufs_names(tmp_path):
    found = read(tmp_path, model_type="llama", **BASE, head_dim=24)
    sizes = {k: v for k, v in found.metadata.items() if k.startswith("llama.") and "rope" not in k}
    assert sizes == {
        "llama.context_length": 256, "llama.embedding_length": 64, "llama.block_count": 4,
        "llama.feed_forward_length": 96, "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2, "llama.attention.key_length": 24,
        "llama.attention.value_length": 24, "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip


def test_gpt2_calls_them_otherwise(tmp_path):
    found = read(tmp_path, model_type="gpt2", **GPT2).metadata
    assert found["gpt2.feed_forward_length"] == 256
    assert found["gpt2.context_length"] == 128
    assert found["gpt2.attention.layer_norm_epsilon"] == 1e-5
    assert not any("rope" in key for key in found)
    with pytest.raises(FormatError, match=r"config\.json: n_embd is missing"):
        read(tmp_path, model_type="gpt2", **{k: v for k, v in GPT2.items() if k != "n_embd"})


def test_the_text_part_of_gemma3_is_used(tmp_path):
    found = read(
        tmp_path, model_type="gemma3", text_config=BASE | GEMMA | {"model_type": "gemma3_text"},
        eos_token_id=[1, 106],
    )  # fmt: skip
    assert found.metadata["gemma3.embedding_length"] == 64
    assert found.settings.get("eos_token_id") == [1, 106]


def gemma4(**values):
    """12 layers, of which two see all."""
    rope = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
    return BASE | GEMMA | {
        "model_type": "gemma4_text", "num_hidden_layers": 12,
        "rope_parameters": {"full_attention": rope, "sliding_attention": {"rope_theta": 1e4}},
    } | values  # fmt: skip


@pytest.mark.parametrize("names", [("05", "11"), ("5", "11")])
def test_layers_of_gemma4_that_see_all_are_named_with_zeros_before_or_without(tmp_path, names):
    wide = {"head_dim": 64, "num_key_value_heads": 1}
    found = read(tmp_path, **gemma4(per_layer_config=dict.fromkeys(names, wide)))
    assert found.metadata["gemma4.attention.key_length"] == 64
    assert found.metadata["gemma4.attention.key_length_swa"] == 32
    counts = found.metadata["gemma4.attention.head_count_kv"].tolist()
    assert counts == [2, 2, 2, 2, 2, 1] * 2


@pytest.mark.parametrize(
    "names", [("05", "10"), ("05",), ("5", "05"), ("5", "x"), ("5", "1" * 5000)]
)
def test_other_layers_of_gemma4_of_another_size_are_refused(tmp_path, names):
    with pytest.raises(FormatError, match=r"per_layer_config is .* only layers of one kind that"):
        read(tmp_path, **gemma4(per_layer_config={name: {"head_dim": 64} for name in names}))


@pytest.mark.parametrize("size", [[64], {"of": 64}, 64.0, True])
def test_a_size_of_gemma4s_layers_that_is_no_whole_number_is_refused(tmp_path, size):
    per_layer = {"5": {"head_dim": 64}, "11": {"head_dim": size}}
    with pytest.raises(FormatError, match=r"11: head_dim is .*; it must be a whole number from 1"):
        read(tmp_path, **gemma4(per_layer_config=per_layer))


# -- rotary positions ------------------------------------------------------------------------------


_NEW = {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 700.0}}
_OLD = {"rope_theta": 700.0, "rope_scaling": {"type": "linear", "factor": 4.0}}


@pytest.mark.parametrize("values", [_NEW, _OLD, _NEW | _OLD])
def test_rope_is_read_as_transformers_4_and_5_write_it(tmp_path, values):
    assert own(read(tmp_path, model_type="llama", **BASE, **values)) == {
        "rope.freq_base": 700.0, "rope.dimension_count": 16,
        "rope.scaling.type": "linear", "rope.scaling.factor": 4.0,
    }  # fmt: skip


def test_llama3s_factors_are_those_of_transformers(tmp_path):
    transformers = pytest.importorskip(
        "transformers", reason="needs transformers: pip install '.[test-transformers]'"
    )
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    row = FAMILIES["llama3-rope"]
    theirs = getattr(transformers, row.config)(**row.values)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](theirs, "cpu")
    dims, base = 16, row.values["rope_parameters"]["rope_theta"]
    plain = base ** (-np.arange(0, dims, 2) / dims)
    (tmp_path / "config.json").write_text(json.dumps(theirs.to_dict()))
    factors = Config(tmp_path).tensors["rope_freqs.weight"]
    assert factors.dtype == np.float32
    assert len(set(factors.tolist())) >= 3  # all three kinds occur
    assert np.allclose(plain / factors, scaled.numpy(), rtol=1e-5)


def test_yarn_is_said_as_gguf_says_it(tmp_path):
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    found = own(read(tmp_path, model_type="qwen3", **BASE, rope_scaling=rope))
    assert found | {"rope.dimension_count": 0} == ROPE | {
        "rope.dimension_count": 0, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 64,
    }  # fmt: skip
    rope |= {"attention_factor": 2.0, "beta_fast": 16}
    found = own(read(tmp_path, model_type="qwen3", **BASE, rope_scaling=rope))
    assert found["rope.scaling.attn_factor"] == 2.0 / (0.1 * log(4.0) + 1)
    assert found["rope.scaling.yarn_beta_fast"] == 16.0


@pytest.mark.parametrize("kind", ["longrope", "su"])
def test_longrope_brings_two_tensors(tmp_path, kind):
    rope = {"type": kind, "long_factor": [2.0] * 8, "short_factor": [1] * 8}
    found = read(
        tmp_path, model_type="phi3", **BASE, rope_scaling=rope, original_max_position_embeddings=64
    )
    assert found.tensors["rope_factors_long.weight"].tolist() == [2.0] * 8
    assert found.tensors["rope_factors_short.weight"].tolist() == [1.0] * 8
    metadata = own(found)
    assert metadata["rope.scaling.original_context_length"] == 64
    assert metadata["rope.scaling.attn_factor"] == sqrt(1 + log(4) / log(64))


# -- keys that are not there, and such as are null -------------------------------------------------


@pytest.mark.parametrize(("family", "window"), [("mistral", 4096), ("exaone4", 4096)])
def test_an_absent_window_is_not_null(tmp_path, family, window):
    key = "attention.sliding_window"
    assert own(read(tmp_path, model_type=family, **BASE))[key] == window
    assert key not in own(read(tmp_path, model_type=family, **BASE, sliding_window=None))


def test_a_model_without_a_class_in_transformers_has_the_defaults_of_its_like(tmp_path):
    found = read(tmp_path, model_type="kimi_k2", **BASE, kv_lora_rank=32)
    assert own(found)["expert_group_count"] == 8


@pytest.mark.parametrize("name", ["num_experts", "num_local_experts"])
def test_both_names_of_a_key_are_known(tmp_path, name):
    found = read(tmp_path, model_type="qwen3_moe", **BASE, **{name: 5})
    assert own(found)["expert_count"] == 5


def test_a_part_for_text_has_the_defaults_of_its_own_class(tmp_path):
    text = BASE | {"model_type": "ministral3"}
    found = own(read(tmp_path, model_type="mistral3", text_config=text))
    assert found["rope.dimension_count"] == 128
    assert found["rope.scaling.factor"] == 16.0


def test_bamba_s_rows_are_as_many_pairs_as_it_rotates(tmp_path):
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    values = {"attn_layer_indices": [1], "mamba_n_heads": 8, "rope_parameters": rope}
    found = read(tmp_path, model_type="bamba", **BASE, **values)
    assert own(found)["rope.dimension_count"] == 4
    rows = found.family.rewrites_of(found.settings)["attn_q"](np.arange(64.0).reshape(64, 1))
    assert rows[:16, 0].tolist() == [0, 2, 1, 3, *range(4, 16)]


# -- refusals --------------------------------------------------------------------------------------

SLIDING = ["sliding_attention"] * 4
FULL = ["full_attention"] * 4
DENSE = {"num_local_experts": 0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
}  # fmt: skip
REFUSED = [
    ("llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu', which is not supported; only 'silu'"),
    ("llama", {"hidden_size": None}, "hidden_size is missing"),
    ("llama", {"hidden_size": -3}, "hidden_size is -3; it must be a whole number from 1"),
    ("llama", {"hidden_size": 66}, "a whole number of times the 4 attention heads"),
    ("llama", {"num_hidden_layers": 2.5}, "num_hidden_layers is 2.5"),
    ("llama", {"rms_norm_eps": True}, "rms_norm_eps is True; it must be a number of an"),
    ("llama", {"rms_norm_eps": 10**400}, "rms_norm_eps is 1000.*; it must be a number of an ord"),
    ("llama", {"rms_norm_eps": 1e300}, "rms_norm_eps is 1e.300; it must be a number of an ordi"),
    ("llama", {"partial_rotary_factor": 1e30}, "partial_rotary_factor is 1e.30; .* up to 1"),
    ("llama", {"partial_rotary_factor": 1e-3}, "partial_rotary_factor is 0.001; .* each head"),
    ("gpt_neox", {"rotary_pct": 1e9, "rope_scaling": LLAMA3}, "a share of each head, up to 1"),
    ("llama", {"rope_theta": 5e-324, "rope_scaling": LLAMA3}, "rope_theta is 5e-324"),
    ("mistral", {"sliding_window": 2**31}, "sliding_window is 2147483648; it must be a whole"),
    ("llama", {"rms_norm_eps": 0}, "rms_norm_eps is 0; it must be above 0"),
    ("llama", {"tie_word_embeddings": 1}, "tie_word_embeddings is 1; it must be true or false"),
    ("llama", {"quantization_config": {"quant_method": "hqq"}}, "quantised with 'hqq', and"),
    ("llama", {"rope_scaling": {"type": "xpos"}}, "rope_type is 'xpos'"),
    ("llama", {"rope_scaling": 7}, "rope_scaling is 7; it must be an object"),
    ("llama", {"rope_scaling": {"type": "linear"}}, "rope_parameters: factor is missing"),
    ("llama", {"rope_scaling": {"type": "yarn", "factor": 2, "truncate": False}}, "truncate is Fa"),
    *(
        ("llama", {"rope_parameters": {"rope_type": "default"}, "rope_scaling": other},
         "rope_scaling is .* not supported; rope_parameters is there, too, and differs: remove one")
        for other in ({"type": "linear", "factor": 8.0}, {"rope_type": "weird"})
    ),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    ("mistral", {"layer_types": SLIDING, "sliding_window": None}, "layer_types is"),
    ("smollm3", {"no_rope_layers": [1, 1, 1, 1]}, "no_rope_layers is"),
    ("smollm3", {"no_rope_layer_interval": 3}, "no_rope_layer_interval is 3"),
    ("smollm3", {"use_sliding_window": True}, "use_sliding_window is True"),
    ("qwen2", {"use_sliding_window": True}, "use_sliding_window is True"),
    ("qwen3_moe", {"mlp_only_layers": [1]}, "mlp_only_layers is"),
    ("qwen3_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
    ("gemma2", GEMMA | {"attn_logit_softcapping": None}, "attn_logit_softcapping is missing"),
    ("gemma2", GEMMA | {"layer_types": SLIDING}, "layer_types is"),
    ("gemma3_text", GEMMA | {"sliding_window_pattern": 2}, "sliding_window_pattern is 2"),
    ("gemma3_text", GEMMA | {"layer_types": [*SLIDING[:3], "full_attention"]}, "layer_types is"),
    ("gemma3_text", GEMMA | {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
    ("gemma3_text", GEMMA | {"hidden_activation": "gelu"}, "hidden_activation is 'gelu'"),
    ("phi3", {"rope_scaling": {"type": "longrope", "long_factor": [1]}}, "a list of 8 numbers"),
    ("phi3", {"rope_scaling": {"type": "longrope", "long_factor": [10**400]}}, "a list of numbers"),
    ("phi3", {"rope_scaling": {"type": "longrope", "long_factor": [1e300]}}, "a list of numbers"),
    *(
        ("gpt_oss", {"num_local_experts": 4, "rope_parameters": YARN | more}, "truncate is ")
        for more in ({}, {"truncate": True})
    ),
    ("deepseek_v3", {"rope_parameters": YARN | {"mscale_all_dim": 0.7}}, "mscale is None.* 0.7, i"),
    ("deepseek_v3", {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0,
     "attention_factor": 1.5}}, "attention_factor is 1.5"),
    ("deepseek_v3", {"rope_interleave": None}, "rope_interleave is None, .* only True is"),
    ("phimoe", {"num_experts_per_tok": 3}, "num_experts_per_tok is 3, .*; only 2 is"),
    *(
        ("granitemoehybrid", {"layer_types": FULL, "position_embedding_type": kind} | DENSE,
         f"position_embedding_type is {kind!r}, .* only 'rope' is")
        for kind in (None, "nope")
    ),
    ("exaone4", {"layer_types": FULL, "sliding_window": 8}, "layer_types is .* only with sl"),
    ("llama4_text", {"no_rope_layer_interval": 1, "layer_types": FULL}, "no_rope_layers is .* no"),
    ("smollm3", {"layer_types": SLIDING}, "layer_types is"),
    ("qwen2_moe", {"layer_types": SLIDING}, "layer_types is .* only full_attention is"),
    ("qwen2", {"layer_types": 7}, "layer_types is 7, .* only full_attention is"),
    *(
        ("gemma3n_text", {"intermediate_size": [96, 96, 96, width]}, "intermediate_size .*whole")
        for width in (0, 3.5, 1e20)
    ),
    ("gpt_neox", {"hidden_act": "gelu_fast"}, "hidden_act is 'gelu_fast'"),
    ("gpt2", GPT2 | {"activation_function": "relu"}, "activation_function is 'relu'"),
    ("gpt2", GPT2 | {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    ("t5", {}, "model_type 't5' is not supported; supported: llama, mistral, mixtral, smollm3"),
    ("deepseek_v32", {}, "DeepSeek V3.2 is not supported: an indexer .index_topk. chooses"),
    ("mimo_v2", {}, "MiMo-V2.5 and 2.6 are not supported: one matrix in FP8 has the queries, keys"),
    (None, {}, "model_type is missing; supported: "),
]  # fmt: skip


@pytest.mark.parametrize(("family", "values", "sentence"), REFUSED)
def test_what_would_change_the_numbers_is_refused(tmp_path, family, values, sentence):
    with pytest.raises(FormatError, match=sentence):
        read(tmp_path, model_type=family, **(BASE | values))


@pytest.mark.parametrize(("text", "sentence"), [
    ("{", "no sound JSON"), ("[]", "no JSON object"), ("[" * 100_000, "no sound JSON"),
    ("{}", "missing or empty"),
])  # fmt: skip
def test_a_file_that_is_no_config_is_refused(tmp_path, text, sentence):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(FormatError, match=f"config.json.*{sentence}"):
        Config(tmp_path)


def test_no_config_is_no_model(tmp_path):
    with pytest.raises(FormatError, match=r"config\.json is missing"):
        Config(tmp_path)
