"""The shapes of published models: their sizes, and which tensors that makes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutaway.files.weights import TensorInfo

Sized = tuple[str | int, ...]
"""A tensor's name and its sizes."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a model.

    tied     the embedding is the output matrix too
    attends  the layers that do; None: all
    state    of the others: numbers of a key, heads of keys, heads of values, values of all of them
    experts  of each layer, and how many of them compute a token; ffn is the width of one
    """

    architecture: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool = True
    rope_base: float = 500_000.0
    context: int = 131_072
    epsilon: float = 1e-5
    attends: tuple[int, ...] | None = None
    state: tuple[int, ...] = ()
    experts: tuple[int, int] = (0, 0)

    @property
    def attending(self) -> tuple[int, ...]:
        """The layers that attend."""
        return tuple(range(self.layers)) if self.attends is None else self.attends


_QWEN: Any = {"rope_base": 1_000_000.0, "context": 40_960, "epsilon": 1e-6}
_QWEN35: Any = {"rope_base": 1e7, "context": 262_144, "epsilon": 1e-6}
SHAPES = {
    "llama-1b": Shape("llama", 2048, 16, 32, 8, 64, 8192, 128_256),  # Llama 3.2
    "llama-3b": Shape("llama", 3072, 28, 24, 8, 128, 8192, 128_256),
    "llama-8b": Shape("llama", 4096, 32, 32, 8, 128, 14_336, 128_256, tied=False),  # Llama 3.1
    "qwen3-0.6b": Shape("qwen3", 1024, 28, 16, 8, 128, 3072, 151_936, **_QWEN),
    "qwen3-1.7b": Shape("qwen3", 2048, 28, 16, 8, 128, 6144, 151_936, **_QWEN),
    "qwen3-8b": Shape("qwen3", 4096, 36, 32, 8, 128, 12_288, 151_936, **_QWEN, tied=False),
    "qwen2-1.5b": Shape("qwen2", 1536, 28, 12, 2, 128, 8960, 151_936, **_QWEN),  # Qwen2.5
    "qwen2-7b": Shape("qwen2", 3584, 28, 28, 4, 128, 18_944, 152_064, **_QWEN, tied=False),
    "olmoe-7b": Shape(  # 1B of them for a token
        "olmoe",
        2048,
        16,
        16,
        16,
        128,
        1024,
        50_304,
        tied=False,
        rope_base=10_000.0,
        context=4096,
        experts=(64, 8),
    ),
    "granite-3b": Shape(  # Granite 3.1 3B-A800M
        "granitemoe",
        1536,
        32,
        24,
        8,
        64,
        512,
        49_155,
        rope_base=10_000_000.0,
        epsilon=1e-6,
        experts=(40, 8),
    ),
    "qwen3-30b": Shape(  # 3B of them for a token
        "qwen3moe",
        2048,
        48,
        32,
        4,
        128,
        768,
        151_936,
        **_QWEN,
        tied=False,
        experts=(128, 8),
    ),
    "lfm2-1.2b": Shape(
        "lfm2",
        2048,
        16,
        32,
        8,
        64,
        8192,
        65_536,
        rope_base=1e6,
        context=128_000,
        attends=(2, 5, 8, 10, 12, 14),
    ),
    "qwen3.5-0.8b": Shape(
        "qwen35",
        1024,
        24,
        8,
        2,
        256,
        3584,
        248_320,
        **_QWEN35,
        attends=tuple(range(3, 24, 4)),
        state=(128, 16, 16, 2048),
    ),
    "qwen3.5-4b": Shape(
        "qwen35",
        2560,
        32,
        16,
        4,
        256,
        9216,
        248_320,
        **_QWEN35,
        attends=tuple(range(3, 32, 4)),
        state=(128, 16, 32, 4096),
    ),
    "granite4-h-1b": Shape(
        "granitehybrid",
        1536,
        40,
        12,
        4,
        128,
        4096,
        100_352,
        rope_base=10_000.0,
        attends=(5, 15, 25, 35),
        state=(128, 1, 48, 3072),
    ),
}


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
    """Of each layer, where files say so."""
    if shape.attends is None or shape.architecture == "qwen35":
        return shape.kv_heads
    counts = [shape.kv_heads * (i in shape.attends) for i in range(shape.layers)]
    return np.array(counts, np.int32)


def _attention(shape: Shape) -> Iterator[Sized]:
    hidden = shape.hidden
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "attn_norm", hidden
    yield "attn_q", queries * (2 if shape.architecture == "qwen35" else 1), hidden
    yield "attn_k", keys, hidden
    yield "attn_v", keys, hidden
    yield "attn_output", hidden, queries
    if shape.architecture == "qwen2":
        yield from (("attn_q.bias", queries), ("attn_k.bias", keys), ("attn_v.bias", keys))
    if shape.architecture == "olmoe":  # of all heads together
        yield "attn_q_norm", queries
        yield "attn_k_norm", keys
    if shape.architecture in ("qwen3", "qwen3moe", "qwen35", "lfm2"):
        yield "attn_q_norm", shape.head_dim
        yield "attn_k_norm", shape.head_dim


def _state(shape: Shape) -> Iterator[Sized]:
    """Of a layer with a recurrent state."""
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


def _mlp(shape: Shape) -> Iterator[Sized]:
    yield "post_attention_norm" if shape.architecture == "qwen35" else "ffn_norm", shape.hidden
    count, _ = shape.experts
    end, each = ("_exps", (count,)) if count else ("", ())
    if count:
        yield "ffn_gate_inp", count, shape.hidden
    yield f"ffn_gate{end}", *each, shape.ffn, shape.hidden
    yield f"ffn_up{end}", *each, shape.ffn, shape.hidden
    yield f"ffn_down{end}", *each, shape.hidden, shape.ffn


def _experts(shape: Shape) -> Iterator[tuple[str, int]]:
    count, used = shape.experts
    if count:
        yield "expert_count", count
        yield "expert_used_count", used
        yield "expert_feed_forward_length", shape.ffn


def sizes_of(shape: Shape, name: str) -> Iterator[tuple[str, Any]]:
    """The metadata that says how large the model is."""
    yield "general.architecture", shape.architecture
    yield "general.name", f"{name}, random weights"
    yield "general.quantization_version", 2
    for key, value in (
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
    ):
        yield f"{shape.architecture}.{key}", value


def tensors_of(shape: Shape, format: str) -> Iterator[TensorInfo]:
    """In the order in which a model is run, as converters write them."""
    vocabulary = "F16" if format == "F16" else "Q6_K"
    hidden = shape.hidden
    yield TensorInfo("token_embd.weight", vocabulary, (shape.vocab, hidden))
    for layer in range(shape.layers):
        attends = layer in shape.attending
        for named, *sized in (*(_attention if attends else _state)(shape), *_mlp(shape)):
            name, sizes = str(named), tuple(map(int, sized))
            whole = name if name.endswith((".bias", "ssm_a", "ssm_d")) else f"{name}.weight"
            kept = len(sizes) == 1 or name.endswith(_KEPT)
            yield TensorInfo(f"blk.{layer}.{whole}", "F32" if kept else format, sizes)
    norm = "token_embd_norm" if shape.architecture == "lfm2" else "output_norm"
    yield TensorInfo(f"{norm}.weight", "F32", (hidden,))
    if not shape.tied:
        yield TensorInfo("output.weight", vocabulary, (shape.vocab, hidden))
