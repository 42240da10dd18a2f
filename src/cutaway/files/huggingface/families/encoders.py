"""The families of encoders, with their masked-LM heads or without: names of tensors and keys.

As `families`, of which this is a part. Knows no files.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cutaway.files.huggingface.families.family import ATTENTION, OUTSIDE, Family
from cutaway.files.huggingface.families.keys import GELU, local_base, pattern, plain
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rewrites import AsRow, Half, OfHeads, Rewrite, WithoutFirst

# -- keys ------------------------------------------------------------------------------------------


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


# -- names and rewrites of tensors -----------------------------------------------------------------


_BESIDES = (
    "embeddings.position_ids", "embeddings.token_type_ids", "pooler.dense.weight",
    "pooler.dense.bias", "decoder.bias", "cls.seq_relationship.weight",
    "cls.seq_relationship.bias",
)  # fmt: skip
_BERT_BODY = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.position_embeddings": "position_embd", "embeddings.LayerNorm": "token_embd_norm",
    "linear": "dense_2",  # ColBERT's own folders
}  # fmt: skip
_BERT_HEAD = {
    "cls.predictions.transform.dense": "cls", "cls.predictions.transform.LayerNorm": "cls.norm",
    "cls.predictions": "output", "cls.predictions.decoder": "output",
}  # fmt: skip
_ROBERTA_HEAD = {
    "lm_head.dense": "cls", "lm_head.layer_norm": "cls.norm",
    "lm_head": "output", "lm_head.decoder": "output",
}  # fmt: skip
_SELF_ATTENTION = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k",
    "attention.self.value": "attn_v", "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
}  # fmt: skip
_OUTPUT = {
    "intermediate.dense": "ffn_up", "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}  # fmt: skip
_BERT_RANK = {"pooler.dense": "cls", "classifier": "cls.output"}
_ROBERTA_RANK = {"classifier.dense": "cls", "classifier.out_proj": "cls.output"}
_BERT = Family(
    architecture="bert", prefixes=("bert.",), outside=_BERT_BODY | _BERT_HEAD,
    layer=_SELF_ATTENTION | _OUTPUT, skipped=_BESIDES,
    names={"layer_norm_epsilon": "layer_norm_eps"},
    defaults={"tie_word_embeddings": True, "layer_norm_epsilon": 1e-12, "hidden_act": "gelu"},
    own=bert, grouped=False, layer_norm=True, rope=False, rank=_BERT_RANK,
)  # fmt: skip

_ROBERTA_FIRST = 2  # rows before it are of no position: it counts from its padding token's id on


def _roberta(_heads: int, _kv_heads: int) -> Mapping[str, Rewrite]:
    return {"position_embd": WithoutFirst(_ROBERTA_FIRST)}


_ROBERTA = replace(
    _BERT, prefixes=("roberta.",), outside=_BERT_BODY | _ROBERTA_HEAD,
    own=roberta, rewrites=_roberta, first_position=_ROBERTA_FIRST, rank=_ROBERTA_RANK,
)  # fmt: skip

# As transformers 5 names the layers of those with rotary positions.
_SPLIT = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "post_attention_layernorm": "attn_output_norm",
    "post_mlp_layernorm": "layer_output_norm",
}  # fmt: skip
_GATED = {"mlp.up_proj": "ffn_up", "mlp.gate_proj": "ffn_gate", "mlp.down_proj": "ffn_down"}
_NOMIC = replace(
    _BERT, architecture="nomic-bert",
    prefixes=("nomic_bert.encoder.", "nomic_bert.", "bert.encoder.", "encoder.", "bert."),
    outside={**_BERT_BODY, "emb_ln": "token_embd_norm"},
    layer=_SPLIT | _GATED | {
        "attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output", "norm1": "attn_output_norm",
        "norm2": "layer_output_norm", "mlp.fc11": "ffn_up", "mlp.fc12": "ffn_gate",
        "mlp.fc2": "ffn_down",
    },
    skipped=(*_BESIDES, "rotary_emb.inv_freq"), own=nomic_bert, rope=True,
    defaults={**_BERT.defaults, "hidden_act": "silu", "rope_theta": 1000.0},
)  # fmt: skip
NOMIC_NAMES = {
    "hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer",
    "intermediate_size": "n_inner", "max_position_embeddings": "n_positions",
    "hidden_act": "activation_function", "rope_theta": "rotary_emb_base",
    "rotary_share": "rotary_emb_fraction",
}  # fmt: skip
"""Of keys, as nomic's own code has them."""


