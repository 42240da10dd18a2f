"""Encoders: with a head for masked tokens, without one, and those that score pairs of texts."""

from collections.abc import Mapping
from typing import Any

from support.families.row import FOUR_HEADS, GEMMA, SIZES, VOCAB, WINDOW, Row

_BERT = SIZES | FOUR_HEADS | {"tie_word_embeddings": True, "num_hidden_layers": 3}

_MODERN = SIZES | FOUR_HEADS | {
    "tie_word_embeddings": True, "local_attention": 2 * WINDOW + 1,
    "cls_token_id": 1, "sep_token_id": 2, "pad_token_id": 0,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
    },
}  # fmt: skip

ENCODERS: Mapping[str, Row] = {
    "bert": Row("BertConfig", {**_BERT, "bos_token_id": None, "eos_token_id": None}, "bert"),
    "roberta": Row(
        "RobertaConfig",
        {**_BERT, "pad_token_id": 1, "max_position_embeddings": 258, "type_vocab_size": 1},
        "bert",
    ),
    "bert-tanh": Row("BertConfig", {**_BERT, "hidden_act": "gelu_new"}, "bert"),
    "modernbert": Row("ModernBertConfig", _MODERN, "modern-bert"),
    "modernbert-other": Row(
        "ModernBertConfig",
        _MODERN | {
            "norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True,
            "decoder_bias": False, "hidden_activation": "silu", "tie_word_embeddings": False,
            "layer_types": [f"{k}_attention" for k in ("sliding", "full", "sliding", "sliding")],
        },
        "modern-bert",
    ),
    "distilbert": Row(
        "DistilBertConfig",
        {
            "vocab_size": VOCAB, "dim": 64, "hidden_dim": 96, "n_layers": 3, "n_heads": 4,
            "max_position_embeddings": 256,
        },
        "bert",
    ),
}  # fmt: skip
"""The encoders with a head that predicts masked tokens."""


_BODY = _BERT | {"pad_token_id": 1, "num_labels": 1}
_DEBERTA = {
    "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "norm_rel_ebd": "layer_norm",
    "position_biased_input": False, "share_att_key": True, "position_buckets": 16,
    "type_vocab_size": 0, "pad_token_id": 0,
}  # fmt: skip
_FROM_TWO = {"max_position_embeddings": 258, "type_vocab_size": 1}  # RoBERTa's first rows


def _body(config: str, architecture: str, **values: Any) -> Row:
    return Row(config, _BODY | values, architecture, "AutoModel")


BODIES: Mapping[str, Row] = {
    "xlm-roberta": _body("XLMRobertaConfig", "bert", **_FROM_TWO),
    "electra": _body("ElectraConfig", "bert", embedding_size=32),
    "albert": _body("AlbertConfig", "bert", embedding_size=32),
    "mpnet": _body("MPNetConfig", "mpnet", max_position_embeddings=258),
    "deberta": _body("DebertaV2Config", "deberta-v2", **_DEBERTA),
    "deberta-own": _body(  # matrices of its own for distances, each of which has a row
        "DebertaV2Config", "deberta-v2",
        **_DEBERTA | {"share_att_key": False, "position_buckets": -1},
    ),
    "nomic_bert": _body("NomicBertConfig", "nomic-bert"),
    "gte": _body("GteConfig", "gte"),
    "jina_v3": _body("JinaEmbeddingsV3Config", "jina-bert-v3"),
    "eurobert": _body(
        "EuroBertConfig", "eurobert", num_key_value_heads=2, mask_token_id=4,
        tie_word_embeddings=False,
    ),
    "gemma_embedding": _body(
        "Gemma3TextConfig", "gemma-embedding", num_hidden_layers=7, **GEMMA,
        use_bidirectional_attention=True,
    ),
    "embedding_gemma2": _body(
        "EmbeddingGemma2TextConfig", "embedding-gemma2", num_hidden_layers=7, head_dim=32,
        global_head_dim=64, sliding_window=WINDOW, hidden_size_per_layer_input=24,
        embedding_dim=48,
    ),
}  # fmt: skip
"""Encoders without a head."""

_MODERN_PAIR = _MODERN | {"num_labels": 1, "num_hidden_layers": 2}
RANKERS: Mapping[str, Row] = {
    name: row._replace(kind="AutoModelForSequenceClassification")
    for name, row in {
        "rank-bert": _body("BertConfig", "bert"),
        "rank-distilbert": Row(
            "DistilBertConfig", {**ENCODERS["distilbert"].values, "num_labels": 1}, "bert"
        ),
        **{
            f"rank-{name}": BODIES[name]
            for name in (
                "xlm-roberta",
                "electra",
                "albert",
                "mpnet",
                "deberta",
                "nomic_bert",
                "gte",
                "jina_v3",
            )
        },
        "rank-modernbert": Row(
            "ModernBertConfig", _MODERN_PAIR | {"classifier_pooling": "mean"}, "modern-bert"
        ),
        "rank-qwen3": Row(  # the last token's row
            "Qwen3Config", SIZES | {"num_labels": 1, "head_dim": 32}, "qwen3"
        ),
        "rank-modernbert-cls": Row(
            "ModernBertConfig", _MODERN_PAIR | {"classifier_pooling": "cls"}, "modern-bert"
        ),
    }.items()
}
"""Encoders with a head that scores pairs of texts, and a decoder with one."""
