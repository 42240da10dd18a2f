"""Writes small random llama models as GGUF files, in shapes odd enough to catch a mistake."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from cutaway.files.weights import FORMATS
from cutaway.text.late_interaction import LateInteraction
from random_blocks import random_blocks

WORDS = [f"<0x{b:02X}>" for b in range(256)] + ["▁", "a", "b", "ab", "▁a"]
VOCAB = 3 + len(WORDS)
_GGUF_PY_FORMATS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")  # by gguf-py


def write_tiny_llama(
    path: Path, *, tied: bool = False, heads: int = 6, kv_heads: int = 2, head_dim: int = 8,
    hidden: int = 32, feed_forward: int = 96, layers: int = 2, context: int = 128, seed: int = 0,
    extra_tensor: str | None = None, skip_tensor: str | None = None, architecture: str = "llama",
    metadata: Mapping[str, Any] | None = None, rows: int | None = None, format: str = "F32",
    formats: Mapping[str, str] | None = None, rope_factors: Sequence[float] | None = None,
    vectors: Mapping[str, np.ndarray[Any, Any]] | None = None, experts: int = 0,
) -> Path:  # fmt: skip
    """head_dim differs from hidden / heads, and heads from kv_heads, on purpose.

    metadata: keys to set (None removes a key); rows: number of the embedding's rows
    experts: number in each layer, instead of one MLP; two of them compute each token
    format: of every matrix; formats: of the matrices with these last names ("ffn_down", "output")
    vectors: more tensors, by their full names
    """
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(context)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    add_tokens(writer)
    output = {} if tied else {"output": (VOCAB, hidden)}
    shapes = {"token_embd": (rows or VOCAB, hidden), "output_norm": (hidden,), **output}
    layer = _layer(hidden, heads * head_dim, kv_heads * head_dim, feed_forward)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(2)
        mlp = ("ffn_gate", "ffn_up", "ffn_down")
        layer |= {"ffn_gate_inp": (experts, hidden)}
        layer |= {f"{name}_exps": (experts, *layer.pop(name)) for name in mlp}
    shapes |= {f"blk.{i}.{name}": layer[name] for i in range(layers) for name in layer}
    if extra_tensor:
        shapes[extra_tensor] = (hidden,)
    shapes.pop(skip_tensor or "", None)
    add_tensors(writer, np.random.default_rng(seed), shapes, format, formats or {})
    if rope_factors:
        writer.add_tensor("rope_freqs.weight", np.array(rope_factors, np.float32))
    for name, numbers in (vectors or {}).items():
        writer.add_tensor(name, numbers)
    _set(writer, metadata or {})
    return write_file(writer, path)


def write_tiny_late(path: Path) -> Path:
    """Write a late-interaction model: 8 numbers per token, none for "a"; "b" marks a query."""
    late = LateInteraction(
        query_id=WORDS.index("b") + 3, document_id=WORDS.index("ab") + 3, query_length=10,
        document_length=20, filled_to=10, filler=2, fillers_are_seen=True,
        skipped=(WORDS.index("a") + 3,),
    )  # fmt: skip
    matrix = np.random.default_rng(3).normal(size=(8, 32)).astype(np.float32)
    return write_tiny_llama(
        path, tied=True, metadata=late.to_metadata(), vectors={"dense_2.weight": matrix}
    )


def write_tiny_ranker(path: Path) -> Path:
    """Write a reranker, which scores two texts by the row of their last token."""
    matrix = np.random.default_rng(4).normal(size=(1, 32)).astype(np.float32)
    return write_tiny_llama(
        path, tied=True, metadata={"cutaway.embedding.rank_pooling": "last"},
        vectors={"cls.output.weight": matrix},
    )  # fmt: skip


def write_file(writer: gguf.GGUFWriter, path: Path) -> Path:
    """Write the file of everything added to a writer."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tokens(writer: gguf.GGUFWriter) -> None:
    """Add a tokenizer of VOCAB tokens."""
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *WORDS])
    writer.add_token_scores([0.0] * 3 + [0.0] * 256 + [-1.0, -2.0, -3.0, -4.0, -5.0])
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * 5])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _layer(hidden: int, queries: int, keys: int, feed_forward: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a layer's tensors, in the order of drawing."""
    return {
        "attn_norm": (hidden,), "ffn_norm": (hidden,),
        "attn_q": (queries, hidden), "attn_k": (keys, hidden), "attn_v": (keys, hidden),
        "attn_output": (hidden, queries),
        "ffn_gate": (feed_forward, hidden), "ffn_up": (feed_forward, hidden),
        "ffn_down": (hidden, feed_forward),
    }  # fmt: skip


def add_tensors(
    writer: gguf.GGUFWriter, rng: np.random.Generator, shapes: Mapping[str, tuple[int, ...]],
    format: str, formats: Mapping[str, str],
) -> None:  # fmt: skip
    """Add random tensors of these shapes, which have names without ".weight"."""
    for name, shape in shapes.items():
        kind = formats.get(name.split(".")[-1], format) if len(shape) == 2 else "F32"
        scale = 1.0 if len(shape) == 1 else 3.0 / np.sqrt(shape[-1])
        raw = random_matrix(rng, kind, shape, scale)
        add_stored(writer, f"{name}.weight", raw, kind, shape)


def add_stored(
    writer: gguf.GGUFWriter, name: str, raw: np.ndarray[Any, Any], format: str,
    shape: tuple[int, ...],
) -> None:  # fmt: skip
    """Add a tensor by its bytes, in any format: gguf-py does not know all of ggml's."""
    type_id: Any = FORMATS[format].type_id
    writer.add_tensor(name, raw.view(np.int8), raw_shape=shape, raw_dtype=type_id)


def _set(writer: gguf.GGUFWriter, metadata: Mapping[str, Any]) -> None:
    for key, value in metadata.items():
        writer.kv_data[0].pop(key, None)
        if value is not None:
            writer.kv_data[0][key] = _to_value(value)


def random_matrix(
    rng: np.random.Generator, format: str, shape: tuple[int, ...], scale: float
) -> np.ndarray[Any, Any]:
    """Return normally distributed numbers in a format: float32 for F32, else bytes of rows."""
    if format not in _GGUF_PY_FORMATS:
        return random_blocks(rng, format, shape, scale)
    numbers = (rng.normal(size=shape) * scale).astype(np.float32)
    if format == "F32":
        return numbers
    raw = gguf.quants.quantize(numbers, gguf.GGMLQuantizationType[format])
    return raw.view(np.uint8).reshape(shape[0], -1)


def _to_value(value: Any) -> gguf.GGUFValue:
    kind = gguf.GGUFValueType.get_type(value)
    wide = {gguf.GGUFValueType.INT32: "INT64", gguf.GGUFValueType.FLOAT32: "FLOAT64"}
    return gguf.GGUFValue(value, gguf.GGUFValueType[wide.get(kind, kind.name)])
