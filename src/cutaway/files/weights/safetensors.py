"""A safetensors file, read and written.

Knows the header, which is JSON, and checks that its entries fit the file and do not overlap. Does
not know what a tensor is for.

Source: https://github.com/huggingface/safetensors, "Format".
"""

import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

import numpy as np
from numpy.typing import NDArray

from cutaway.base.whole_files import whole_file
from cutaway.errors import FormatError, InputError
from cutaway.files.weights.cursor import quote
from cutaway.files.weights.file import TensorFile, TensorInfo, open_bytes

if TYPE_CHECKING:
    from cutaway.base._native import FileBytes


_LENGTH = 8  # bytes: how long the header is, a little-endian uint64
_LONGEST_HEADER = 100_000_000  # bytes, as the reference reader has it
_METADATA = "__metadata__"
_MAX_DIMS = 8
_READ = ("F32", "F16", "BF16")  # named as in `FORMATS`
_BYTES = {
    "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1,
    "I64": 8, "I32": 4, "U32": 4, "I8": 1, "U8": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Entry:
    """One line of the header; start and end in bytes from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class SafetensorsFile(TensorFile):
    """The tensors of one file: names in the order of the header, sizes, and their bytes.

    metadata: the file's own texts by key, which the format leaves to its writers; what is no text
        is left out

    Raises `InputError` if the file cannot be opened and `FormatError` if it is not a sound
    safetensors file. A file may have tensors of dtypes other than F32, F16 and BF16, which are
    refused only when they are read; integers and bytes can be read as parts of a quantised matrix
    (``dtype_and_shape``, ``part``).
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        data = open_bytes(self.path, ".safetensors")
        start, header = self._header(data)
        self.metadata = _texts(header.pop(_METADATA, None))
        self._entries = MappingProxyType(
            {name: self._entry(name, entry, start, data.nbytes) for name, entry in header.items()}
        )
        self._check_apart()
        self._bytes = data

    @property
    def names(self) -> list[str]:
        """The names of all tensors, in the order of the header."""
        return list(self._entries)

    def info(self, name: str) -> TensorInfo:
        """Return a tensor's format and shape. `InputError` if there is none.

        `FormatError` for another dtype, an empty tensor, or one without dimensions: GGUF has none.
        """
        entry = self._find_entry(name, _READ)
        if not entry.shape or 0 in entry.shape:
            shape = f"{entry.shape!s:.80}"
            self._fail(f"the tensor {quote(name)} has the shape {shape}: it holds no rows")
        return TensorInfo(name, entry.dtype, entry.shape)

    def raw(self, name: str) -> "FileBytes":
        """See `ModelFile`. Raises `FormatError` as ``info`` does."""
        self.info(name)
        return super().raw(name)

    def dtype_and_shape(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Return a tensor's dtype in the file, and its shape; `FormatError` for an unread dtype."""
        entry = self._find_entry(name, _BYTES)
        return entry.dtype, entry.shape

    def part(self, name: str) -> "FileBytes":
        """Return the bytes of a tensor of any dtype that ``dtype_and_shape`` allows."""
        return super().raw(name)

    def _find_entry(self, name: str, read: Collection[str]) -> _Entry:
        if name not in self._entries:
            raise InputError(f"{self.path}: there is no tensor named {quote(name)}")
        entry = self._entries[name]
        if entry.dtype not in read:
            self._fail(
                f"the tensor {quote(name)} is stored as {quote(entry.dtype)}, and cutaway reads "
                f"{', '.join(read)}; get the model in one of these"
            )
        return entry

    def _span(self, name: str) -> tuple[int, int]:
        entry = self._find_entry(name, _BYTES)
        return entry.start, entry.end

    # -- the header --------------------------------------------------------------------------

    def _fail(self, problem: str) -> NoReturn:
        raise FormatError(f"{self.path}: {problem}")

    def _header(self, data: "FileBytes") -> tuple[int, dict[str, Any]]:
        """Return where the tensors' bytes start, and the entries of the JSON."""
        length = int.from_bytes(head := data[:_LENGTH].tobytes(), "little")
        if head.startswith(b"version"):
            self._fail("it is a Git LFS pointer: run `git lfs pull`")
        if data.nbytes < _LENGTH or length > data.nbytes - _LENGTH:
            self._fail(
                f"the header is said to have {length} bytes, and the file has {data.nbytes}: it is "
                "no safetensors file, or truncated; download it again"
            )
        if length > _LONGEST_HEADER:
            self._fail(f"the header has {length} bytes, and the format allows {_LONGEST_HEADER}")
        try:
            header = json.loads(
                data[_LENGTH : _LENGTH + length].tobytes().decode(), object_pairs_hook=_no_key_twice
            )
        except (ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())[:80]
            self._fail(f"the header is no sound JSON ({reason!a}); download the file again")
        if not isinstance(header, dict):
            self._fail("the header is no JSON object; download the file again")
        return _LENGTH + length, header

    def _entry(self, name: str, entry: Any, start: int, size: int) -> _Entry:
        """Check one entry by itself; start: where tensors' bytes start; size: the file's size."""
        fields = entry if isinstance(entry, dict) else {}
        dtype, shape, offsets = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
        if not isinstance(dtype, str) or not _sizes(shape) or not _sizes(offsets):
            self._fail(f"the tensor {quote(name)} lacks a sound dtype, shape or data_offsets")
        if len(shape) > _MAX_DIMS or len(offsets) != 2:
            self._fail(f"the tensor {quote(name)} has too many dimensions, or not two offsets")
        begin, end = offsets
        if begin > end or start + end > size:
            self._fail(
                f"the tensor {quote(name)} ends outside of the file or before it begins; "
                "the file is truncated or damaged, download it again"
            )
        if dtype in _BYTES and _BYTES[dtype] * prod(shape) != end - begin:
            self._fail(f"the tensor {quote(name)} has other bytes than its shape needs")
        return _Entry(name, dtype, tuple(shape), start + begin, start + end)

    def _check_apart(self) -> None:
        ordered = sorted(self._entries.values(), key=lambda entry: (entry.start, entry.end))
        for before, after in pairwise(ordered):
            if before.end > after.start:
                self._fail(f"the tensors {quote(before.name)} and {quote(after.name)} overlap")


def _no_key_twice(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key occurs twice")
    return values


def _texts(metadata: Any) -> Mapping[str, str]:
    values = metadata if isinstance(metadata, dict) else {}
    return {key: text for key, text in values.items() if isinstance(text, str)}


def _sizes(value: Any) -> TypeGuard[list[int]]:
    """Whether the value is a list of whole numbers, none below 0."""
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


# -- writing ---------------------------------------------------------------------------------------


_DTYPES = {"f4": "F32", "f8": "F64", "i4": "I32", "i8": "I64", "f2": "F16", "u1": "U8"}
_ALIGNED = 8  # bytes, to a multiple of which the header is filled up with spaces


Arrays = Mapping[str, NDArray[Any]]


def write_safetensors(path: Path, tensors: Arrays, metadata: Mapping[str, str]) -> None:
    """Write a file, whole or not at all; CutawayError if it cannot be written."""
    with whole_file(path) as file:
        file.writelines(parts(tensors, metadata))


def parts(tensors: Arrays, metadata: Mapping[str, str]) -> Iterator[bytes]:
    """Yield the bytes of a safetensors file: its header, then each tensor."""
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
