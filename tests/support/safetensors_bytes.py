"""Safetensors files by hand, byte for byte: what no well-behaved writer would write."""

import json
import struct


def safetensors(header, data=b"", length=None):
    """header: what JSON can hold, or bytes; length: what the file says of the header's."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def small():
    """A sound file with every part a reader walks through."""
    header = {
        "__metadata__": {"format": "pt"},
        "norm": entry(),
        "matrix": entry("BF16", (2, 2), (8, 16)),
        "half": entry("F16", (1, 3), (16, 22)),
        "ids": entry("I64", (1,), (22, 30)),
    }
    return safetensors(header, bytes(range(1, 31)))
