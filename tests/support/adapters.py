"""Random adapters for models in GGUF files, and the same models with an adapter's product added."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from cutaway.files.weights import GGUFFile

LAYER = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def matrices(path: Path, names: Iterable[str] = LAYER) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of a model's matrices with these last names."""
    with GGUFFile(path) as file:
        return {
            name: info.shape
            for name, info in file.tensors.items()
            if name.split(".")[-2] in {*names} and len(info.shape) == 2
        }


def random_lora(
    shapes: Mapping[str, tuple[int, ...]], rank: int = 3, seed: int = 0, dtype: type = np.float32
) -> dict[str, np.ndarray]:
    """Return A and B for each matrix, large enough to change a text."""
    rng, matrices_by_name = np.random.default_rng(seed), {}
    for name, (out, inner) in shapes.items():
        a, b = rng.normal(size=(rank, inner)), rng.normal(size=(out, rank))
        matrices_by_name[f"{name}.lora_a"] = (a / np.sqrt(inner)).astype(dtype)
        matrices_by_name[f"{name}.lora_b"] = (b / np.sqrt(rank)).astype(dtype)
    return matrices_by_name


def write_lora(
    path: Path, tensors: Mapping[str, np.ndarray], *, alpha: float | None = 6.0,
    architecture: str = "llama", **metadata: str,
) -> Path:  # fmt: skip
    """Write an adapter as llama.cpp's converter does."""
    writer = gguf.GGUFWriter(path, architecture)
    values = {"general.type": "adapter", "adapter.type": "lora"}
    for key, value in (values | {k.replace("__", "."): v for k, v in metadata.items()}).items():
        writer.add_string(key, value)
    if alpha is not None:
        writer.add_float32("adapter.lora.alpha", alpha)
    for name, tensor in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def adapter_of(
    model: Path,
    path: Path,
    *,
    names: Iterable[str] = LAYER,
    architecture: str = "llama",
    **options: Any,
) -> Path:
    """Write a random adapter for a model."""
    tensors = random_lora(matrices(model, names), **options)
    return write_lora(path, tensors, architecture=architecture)


def write_merged(
    model: Path, path: Path, tensors: Mapping[str, np.ndarray], scale: float = 2.0
) -> Path:
    """Write the F32 model with W + scale · B A instead of W."""
    data = bytearray(model.read_bytes())
    with GGUFFile(model) as file:
        for name in {name.rpartition(".")[0] for name in tensors}:
            a, b = (tensors[f"{name}.{side}"].astype(np.float64) for side in ("lora_a", "lora_b"))
            whole = (file.dequantize(name) + scale * (b @ a)).astype(np.float32)
            start = file.tensors[name].offset
            data[start : start + whole.nbytes] = whole.tobytes()
    path.write_bytes(data)
    return path
