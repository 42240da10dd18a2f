"""Metadata of each family of encoders beyond the sizes that all have; see `family_keys`."""

from typing import Any

from cutaway.files.huggingface.family_keys import GELU, gemma3, local_base, pattern, plain
from cutaway.files.huggingface.json_object import JsonObject


def bert(config: JsonObject) -> dict[str, Any]:
    """An encoder: each token sees all."""
    config.must_be("hidden_act", *GELU)
    config.must_be("position_embedding_type", "absolute")
    config.must_be("tie_word_embeddings", True)
    config.must_be("is_decoder", False)
    config.must_be("add_cross_attention", False)
    return {"attention.causal": False, "hidden_activation": config.text("hidden_act")}


def albert(config: JsonObject) -> dict[str, Any]:
    """As BERT; all layers are one, which is the only one of its group."""
    config.must_be("num_hidden_groups", 1)
    config.must_be("inner_group_num", 1)
    return bert(config)


def jina_bert(config: JsonObject) -> dict[str, Any]:
    """jina v2: no positions, but a bias by distance."""
    config.must_be("feed_forward_type", "geglu")
    config.must_be("emb_pooler", "mean")
    return {"attention.causal": False, "attention.max_alibi_bias": 8.0}


def mpnet(config: JsonObject) -> dict[str, Any]:
    """As RoBERTa, with learned biases by distance; 32 buckets up to 128 tokens."""
    config.must_be("relative_attention_num_buckets", 32)
    return roberta(config.meant({}, {"pad_token_id": 1, "hidden_act": "gelu"}))


def nomic_bert(config: JsonObject) -> dict[str, Any]:
    """nomic v1 and v1.5: no positions but rotary ones, and gated MLPs."""
    config.must_be("hidden_act", "silu", "swiglu")
    config.must_be("prenorm", False)
    config.must_be("use_rms_norm", False)
    config.must_be("rotary_emb_interleaved", False)
    config.must_be("num_experts", 0)
    return {"attention.causal": False}


def nomic_bert_moe(config: JsonObject) -> dict[str, Any]:
    """nomic v2: in every so-many-th layer a mixture of MLPs without gates."""
    config.must_be("hidden_act", "gelu")
    for key in ("prenorm", "use_rms_norm", "rotary_emb_interleaved", "expert_choice_router"):
        config.must_be(key, False)
    config.must_be("num_shared_experts", 0)
    config.must_be("ffn_div", 1)
    return {
        "attention.causal": False, "hidden_activation": "gelu",
        "expert_count": config.size("num_experts"), "expert_used_count": config.size("moe_top_k"),
        "expert_weights_norm": config.flag("moe_normalize_expert_weights"),
        "moe_every_n_layers": config.size("moe_every_n_layers"),
    }  # fmt: skip


def gte(config: JsonObject) -> dict[str, Any]:
    """GTE of 2024: rotary positions and gated MLPs."""
    config.must_be("hidden_act", "gelu")
    config.must_be("position_embedding_type", "rope")
    config.must_be("layer_norm_type", "layer_norm")
    return {"attention.causal": False, "hidden_activation": "gelu"}


def jina_bert_v3(config: JsonObject) -> dict[str, Any]:
    """As RoBERTa, with rotary positions."""
    config.must_be("hidden_act", "gelu")
    return {"attention.causal": False, "hidden_activation": "gelu"}


def eurobert(config: JsonObject) -> dict[str, Any]:
    """Llama, in which each token sees the whole text."""
    return plain(config) | {"attention.causal": False}


def deberta_v2(config: JsonObject) -> dict[str, Any]:
    """No positions: queries and keys say what they make of each distance (v2 and v3)."""
    config.must_be("relative_attention", True)
    config.must_be("position_biased_input", False)
    config.must_be("norm_rel_ebd", "layer_norm")
    config.must_be("conv_kernel_size", 0)  # v2-xlarge's
    config.must_be("pooler_hidden_act", "gelu")
    said = config.get("pos_att_type")
    kinds = said.split("|") if isinstance(said, str) else said
    if not isinstance(kinds, list) or sorted(map(str, kinds)) != ["c2p", "p2c"]:
        config.refuse("pos_att_type", "c2p and p2c together are")
    width = config.size("hidden_size") // config.size("num_attention_heads")
    buckets = config.get("position_buckets")
    in_buckets = isinstance(buckets, int) and buckets > 0
    return bert(config) | {
        "attention.scale": (3 * (config.get("head_dim") or width)) ** -0.5,
        "attention.relative_buckets_count": span(config),
        "attention.relative_farthest": _farthest(config) if in_buckets else 0,
    }


def span(config: JsonObject) -> int:
    """How many distances to one side have rows: DeBERTa's."""
    buckets = config.get("position_buckets")
    return buckets if isinstance(buckets, int) and buckets > 0 else _farthest(config)


def _farthest(config: JsonObject) -> int:
    farthest = config.get("max_relative_positions")
    given = isinstance(farthest, int) and farthest > 0
    return config.size("max_relative_positions" if given else "max_position_embeddings")


def roberta(config: JsonObject) -> dict[str, Any]:
    """As BERT; positions begin after the padding token's id, and the head has one activation."""
    config.must_be("hidden_act", "gelu")
    config.must_be("pad_token_id", 1)
    return bert(config)


def modern_bert(config: JsonObject) -> dict[str, Any]:
    """An encoder: one layer in n attends to all, the others to a window on both sides."""
    config.must_be("hidden_act", *GELU, "silu")
    config.must_be("classifier_activation", "gelu")  # of the head
    return {
        "attention.causal": False,
        "attention.sliding_window": config.size("local_attention"),
        "attention.sliding_window_pattern": pattern(config),
        "hidden_activation": config.text("hidden_act"),
        "rope.freq_base_swa": local_base(config, "local_rope_theta"),
    }


def gemma_embedding(config: JsonObject) -> dict[str, Any]:
    """Gemma 3, in which each token sees all, or a window to both sides."""
    return gemma3(config) | {"attention.causal": False}
