"""The families of encoders, with their masked-LM heads or without: names of tensors and keys."""

from collections.abc import Mapping
from dataclasses import replace

from cutaway.files.huggingface import encoder_keys as keys
from cutaway.files.huggingface.family import ATTENTION, OUTSIDE, Family
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rewrites import AsRow, Half, OfHeads, Rewrite, WithoutFirst

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
    own=keys.bert, grouped=False, layer_norm=True, rope=False, rank=_BERT_RANK,
)  # fmt: skip

_ROBERTA_FIRST = 2  # rows before it are of no position: it counts from its padding token's id on


def _roberta(_heads: int, _kv_heads: int) -> Mapping[str, Rewrite]:
    return {"position_embd": WithoutFirst(_ROBERTA_FIRST)}


_ROBERTA = replace(
    _BERT, prefixes=("roberta.",), outside=_BERT_BODY | _ROBERTA_HEAD,
    own=keys.roberta, rewrites=_roberta, first_position=_ROBERTA_FIRST, rank=_ROBERTA_RANK,
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
    skipped=(*_BESIDES, "rotary_emb.inv_freq"), own=keys.nomic_bert, rope=True,
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
    _NOMIC, architecture="nomic-bert-moe", own=keys.nomic_bert_moe, names=NOMIC_NAMES,
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
    skipped=(*_BESIDES, "rotary_emb.inv_freq"), own=keys.gte, rewrites=lambda _h, _k: _HALVES,
    rope=True, defaults={**_BERT.defaults, "rope_theta": 160000.0},
)  # fmt: skip
_HALVES: Mapping[str, Rewrite] = {"ffn_up": Half(0), "ffn_gate": Half(1)}

ENCODERS: Mapping[str, Family] = {
    "bert": _BERT,
    "jina_bert": replace(
        _BERT, architecture="jina-bert-v2", own=keys.jina_bert,
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
        defaults={**_BERT.defaults, "hidden_act": "gelu_new"}, own=keys.albert,
        rank={"pooler": "cls", "classifier": "cls.output"},
    ),
    "mpnet": replace(
        _ROBERTA, architecture="mpnet", prefixes=("mpnet.",), own=keys.mpnet,
        outside=_BERT_BODY | _ROBERTA_HEAD | {"encoder.relative_attention_bias": "position_bias"},
        layer=_OUTPUT | {
            "attention.attn.q": "attn_q", "attention.attn.k": "attn_k",
            "attention.attn.v": "attn_v", "attention.attn.o": "attn_output",
            "attention.LayerNorm": "attn_output_norm",
        },
    ),
    "deberta-v2": replace(
        _BERT, architecture="deberta-v2", prefixes=("deberta.",), own=keys.deberta_v2,
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
        prefixes=("roberta.encoder.", "roberta.", "encoder."), own=keys.jina_bert_v3, rope=True,
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
        architecture="eurobert", outside=OUTSIDE, own=keys.eurobert,
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
        own=keys.modern_bert, grouped=False, layer_norm=True, rank_activation="gelu",
        rank={"head.dense": "cls", "head.norm": "cls.norm", "classifier": "cls.output"},
    ),
}  # fmt: skip
"""By config.json's model_type."""