def _nomic_experts(config: JsonObject) -> Mapping[str, Rewrite]:
    """All experts' matrices lie one upon the other, in the second the rows are inputs."""
    count, inner = config.size("num_experts"), config.size("intermediate_size")
    return {
        "ffn_up_exps": OfHeads(count, 0, inner),
        "ffn_down_exps": OfHeads(count, 0, inner, turned=True), "ffn_exps_out": AsRow(),
    }  # fmt: skip


_NOMIC_MOE = replace(
    _NOMIC, architecture="nomic-bert-moe", own=nomic_bert_moe, names=NOMIC_NAMES,
    layer={**_NOMIC.layer, "mlp.fc1": "ffn_up", "mlp.router.layer": "ffn_gate_inp"},
    whole={
        "mlp.experts.mlp.w1": "ffn_up_exps.weight", "mlp.experts.mlp.w2": "ffn_down_exps.weight",
        "mlp.experts.bias": "ffn_exps_out.weight",
    },
    rewrites_of=_nomic_experts, defaults={**_NOMIC.defaults, "hidden_act": "gelu"},
)  # fmt: skip
_GTE = replace(
    _BERT, architecture="gte", prefixes=("new.", "gte."),
    outside=_BERT_BODY | _ROBERTA_HEAD | {"lm_head.norm": "cls.norm"},
    layer=_SPLIT | _GATED | {
        "attention.qkv_proj": "attn_qkv", "attention.o_proj": "attn_output",
        "attn_ln": "attn_output_norm", "mlp_ln": "layer_output_norm",
        "mlp.up_gate_proj": "ffn_up+ffn_gate",
    },
    skipped=(*_BESIDES, "rotary_emb.inv_freq"), own=gte, rewrites=lambda _h, _k: _HALVES,
    rope=True, defaults={**_BERT.defaults, "rope_theta": 160000.0},
)  # fmt: skip
_HALVES: Mapping[str, Rewrite] = {"ffn_up": Half(0), "ffn_gate": Half(1)}

