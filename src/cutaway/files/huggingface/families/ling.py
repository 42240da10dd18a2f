"""Ling and Ring of inclusionAI, 1 and 2, and LLaDA 2, which has the body of Ling 2: names and keys.

transformers has none of these models; the names are those of the publisher's own code
(bailing_moe). Their graphs are in ``compute/model/architectures/ling.py``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from cutaway.files.huggingface.families import mixtures
from cutaway.files.huggingface.families.family import EXPERTS, Family, Variant, mlp
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rewrites import (
    Rewrite,
    RowParts,
    as_it_is,
    divide_by_column_norms,
    interleave_rope_rows,
)
from cutaway.files.huggingface.rope import PARTIAL

_V2 = "BailingMoeV2ForCausalLM"


def _ling1(config: JsonObject) -> dict[str, Any]:
    """Return the keys of the first Ling, which computes experts' weights by a softmax."""
    config.must_be("score_function", "softmax")
    config.must_be("use_qk_norm", False)
    config.must_be("multi_gate", False)
    return _mixture(config, normed=config.flag("norm_topk_prob")) | {"expert_weights_scale": 1.0}


def _ling2(config: JsonObject) -> dict[str, Any]:
    """Return the keys of Ling 2, which computes experts' weights by a sigmoid and scales them.

    Experts are chosen from the best groups, with biases.
    """
    config.must_be("score_function", "sigmoid")
    config.must_be("use_qk_norm", True)
    config.must_be("norm_head", False)
    config.must_be("norm_topk_prob", True)  # its code norms whatever this key says
    return _mixture(config, normed=True) | mixtures.groups(config) | {
        "expert_gating_func": mixtures.SIGMOID,
        "expert_weights_scale": config.positive("routed_scaling_factor"),
    }  # fmt: skip


def _mixture(config: JsonObject, *, normed: bool) -> dict[str, Any]:
    """Return the keys of experts, including those that all rows share.

    The first layers have no experts.
    """
    metadata = mixtures.experts(config, "num_experts")
    none = config.get("num_shared_experts") in (None, 0)
    shared = 0 if none else config.size("num_shared_experts", 1 << 16)
    width = config.size("moe_intermediate_size")
    config.must_be("moe_shared_expert_intermediate_size", width * shared)
    return metadata | {
        "expert_feed_forward_length": width,
        "expert_shared_count": shared,
        "expert_weights_norm": normed and metadata["expert_used_count"] > 1,
        "leading_dense_block_count": config.id("first_k_dense_replace"),
    }  # fmt: skip


def _apart(config: JsonObject) -> Mapping[str, Rewrite]:
    """Return the rewrites that split the first Ling's one matrix in three, as GGUF does.

    Rows of queries and keys are interleaved as llama's are.
    """
    heads, kv_heads = (config.size(f"num_{kind}_heads") for kind in ("attention", "key_value"))
    head = config.get("head_dim") or config.size("hidden_size") // heads
    sizes = (heads * head, kv_heads * head, kv_heads * head)
    return {
        "attn_q": RowParts(sizes, (0,), interleave_rope_rows(heads)),
        "attn_k": RowParts(sizes, (1,), interleave_rope_rows(kv_heads)),
        "attn_v": RowParts(sizes, (2,)),
        "output": divide_by_column_norms if config.flag("norm_head") else as_it_is,
    }


_LING1 = Family(
    architecture="bailingmoe", metadata=_ling1, rewrites_of=_apart,
    outside={"word_embeddings": "token_embd", "norm": "output_norm", "lm_head": "output"},
    layer={
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
        "attention.query_key_value": "attn_q+attn_k+attn_v", "attention.dense": "attn_output",
        "mlp.gate": "ffn_gate_inp",
        **mlp(), **mixtures.SHARED,
    },
    experts=EXPERTS,
    defaults={"first_k_dense_replace": 0},
)  # fmt: skip
_LING2 = replace(
    _LING1, architecture="bailingmoe2", metadata=_ling2, rewrites_of=lambda _config: {},
    layer={
        **_LING1.layer, "attention.query_key_value": "attn_qkv",
        "attention.query_layernorm": "attn_q_norm", "attention.key_layernorm": "attn_k_norm",
        "mlp.gate.expert_bias": "exp_probs_b",
    },
    rope=PARTIAL,
    defaults={"first_k_dense_replace": 0, "rotary_share": 0.5, "n_group": 8, "topk_group": 4},
)  # fmt: skip

# Bie et al. 2025, arXiv 2512.15745; neither the block nor the mask is in its config.json
_LLADA2 = replace(
    _LING2, attention="block-causal",
    defaults={**_LING2.defaults, "block_size": 32, "mask_token_id": 156895},
)  # fmt: skip

ROWS: Mapping[str, Family] = {
    "bailing_moe": _LING1,
    "bailing_moe_v2": _LING2,
    "llada2_moe": _LLADA2,
}


def _second(config: JsonObject, _: Iterable[str]) -> Family | None:
    """Return Ling 2's family if the config names Ling 2's class: both Lings have one model_type."""
    classes = config.get("architectures")
    return _LING2 if isinstance(classes, list) and _V2 in classes else None


VARIANTS: Mapping[str, Variant] = {"bailing_moe": _second}
