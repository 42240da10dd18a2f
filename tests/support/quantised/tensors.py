"""Safetensors files with any dtype that a method uses."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from support.quantised.method import Array, Typed

_DTYPES = {"f4": "F32", "f2": "F16", "i4": "I32", "i8": "I64", "u4": "U32", "i1": "I8", "u1": "U8"}


def write_tensors(
    path: Path, tensors: Mapping[str, Array | Typed], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a safetensors file, with any dtype of ``Typed`` or NumPy."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    data = b""
    for name, tensor in tensors.items():
        numbers = tensor.data if isinstance(tensor, Typed) else tensor
        dtype = tensor.dtype if isinstance(tensor, Typed) else _DTYPES[tensor.dtype.str[1:]]
        raw = np.ascontiguousarray(numbers).tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype, "shape": list(numbers.shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_metadata(path: Path) -> dict[str, str]:
    """Read the texts that a file has beside its tensors."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    metadata: dict[str, str] = json.loads(raw[8 : 8 + length]).get("__metadata__", {})
    return metadata


def read_tensors(path: Path) -> dict[str, Array | Typed]:
    """Read a file that ``write_tensors`` wrote."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    plain = {name: dtype for dtype, name in _DTYPES.items()}
    tensors: dict[str, Array | Typed] = {}
    header.pop("__metadata__", None)
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        dtype = plain.get(entry["dtype"], "u2" if entry["dtype"] == "BF16" else "u1")
        numbers = np.frombuffer(data[first:last], f"<{dtype}").reshape(entry["shape"])
        tensors[name] = numbers if entry["dtype"] in plain else Typed(entry["dtype"], numbers)
    return tensors
