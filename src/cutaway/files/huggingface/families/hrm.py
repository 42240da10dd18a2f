"""HRM-Text: names and keys of its two stacks of layers.

Its graph is in ``compute/model/architectures/hrm.py``.
"""

from collections.abc import Mapping
from typing import Any

from cutaway.files.huggingface.families.family import Family
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rewrites import AsRow, Rewrite, RowParts


def _hrm_text(config: JsonObject) -> dict[str, Any]:
    """Return how often the stacks run, the factor of embeddings, and how prompts are read."""
    scale = config.get("embedding_scale")
    return {
        "slow_cycles": config.size("H_cycles"),
        "fast_cycles": config.size("L_cycles"),
        "attention.prefix_lm": config.flag("prefix_lm"),
        "embedding_scale": (
            1 / config.positive("initializer_range")
            if scale is None
            else config.positive("embedding_scale")
        ),
    }


def _apart(config: JsonObject) -> Mapping[str, Rewrite]:
    """Return the rewrites that split the one matrix of gates, queries, keys and values."""
    sizes = (config.size("num_attention_heads") * config.size("head_dim"),) * 4
    names = ("attn_gate", "attn_q", "attn_k", "attn_v")
    return {name: RowParts(sizes, (i,)) for i, name in enumerate(names)}


ROWS: Mapping[str, Family] = {
    "hrm_text": Family(
        architecture="hrm-text", metadata=_hrm_text, rewrites_of=_apart, grouped=False,
        rewrites=lambda _heads, _kv_heads: {"fast_init": AsRow()},  # it is looked up
        stacks=("L_module.", "H_module."),
        outside={"embed_tokens": "token_embd", "z_L_init": "fast_init", "lm_head": "output"},
        layer={
            "attn.gqkv_proj": "attn_gate+attn_q+attn_k+attn_v", "attn.o_proj": "attn_output",
            "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
        },
        must_be={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
        defaults={"initializer_range": 0.02},
    ),
}  # fmt: skip
