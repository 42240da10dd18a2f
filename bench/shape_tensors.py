"""The tensors and metadata of a model of some shape: names as in GGUF, sizes, formats."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from cutaway.files.weights import FORMATS, TensorInfo
from shapes import Shape

Sized = tuple[str | int, ...]
"""A tensor's name and its sizes."""

_STATES = (
    "ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size"
)  # fmt: skip
_OWN: dict[str, tuple[tuple[str, Any], ...]] = {
    "lfm2": (("shortconv.l_cache", 3),),
    "qwen35": (
        ("full_attention_interval", 4),
        ("rope.dimension_sections", np.array([11, 11, 10, 0], np.int32)),
    ),
    "granitemoe": (
        ("attention.scale", 0.015625), ("embedding_scale", 12.0), ("residual_scale", 0.22),
        ("logit_scale", 6.0),
    ),
    "granitehybrid": (
        ("rope.scaling.finetuned", False), ("attention.scale", 0.0078125),
        ("embedding_scale", 1.0), ("residual_scale", 0.22), ("logit_scale", 1.0),
    ),
}  # fmt: skip


_KEPT = ("conv1d", "conv", "norm", "ssm_a", "ssm_d", "gate_inp")
"""Ends of the names of tensors that stay in F32."""


def _kv_heads(shape: Shape) -> Any:
    """The number of KV heads: one for all layers, or a list of each layer's, as files have it."""
    if shape.attends is None or shape.architecture == "qwen35":
        return shape.kv_heads
    counts = [shape.kv_heads * (i in shape.attends) for i in range(shape.layers)]
    return np.array(counts, np.int32)


def _attention(shape: Shape, layer: int) -> Iterator[Sized]:
    if shape.architecture == "deepseek2":
        return _latent_attention(shape)
    return _gemma4_attention(shape, layer) if shape.architecture == "gemma4" else _plain(shape)


def _plain(shape: Shape) -> Iterator[Sized]:
    hidden = shape.hidden
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "attn_norm", hidden
    yield "attn_q", queries * (2 if shape.architecture == "qwen35" else 1), hidden
    yield "attn_k", keys, hidden
    yield "attn_v", keys, hidden
    yield "attn_output", hidden, queries
    if shape.architecture == "gpt-oss":
        yield "attn_output.bias", hidden
        yield "attn_sinks", shape.heads
    if shape.architecture in ("qwen2", "gpt-oss"):
        yield from (("attn_q.bias", queries), ("attn_k.bias", keys), ("attn_v.bias", keys))
    if shape.architecture == "olmoe":  # of all heads together
        yield "attn_q_norm", queries
        yield "attn_k_norm", keys
    if shape.architecture in ("qwen3", "qwen3moe", "qwen35", "lfm2"):
        yield "attn_q_norm", shape.head_dim
        yield "attn_k_norm", shape.head_dim


def _state(shape: Shape) -> Iterator[Sized]:
    """Yield the tensors of a layer with a recurrent state."""
    hidden = shape.hidden
    yield "attn_norm", hidden
    if shape.architecture == "lfm2":
        yield "shortconv.in_proj", 3 * hidden, hidden
        yield "shortconv.conv", hidden, 3
        yield "shortconv.out_proj", hidden, hidden
        return
    keys, k_heads, heads, inner = shape.state
    mixed = inner + 2 * k_heads * keys
    yield "ssm_conv1d", mixed, 4
    yield "ssm_dt.bias", heads
    yield "ssm_out", hidden, inner
    if shape.architecture == "qwen35":
        yield "attn_qkv", mixed, hidden
        yield "attn_gate", inner, hidden
        yield "ssm_alpha", heads, hidden
        yield "ssm_beta", heads, hidden
        yield "ssm_a", heads
        yield "ssm_norm", inner // heads
        return
    yield "ssm_in", inner + mixed + heads, hidden
    yield "ssm_conv1d.bias", mixed
    yield "ssm_a", heads, 1
    yield "ssm_d", heads, 1
    yield "ssm_norm", k_heads, inner // k_heads


def _latent_attention(shape: Shape) -> Iterator[Sized]:
    hidden, heads, own = shape.hidden, shape.heads, shape.own
    rank, rotated = own["attention.kv_lora_rank"], own["rope.dimension_count"]
    keys, values = own["attention.key_length_mla"], own["attention.value_length_mla"]
    yield "attn_norm", hidden
    yield "attn_q", heads * keys, hidden
    yield "attn_kv_a_mqa", rank + rotated, hidden
    yield "attn_kv_a_norm", rank
    yield "attn_k_b", heads, rank, keys - rotated
    yield "attn_v_b", heads, values, rank
    yield "attn_output", hidden, heads * values


def _gemma4_attention(shape: Shape, layer: int) -> Iterator[Sized]:
    """Yield a layer's tensors of attention, and of its per-layer token embedding."""
    hidden, own = shape.hidden, shape.own
    slides = own["attention.sliding_window_pattern"][layer]
    head = own["attention.key_length_swa"] if slides else shape.head_dim
    yield "attn_norm", hidden
    yield "attn_q", shape.heads * head, hidden
    yield "attn_q_norm", head
    if layer < shape.layers - own["attention.shared_kv_layers"]:
        yield "attn_k", shape.kv_heads * head, hidden
        yield "attn_v", shape.kv_heads * head, hidden
        yield "attn_k_norm", head
    yield "attn_output", hidden, shape.heads * head
    token = own["embedding_length_per_layer_input"]
    yield from (("inp_gate", token, hidden), ("proj", hidden, token), ("layer_output_scale", 1))
    yield from ((f"post_{name}", hidden) for name in ("norm", "attention_norm", "ffw_norm"))


