"""A row of these tables, and values that rows share."""

from collections.abc import Mapping
from typing import Any, NamedTuple

VOCAB = 384
WINDOW = 8  # tokens, shorter than any test's text

SIZES = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None, "tie_word_embeddings": False,
}  # fmt: skip
FOUR_HEADS: dict[str, Any] = {"num_attention_heads": 4}  # where heads are hidden / heads wide
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
GRANITE = {
    "attention_multiplier": 0.2, "embedding_multiplier": 3.0, "residual_multiplier": 0.5,
    "logits_scaling": 2.0,
}  # fmt: skip
GEMMA = {
    "head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": WINDOW,
    "tie_word_embeddings": True,
}  # fmt: skip
GEMMA4 = {
    "head_dim": 32, "global_head_dim": 64, "sliding_window": WINDOW, "num_hidden_layers": 7,
    "tie_word_embeddings": True,
    "layer_types": [f"{k}_attention" for k in ("sliding", "full", "sliding", "sliding", "full",
                                               "sliding", "full")],
}  # fmt: skip
QWEN_VISION = {
    "depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64,
}  # fmt: skip


class Row(NamedTuple):
    """A config class of transformers, its values, and GGUF's name of the architecture."""

    config: str
    values: Mapping[str, Any]
    architecture: str
    kind: str = "AutoModelForCausalLM"


def decoder(config: str, architecture: str, **values: Any) -> Row:
    return Row(config, {**SIZES, **values}, architecture)


def theta(theta: float, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **more}}


def reads_pictures(
    config: str, architecture: str, vision: Mapping[str, Any],
    *, outside: Mapping[str, Any] | None = None, **values: Any,
) -> Row:  # fmt: skip
    """Return the row of a model with a vision part; ``values`` are those of its text part.

    outside: values of neither part
    """
    text = {**SIZES, **values}
    whole = {"text_config": text, "vision_config": vision, "tie_word_embeddings": False}
    whole |= outside or {}
    return Row(config, whole, architecture, "AutoModelForImageTextToText")
