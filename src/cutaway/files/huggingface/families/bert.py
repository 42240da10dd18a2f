"""The families of encoders, with their masked-LM heads or without: names of tensors and keys.

Their graphs are in ``compute/model/architectures/bert.py``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from cutaway.files.huggingface.families.family import Family, Variant, mlp
from cutaway.files.huggingface.families.keys import GELU, local_base, pattern
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rewrites import AsRow, Half, OfHeads, Rewrite, WithoutFirst
from cutaway.files.huggingface.rope import USUAL

# -- keys ------------------------------------------------------------------------------------------


def keys_of(config: JsonObject) -> dict[str, Any]:
    """Return the keys of an encoder: each token sees all others."""
    return {"attention.causal": False, "hidden_activation": config.text("hidden_act")}


def _sees_all(_: JsonObject) -> dict[str, Any]:
    return {"attention.causal": False}


def nomic_bert_moe(config: JsonObject) -> dict[str, Any]:
    """Return the keys of nomic v2: every n-th layer has a mixture of MLPs without gates."""
    return {
        "attention.causal": False, "hidden_activation": "gelu",
        "expert_count": config.size("num_experts"), "expert_used_count": config.size("moe_top_k"),
        "expert_weights_norm": config.flag("moe_normalize_expert_weights"),
        "moe_every_n_layers": config.size("moe_every_n_layers"),
    }  # fmt: skip


def roberta(config: JsonObject) -> dict[str, Any]:
    """Return BERT's keys, with a shorter context: positions begin after the padding token's id."""
    if (rows := config.size("max_position_embeddings")) <= _ROBERTA_FIRST:
        config.fail("max_position_embeddings", f"above {_ROBERTA_FIRST}, which no token has")
    return keys_of(config) | {"context_length": rows - _ROBERTA_FIRST}


def modern_bert(config: JsonObject) -> dict[str, Any]:
    """Return the keys of an encoder in which one layer in n attends to all tokens.

    The other layers attend to a window on both sides.
    """
    return {
        "attention.causal": False,
        "attention.sliding_window": config.size("local_attention"),
        "attention.sliding_window_pattern": pattern(config),
        "hidden_activation": config.text("hidden_act"),
        "rope.freq_base_swa": local_base(config, "local_rope_theta"),
    }


# -- names and rewrites of tensors -----------------------------------------------------------------


BESIDES = (
    "embeddings.position_ids", "embeddings.token_type_ids", "pooler.dense.weight",
    "pooler.dense.bias", "decoder.bias", "cls.seq_relationship.weight",
    "cls.seq_relationship.bias",
)  # fmt: skip
BODY = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.position_embeddings": "position_embd", "embeddings.LayerNorm": "token_embd_norm",
    "linear": "dense_2",  # ColBERT's own folders
}  # fmt: skip
HEAD = {
    "cls.predictions.transform.dense": "cls", "cls.predictions.transform.LayerNorm": "cls.norm",
    "cls.predictions": "output", "cls.predictions.decoder": "output",
}  # fmt: skip
_ROBERTA_HEAD = {
    "lm_head.dense": "cls", "lm_head.layer_norm": "cls.norm",
    "lm_head": "output", "lm_head.decoder": "output",
}  # fmt: skip
SELF_ATTENTION = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k",
    "attention.self.value": "attn_v", "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
}  # fmt: skip
OUTPUT = {
    "intermediate.dense": "ffn_up", "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}  # fmt: skip
_BERT_RANK = {"pooler.dense": "cls", "classifier": "cls.output"}
_ROBERTA_RANK = {"classifier.dense": "cls", "classifier.out_proj": "cls.output"}
_ABSOLUTE: dict[str, Any] = {
    "hidden_act": GELU, "position_embedding_type": "absolute", "tie_word_embeddings": True,
    "is_decoder": False, "add_cross_attention": False,
}  # fmt: skip
BERT = Family(
    architecture="bert", prefixes=("bert.",), outside=BODY | HEAD,
    layer=SELF_ATTENTION | OUTPUT, skipped=BESIDES,
    names={"layer_norm_epsilon": "layer_norm_eps"},
    defaults={"tie_word_embeddings": True, "layer_norm_epsilon": 1e-12, "hidden_act": "gelu"},
    metadata=keys_of, must_be=_ABSOLUTE, grouped=False, layer_norm=True, rope=None, rank=_BERT_RANK,
)  # fmt: skip

_ROBERTA_FIRST = 2  # rows before it are of no position: it counts from its padding token's id on


def _roberta(_heads: int, _kv_heads: int) -> Mapping[str, Rewrite]:
    return {"position_embd": WithoutFirst(_ROBERTA_FIRST)}


_ROBERTA = replace(
    BERT, prefixes=("roberta.",), outside=BODY | _ROBERTA_HEAD,
    metadata=roberta, rewrites=_roberta, rank=_ROBERTA_RANK,
    must_be=_ABSOLUTE | {"hidden_act": "gelu", "pad_token_id": 1},
)  # fmt: skip

# As transformers 5 names the layers of those with rotary positions.
_SPLIT = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "post_attention_layernorm": "attn_output_norm",
    "post_mlp_layernorm": "layer_output_norm",
}  # fmt: skip
_NOMIC_MUST = {"prenorm": False, "use_rms_norm": False, "rotary_emb_interleaved": False}
_NOMIC = replace(
    BERT, architecture="nomic-bert",
    prefixes=("nomic_bert.encoder.", "nomic_bert.", "bert.encoder.", "encoder.", "bert."),
    outside={**BODY, "emb_ln": "token_embd_norm"},
    layer=_SPLIT | mlp() | {
        "attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output", "norm1": "attn_output_norm",
        "norm2": "layer_output_norm", "mlp.fc11": "ffn_up", "mlp.fc12": "ffn_gate",
        "mlp.fc2": "ffn_down",
    },
    skipped=(*BESIDES, "rotary_emb.inv_freq"), metadata=_sees_all, rope=USUAL,
    must_be=_NOMIC_MUST | {"hidden_act": ("silu", "swiglu"), "num_experts": 0},
    defaults={**BERT.defaults, "hidden_act": "silu", "rope_theta": 1000.0},
)  # fmt: skip
_NOMIC_NAMES = {
    "hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer",
    "intermediate_size": "n_inner", "max_position_embeddings": "n_positions",
    "hidden_act": "activation_function", "rope_theta": "rotary_emb_base",
    "rotary_share": "rotary_emb_fraction",
}  # fmt: skip
"""config.json's keys in nomic's own code."""


def _nomic_experts(config: JsonObject) -> Mapping[str, Rewrite]:
    """Return the rewrites of experts' matrices, which the files stack in one matrix.

    In the stack of the experts' second matrices, rows are inputs.
    """
    count, inner = config.size("num_experts"), config.size("intermediate_size")
    return {
        "ffn_up_exps": OfHeads(count, 0, inner),
        "ffn_down_exps": OfHeads(count, 0, inner, is_transposed=True), "ffn_exps_out": AsRow(),
    }  # fmt: skip


_NOMIC_MOE = replace(
    _NOMIC, architecture="nomic-bert-moe", metadata=nomic_bert_moe, names=_NOMIC_NAMES,
    must_be=_NOMIC_MUST | {
        "hidden_act": "gelu", "expert_choice_router": False, "num_shared_experts": 0, "ffn_div": 1,
    },
    layer={**_NOMIC.layer, "mlp.fc1": "ffn_up", "mlp.router.layer": "ffn_gate_inp"},
    whole={
        "mlp.experts.mlp.w1": "ffn_up_exps.weight", "mlp.experts.mlp.w2": "ffn_down_exps.weight",
        "mlp.experts.bias": "ffn_exps_out.weight",
    },
    rewrites_of=_nomic_experts, defaults={**_NOMIC.defaults, "hidden_act": "gelu"},
)  # fmt: skip
_GTE = replace(
    BERT, architecture="gte", prefixes=("new.", "gte."),
    outside=BODY | _ROBERTA_HEAD | {"lm_head.norm": "cls.norm"},
    layer=_SPLIT | mlp() | {
        "attention.qkv_proj": "attn_qkv", "attention.o_proj": "attn_output",
        "attn_ln": "attn_output_norm", "mlp_ln": "layer_output_norm",
        "mlp.up_gate_proj": "ffn_up+ffn_gate",
    },
    skipped=(*BESIDES, "rotary_emb.inv_freq"), rewrites=lambda _h, _k: _HALVES,
    must_be={
        "hidden_act": "gelu", "position_embedding_type": "rope", "layer_norm_type": "layer_norm",
    },
    rope=USUAL, defaults={**BERT.defaults, "rope_theta": 160000.0},
)  # fmt: skip
_HALVES: Mapping[str, Rewrite] = {"ffn_up": Half(0), "ffn_gate": Half(1)}

ROWS: Mapping[str, Family] = {
    "bert": BERT,
    "jina_bert": replace(
        BERT, architecture="jina-bert-v2",
        must_be={"feed_forward_type": "geglu", "emb_pooler": "mean"},
        metadata=lambda _: {"attention.causal": False, "attention.max_alibi_bias": 8.0},
        layer=SELF_ATTENTION | {
            "mlp.gated_layers": "ffn_up", "mlp.wo": "ffn_down",
            "mlp.layernorm": "layer_output_norm",
        },
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "electra": replace(
        BERT, prefixes=("electra.",), rank_activation="gelu", rank=_ROBERTA_RANK,
        outside={**BODY, "embeddings_project": "embd_proj"},
        skipped=(
            *BESIDES, "discriminator_predictions.dense.weight",
            "discriminator_predictions.dense.bias",
            "discriminator_predictions.dense_prediction.weight",
            "discriminator_predictions.dense_prediction.bias",
        ),
    ),
    "albert": replace(
        BERT, prefixes=("albert.encoder.", "albert.", "encoder."), shared=True,
        outside={**BODY, "embedding_hidden_mapping_in": "embd_proj"},
        layer={
            "attention.query": "attn_q", "attention.key": "attn_k", "attention.value": "attn_v",
            "attention.dense": "attn_output", "attention.LayerNorm": "attn_output_norm",
            "ffn": "ffn_up", "ffn_output": "ffn_down",
            "full_layer_layer_norm": "layer_output_norm",
        },
        skipped=(
            *BESIDES, "pooler.weight", "pooler.bias",
            *(f"{part}{end}" for part in (
                "predictions.dense.", "predictions.LayerNorm.", "predictions.decoder.",
                "sop_classifier.classifier.", "predictions.") for end in ("weight", "bias")),
        ),
        defaults={**BERT.defaults, "hidden_act": "gelu_new"},
        must_be=_ABSOLUTE | {"num_hidden_groups": 1, "inner_group_num": 1},
        rank={"pooler": "cls", "classifier": "cls.output"},
    ),
    "mpnet": replace(
        _ROBERTA, architecture="mpnet", prefixes=("mpnet.",),
        must_be={**_ROBERTA.must_be, "relative_attention_num_buckets": 32},
        defaults={**BERT.defaults, "pad_token_id": 1},
        outside=BODY | _ROBERTA_HEAD | {"encoder.relative_attention_bias": "position_bias"},
        layer=OUTPUT | {
            "attention.attn.q": "attn_q", "attention.attn.k": "attn_k",
            "attention.attn.v": "attn_v", "attention.attn.o": "attn_output",
            "attention.LayerNorm": "attn_output_norm",
        },
    ),
    "nomic_bert": _NOMIC,
    "nomic_bert_moe": _NOMIC_MOE,
    "gte": _GTE,
    "new": _GTE,
    "jina_embeddings_v3": replace(
        BERT, architecture="jina-bert-v3", rank=_ROBERTA_RANK,
        prefixes=("roberta.encoder.", "roberta.", "encoder."), rope=USUAL,
        must_be={"hidden_act": "gelu"},
        outside={**BODY, **_ROBERTA_HEAD, "emb_ln": "token_embd_norm"},
        layer=_SPLIT | {
            "mixer.Wqkv": "attn_qkv", "mixer.out_proj": "attn_output",
            "norm1": "attn_output_norm", "norm2": "layer_output_norm",
            "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
        },
        skipped=(*BESIDES, "rotary_emb.inv_freq"),
        defaults={**BERT.defaults, "rope_theta": 20000.0, "layer_norm_epsilon": 1e-5},
    ),
    "eurobert": Family(
        architecture="eurobert", metadata=_sees_all,
        defaults={"rms_norm_eps": 1e-5},
    ),
    "distilbert": replace(
        BERT, prefixes=("distilbert.",),
        outside=BODY | {
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
        metadata=modern_bert,
        must_be={"hidden_act": (*GELU, "silu"), "classifier_activation": "gelu"},
        grouped=False, layer_norm=True, rank_activation="gelu",
        rank={"head.dense": "cls", "head.norm": "cls.norm", "classifier": "cls.output"},
    ),
}  # fmt: skip


def _rotary_base(family: Family, config: JsonObject) -> Family:
    """Return the family with its publisher's name for the rotary base, if the config has it."""
    is_own = config.get("rotary_emb_base") is not None
    names = {**family.names, "rope_theta": "rotary_emb_base"} if is_own else family.names
    return replace(family, names=names)


def _jina_v2(config: JsonObject, _: Iterable[str]) -> Family | None:
    return ROWS["jina_bert"] if config.get(_POSITIONS) == "alibi" else None


def _jina_v3(config: JsonObject, _: Iterable[str]) -> Family | None:
    is_v3 = config.get(_POSITIONS) == "rotary"  # as its publisher calls it
    return _rotary_base(ROWS["jina_embeddings_v3"], config) if is_v3 else None


def _nomic(config: JsonObject, _: Iterable[str]) -> Family | None:
    if config.get("num_experts"):
        return _NOMIC_MOE
    return replace(_NOMIC, names=_NOMIC_NAMES) if config.get("n_embd") is not None else None


_POSITIONS = "position_embedding_type"
VARIANTS: Mapping[str, Variant] = {
    "bert": _jina_v2,
    "xlm-roberta": _jina_v3,
    "nomic_bert": _nomic,
    "jina_embeddings_v3": lambda config, _: _rotary_base(ROWS["jina_embeddings_v3"], config),
}