ENCODERS: Mapping[str, Family] = {
    "bert": _BERT,
    "jina_bert": replace(
        _BERT, architecture="jina-bert-v2", own=jina_bert,
        layer=_SELF_ATTENTION | {
            "mlp.gated_layers": "ffn_up", "mlp.wo": "ffn_down",
            "mlp.layernorm": "layer_output_norm",
        },
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "electra": replace(
        _BERT, prefixes=("electra.",), rank_activation="gelu", rank=_ROBERTA_RANK,
        outside={**_BERT_BODY, "embeddings_project": "embd_proj"},
        skipped=(
            *_BESIDES, "discriminator_predictions.dense.weight",
            "discriminator_predictions.dense.bias",
            "discriminator_predictions.dense_prediction.weight",
            "discriminator_predictions.dense_prediction.bias",
        ),
    ),
    "albert": replace(
        _BERT, prefixes=("albert.encoder.", "albert.", "encoder."), shared=True,
        outside={**_BERT_BODY, "embedding_hidden_mapping_in": "embd_proj"},
        layer={
            "attention.query": "attn_q", "attention.key": "attn_k", "attention.value": "attn_v",
            "attention.dense": "attn_output", "attention.LayerNorm": "attn_output_norm",
            "ffn": "ffn_up", "ffn_output": "ffn_down",
            "full_layer_layer_norm": "layer_output_norm",
        },
        skipped=(
            *_BESIDES, "pooler.weight", "pooler.bias",
            *(f"{part}{end}" for part in (
                "predictions.dense.", "predictions.LayerNorm.", "predictions.decoder.",
                "sop_classifier.classifier.", "predictions.") for end in ("weight", "bias")),
        ),
        defaults={**_BERT.defaults, "hidden_act": "gelu_new"}, own=albert,
        rank={"pooler": "cls", "classifier": "cls.output"},
    ),
    "mpnet": replace(
        _ROBERTA, architecture="mpnet", prefixes=("mpnet.",), own=mpnet,
        outside=_BERT_BODY | _ROBERTA_HEAD | {"encoder.relative_attention_bias": "position_bias"},
        layer=_OUTPUT | {
            "attention.attn.q": "attn_q", "attention.attn.k": "attn_k",
            "attention.attn.v": "attn_v", "attention.attn.o": "attn_output",
            "attention.LayerNorm": "attn_output_norm",
        },
    ),
    "deberta-v2": replace(
        _BERT, architecture="deberta-v2", prefixes=("deberta.",), own=deberta_v2,
        outside=_BERT_BODY | _BERT_HEAD | {
            "encoder.rel_embeddings": "rel_embd", "encoder.LayerNorm": "rel_norm",
        },
        layer={
            **_SELF_ATTENTION, **_OUTPUT,
            "attention.self.query_proj": "attn_q", "attention.self.key_proj": "attn_k",
            "attention.self.value_proj": "attn_v", "attention.self.pos_query_proj": "attn_q_pos",
            "attention.self.pos_key_proj": "attn_k_pos",
        },
        skipped=(*_BESIDES, *(  # heads that pretraining leaves
            f"{head}{end}" for head in (
                "lm_predictions.lm_head.", "lm_predictions.lm_head.dense.",
                "lm_predictions.lm_head.LayerNorm.", "mask_predictions.dense.",
                "mask_predictions.LayerNorm.", "mask_predictions.classifier.",
            ) for end in ("weight", "bias")
        )),
        names={**_BERT.names, "head_dim": "attention_head_size"},
        defaults={
            **_BERT.defaults, "layer_norm_epsilon": 1e-7, "relative_attention": False,
            "position_biased_input": True, "norm_rel_ebd": "none",
        },
        rank_activation="gelu", relative=True,
    ),
    "nomic_bert": _NOMIC,
    "nomic_bert_moe": _NOMIC_MOE,
    "gte": _GTE,
    "new": _GTE,
    "jina_embeddings_v3": replace(
        _BERT, architecture="jina-bert-v3", rank=_ROBERTA_RANK,
        prefixes=("roberta.encoder.", "roberta.", "encoder."), own=jina_bert_v3, rope=True,
        outside={**_BERT_BODY, **_ROBERTA_HEAD, "emb_ln": "token_embd_norm"},
        layer=_SPLIT | {
            "mixer.Wqkv": "attn_qkv", "mixer.out_proj": "attn_output",
            "norm1": "attn_output_norm", "norm2": "layer_output_norm",
            "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
        },
        skipped=(*_BESIDES, "rotary_emb.inv_freq"),
        defaults={**_BERT.defaults, "rope_theta": 20000.0, "layer_norm_epsilon": 1e-5},
    ),
    "eurobert": Family(
        architecture="eurobert", outside=OUTSIDE, own=eurobert,
        layer=ATTENTION | {
            "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
        },
        defaults={"rms_norm_eps": 1e-5},
    ),
    "distilbert": replace(        _BERT, prefixes=("distilbert.",),
        outside=_BERT_BODY | {
            "vocab_transform": "cls", "vocab_layer_norm": "cls.norm", "vocab_projector": "output",
        },
        layer={
            "attention.q_lin": "attn_q", "attention.k_lin": "attn_k", "attention.v_lin": "attn_v",
            "attention.out_lin": "attn_output", "sa_layer_norm": "attn_output_norm",
            "ffn.lin1": "ffn_up", "ffn.lin2": "ffn_down", "output_layer_norm": "layer_output_norm",
        },
        names={
            "hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
            "intermediate_size": "hidden_dim", "hidden_act": "activation",
        },
        rank={"pre_classifier": "cls", "classifier": "cls.output"}, rank_activation="relu",
    ),
    "modernbert": Family(
        architecture="modern-bert",
        outside={
            "embeddings.tok_embeddings": "token_embd", "embeddings.norm": "token_embd_norm",
            "final_norm": "output_norm", "head.dense": "cls", "head.norm": "cls.norm",
            "decoder": "output",
        },
        layer={
            "attn_norm": "attn_norm", "attn.Wqkv": "attn_qkv", "attn.Wo": "attn_output",
            "mlp_norm": "ffn_norm", "mlp.Wi": "ffn_up", "mlp.Wo": "ffn_down",
        },
        names={
            "layer_norm_epsilon": "norm_eps", "hidden_act": "hidden_activation",
            "rope_theta": "global_rope_theta",
        },
        defaults={
            "tie_word_embeddings": True, "layer_norm_epsilon": 1e-5, "hidden_act": "gelu",
            "rope_theta": 160000.0, "max_position_embeddings": 8192, "local_attention": 128,
            "global_attn_every_n_layers": 3,
        },
        own=modern_bert, grouped=False, layer_norm=True, rank_activation="gelu",
        rank={"head.dense": "cls", "head.norm": "cls.norm", "classifier": "cls.output"},
    ),
}  # fmt: skip
"""By config.json's model_type."""
