"""The families of encoders, with their masked-LM heads or without: names of tensors and keys."""

from collections.abc import Mapping
from dataclasses import replace

from cutaway.files.huggingface import family_keys as keys
from cutaway.files.huggingface.family import Family
from cutaway.files.huggingface.rewrites import Rewrite, WithoutFirst

_BESIDES = (
    "embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias",
    "decoder.bias", "cls.seq_relationship.weight", "cls.seq_relationship.bias",
)  # fmt: skip
_BERT_BODY = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.position_embeddings": "position_embd", "embeddings.LayerNorm": "token_embd_norm",
}  # fmt: skip
_BERT = Family(
    architecture="bert", prefixes=("bert.",),
    outside=_BERT_BODY | {
        "cls.predictions.transform.dense": "cls", "cls.predictions.transform.LayerNorm": "cls.norm",
        "cls.predictions": "output", "cls.predictions.decoder": "output",
    },
    layer={
        "attention.self.query": "attn_q", "attention.self.key": "attn_k",
        "attention.self.value": "attn_v", "attention.output.dense": "attn_output",
        "attention.output.LayerNorm": "attn_output_norm", "intermediate.dense": "ffn_up",
        "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
    },
    skipped=_BESIDES,
    names={"layer_norm_epsilon": "layer_norm_eps"},
    defaults={"tie_word_embeddings": True, "layer_norm_epsilon": 1e-12, "hidden_act": "gelu"},
    own=keys.bert, grouped=False, layer_norm=True, rope=False,
)  # fmt: skip

_ROBERTA_FIRST = 2  # rows before it are of no position: it counts from its padding token's id on


def _roberta(_heads: int, _kv_heads: int) -> Mapping[str, Rewrite]:
    return {"position_embd": WithoutFirst(_ROBERTA_FIRST)}


ENCODERS: Mapping[str, Family] = {
    "bert": _BERT,
    "roberta": replace(
        _BERT, prefixes=("roberta.",),
        outside=_BERT_BODY | {
            "lm_head.dense": "cls", "lm_head.layer_norm": "cls.norm",
            "lm_head": "output", "lm_head.decoder": "output",
        },
        own=keys.roberta, rewrites=_roberta, first_position=_ROBERTA_FIRST,
    ),
    "distilbert": replace(
        _BERT, prefixes=("distilbert.",),
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
        own=keys.modern_bert, grouped=False, layer_norm=True,
    ),
}  # fmt: skip
"""By config.json's model_type."""
