"""Safetensors files written byte by byte, invalid ones included."""

import json
import struct


def safetensors(header, data=b"", length=None):
    """header: a value for JSON, or bytes; length: header length in the file, None: the true one."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def small():
    """Return a sound file with every part that a reader reads."""
    header = {
        "__metadata__": {"format": "pt"},
        "norm": entry(),
        "matrix": entry("BF16", (2, 2), (8, 16)),
        "half": entry("F16", (1, 3), (16, 22)),
        "ids": entry("I64", (1,), (22, 30)),
    }
    return safetensors(header, bytes(range(1, 31)))