def _mlp(shape: Shape, layer: int) -> Iterator[Sized]:
    is_behind = shape.architecture in ("qwen35", "gpt-oss")
    yield "post_attention_norm" if is_behind else "ffn_norm", shape.hidden
    if layer < shape.own.get("leading_dense_block_count", 0) or not shape.experts[0]:
        widths = np.broadcast_to(shape.own.get("feed_forward_length", shape.ffn), shape.layers)
        yield from _gated("", (), shape.hidden, int(widths[layer]))
        return
    count, shared = shape.experts[0], shape.own.get("expert_shared_count", 0)
    yield "ffn_gate_inp", count, shape.hidden
    yield from _gated("_exps", (count,), shape.hidden, shape.ffn)
    if shared:
        yield from _gated("_shexp", (), shape.hidden, shape.ffn * shared)
    if shape.architecture == "gpt-oss":
        yield "ffn_gate_inp.bias", count
        for name, width in (("gate", shape.ffn), ("up", shape.ffn), ("down", shape.hidden)):
            yield f"ffn_{name}_exps.bias", count, width


def _gated(end: str, each: tuple[int, ...], hidden: int, width: int) -> Iterator[Sized]:
    yield f"ffn_gate{end}", *each, width, hidden
    yield f"ffn_up{end}", *each, width, hidden
    yield f"ffn_down{end}", *each, hidden, width


def _experts(shape: Shape) -> Iterator[tuple[str, int]]:
    count, used = shape.experts
    if count:
        yield "expert_count", count
        yield "expert_used_count", used
        yield "expert_feed_forward_length", shape.ffn


def sizes_of(shape: Shape, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the metadata of the model's sizes."""
    yield "general.architecture", shape.architecture
    yield "general.name", f"{name}, random weights"
    yield "general.quantization_version", 2
    usual = (
        ("block_count", shape.layers),
        ("context_length", shape.context),
        ("embedding_length", shape.hidden),
        ("feed_forward_length", shape.ffn),
        ("attention.head_count", shape.heads),
        ("attention.head_count_kv", _kv_heads(shape)),
        ("attention.key_length", shape.head_dim),
        ("attention.value_length", shape.head_dim),
        ("attention.layer_norm_rms_epsilon", shape.epsilon),
        ("rope.freq_base", shape.rope_base),
        ("rope.dimension_count", shape.head_dim // (4 if shape.architecture == "qwen35" else 1)),
        ("vocab_size", shape.vocab),
        *_OWN.get(shape.architecture, ()),
        *_experts(shape),
        *(zip(_STATES, (4, *shape.state), strict=True) if shape.state else ()),
    )
    for key, value in (dict(usual) | dict(shape.own)).items():
        yield f"{shape.architecture}.{key}", value


def tensors_of(shape: Shape, format: str) -> Iterator[TensorInfo]:
    """Return the tensors in the order in which a model runs, as converters write them."""
    vocabulary, hidden = "F16" if format == "F16" else "Q6_K", shape.hidden
    yield _matrix("token_embd", vocabulary, (shape.vocab, hidden))
    if shape.architecture == "gemma4":
        width = shape.layers * shape.own["embedding_length_per_layer_input"]
        yield _matrix("per_layer_token_embd", format, (shape.vocab, width))
        yield _matrix("per_layer_model_proj", format, (width, hidden))
        yield TensorInfo("per_layer_proj_norm.weight", "F32", (width // shape.layers,))
        yield TensorInfo("rope_freqs.weight", "F32", (shape.head_dim // 2,))
    for layer in range(shape.layers):
        own = _attention(shape, layer) if layer in shape.attending else _state(shape)
        for named, *sized in (*own, *_mlp(shape, layer)):
            name, sizes = str(named), tuple(map(int, sized))
            is_whole = name.endswith((".bias", "ssm_a", "ssm_d"))
            if len(sizes) == 1 or name.endswith((*_KEPT, ".bias")):
                whole = name if is_whole else f"{name}.weight"
                yield TensorInfo(f"blk.{layer}.{whole}", "F32", sizes)
                continue
            others = format if name.endswith("_exps") or format == "F16" else shape.others
            yield _matrix(f"blk.{layer}.{name}", others or format, sizes)
    norm = "token_embd_norm" if shape.architecture == "lfm2" else "output_norm"
    yield TensorInfo(f"{norm}.weight", "F32", (hidden,))
    if not shape.tied:
        yield _matrix("output", vocabulary, (shape.vocab, hidden))


def _matrix(name: str, format: str, sizes: tuple[int, ...]) -> TensorInfo:
    """A matrix in the format, or in llama.cpp's substitute if quant blocks do not fit a row."""
    if sizes[-1] % FORMATS[format].quant_block_elements:
        format = "Q5_0" if format == "Q4_K" else "Q8_0"
    return TensorInfo(f"{name}.weight", format, sizes)
