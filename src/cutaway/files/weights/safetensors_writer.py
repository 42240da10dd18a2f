"""A safetensors file, written: names, shapes and bytes, and what is said of them.

Source: https://github.com/huggingface/safetensors, "Format".
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.base.whole_files import whole_file

_DTYPES = {"f4": "F32", "f8": "F64", "i4": "I32", "i8": "I64", "f2": "F16", "u1": "U8"}
_ALIGNED = 8  # bytes, to a multiple of which the header is filled up with spaces


Arrays = Mapping[str, NDArray[Any]]


def write_safetensors(path: Path, tensors: Arrays, metadata: Mapping[str, str]) -> None:
    """All or nothing, in the order given; CutawayError where it cannot be written."""
    with whole_file(path) as file:
        file.writelines(parts(tensors, metadata))


def parts(tensors: Arrays, metadata: Mapping[str, str]) -> Iterator[bytes]:
    """What such a file holds: its header, then each tensor."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name, tensor in tensors.items():
        dtype = _DTYPES[tensor.dtype.newbyteorder("<").str[1:]]
        end = at + tensor.nbytes
        header[name] = {"dtype": dtype, "shape": tensor.shape, "data_offsets": [at, end]}
        at = end
    data = json.dumps(header, separators=(",", ":")).encode()
    data += b" " * (-len(data) % _ALIGNED)
    yield len(data).to_bytes(8, "little") + data
    for tensor in tensors.values():
        yield np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("<")).tobytes()
