"""A GGUF file.

Knows the header, the metadata and the tensor table, and that the three must agree with each other
and with the size of the file; nothing is believed unchecked.

Reads versions 2 and 3, little-endian. Source: docs/gguf.md of ggml.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cutaway.files.weights.cursor import Cursor, quoted
from cutaway.files.weights.file import ModelFile, TensorInfo
from cutaway.files.weights.formats import FORMATS_BY_ID, unread
from cutaway.files.weights.tensor_file import TensorFile, open_bytes

if TYPE_CHECKING:
    from cutaway.base._native import FileBytes

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMS = 4
_MIN_PAIR = 8 + 4 + 1  # the bytes of an empty key, a value type and a one-byte value
_MIN_TENSOR = 8 + 4 + 8 + 4 + 8  # an empty name, one dimension, a type and an offset

# What people download by mistake, by its first bytes.
_IMPOSTORS = {
    b"version https://git-lfs": "it is a Git LFS pointer: run `git lfs pull`",
    b"<": "it looks like a web page: download the file itself",
    b"PK\x03\x04": "it is a zip archive (a wheel, or a PyTorch checkpoint)",
    b"tjgg": "it is an old GGML file: get the model as GGUF",
    b"fmgg": "it is an old GGML file: get the model as GGUF",
    b"lmgg": "it is an old GGML file: get the model as GGUF",
}


@dataclass(frozen=True, slots=True)
class _Stored(TensorInfo):
    """With the tensor's offset in bytes from the start of the file."""

    offset: int

    @property
    def end(self) -> int:
        """The first byte after the tensor."""
        return self.offset + self.nbytes


class GGUFFile(TensorFile, ModelFile):
    """A GGUF file: its metadata, its tensors, and their bytes.

    `metadata` maps keys to str, int, float, bool; arrays of strings are list[str],
    arrays of numbers read-only numpy arrays, arrays of arrays lists. A string that is
    not UTF-8 keeps its bytes as lone surrogates (`encode("utf-8", "surrogateescape")`
    restores them). `tensors` is in file order. Both stay valid after `close`.

    Raises `InputError` if the file cannot be opened and `FormatError` if it is not a
    sound GGUF file, or is written to while it is open.
    """

    tensors: Mapping[str, _Stored]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        data = open_bytes(self.path, ".gguf")
        cursor = Cursor(data, self.path)
        tensor_count, pair_count = _read_header(cursor, data)
        metadata, types = _read_metadata(cursor, pair_count)
        tensors = _read_tensors(cursor, tensor_count, _alignment(cursor, metadata))
        _check_extents(cursor, tensors, data.nbytes)
        self.metadata, self.value_types = MappingProxyType(metadata), MappingProxyType(types)
        self.tensors = MappingProxyType(tensors)
        self._bytes = data

    def _span(self, name: str) -> tuple[int, int]:
        self.info(name)
        return self.tensors[name].offset, self.tensors[name].end


def _read_header(cursor: Cursor, data: "FileBytes") -> tuple[int, int]:
    """Return how many tensors and how many metadata pairs the file announces."""
    head = data[:32].tobytes()
    if not head.startswith(_MAGIC):
        hints = [hint for start, hint in _IMPOSTORS.items() if head.startswith(start)]
        cursor.fail("; ".join(["this is not a GGUF file (it does not begin with 'GGUF')", *hints]))
    cursor.take(len(_MAGIC))
    version = cursor.u32()
    if version and version & 0xFFFF == 0:  # a small number, its bytes in the other order
        cursor.fail("the file is big-endian, and cutaway reads only little-endian GGUF files")
    if version not in _VERSIONS:
        cursor.fail(
            f"this is GGUF version {version}, and cutaway reads versions 2 and 3; "
            "get the model in a current version"
        )
    return cursor.u64(), cursor.u64()


def _read_metadata(cursor: Cursor, count: int) -> tuple[dict[str, Any], dict[str, int]]:
    """The values by key, and their types."""
    cursor.where = "the metadata"
    cursor.check_room(count, _MIN_PAIR, f"pairs of at least {_MIN_PAIR} bytes")
    metadata: dict[str, Any] = {}
    types: dict[str, int] = {}
    for i in range(count):
        cursor.where = f"metadata key {i + 1} of {count}"
        key = cursor.string()
        if key in metadata:
            cursor.fail(f"the metadata key {quoted(key)} occurs twice")
        cursor.where = f"the metadata value {quoted(key)}"
        types[key] = cursor.u32()
        metadata[key] = cursor.value(types[key])
    return metadata, types


def _alignment(cursor: Cursor, metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        cursor.fail("the metadata value 'general.alignment' is not a power of two")
    return alignment


def _read_tensors(cursor: Cursor, count: int, alignment: int) -> dict[str, _Stored]:
    cursor.where = "the tensor table"
    cursor.check_room(count, _MIN_TENSOR, f"entries of at least {_MIN_TENSOR} bytes")
    entries: dict[str, _Stored] = {}
    for i in range(count):
        cursor.where = f"tensor {i + 1} of {count}"
        name = cursor.string()
        if name in entries:
            cursor.fail(f"the tensor name {quoted(name)} occurs twice")
        entries[name] = _read_tensor(cursor, name, alignment)
    start = -(-cursor.position // alignment) * alignment  # the table is padded to the alignment
    return {name: replace(info, offset=start + info.offset) for name, info in entries.items()}


def _read_tensor(cursor: Cursor, name: str, alignment: int) -> _Stored:
    """Read one entry after its name; its offset is still relative to the data."""
    cursor.where = f"the tensor {quoted(name)}"
    dims = cursor.u32()
    if not 1 <= dims <= _MAX_DIMS:
        cursor.fail(f"{cursor.where} has {dims} dimensions, and GGUF allows 1 to {_MAX_DIMS}")
    shape = tuple(reversed(cursor.u64s(dims)))
    type_id, offset = cursor.u32(), cursor.u64()
    format = FORMATS_BY_ID.get(type_id)
    if format is None:
        cursor.fail(f"{cursor.where} is stored as {unread(type_id)}")
    if 0 in shape:
        cursor.fail(f"{cursor.where} has an empty dimension in its shape {shape}")
    if shape[-1] % format.quant_block_elements:
        cursor.fail(
            f"{cursor.where} has rows of {shape[-1]} weights, which is not a multiple of "
            f"the {format.quant_block_elements} in a quant block of {format.name}"
        )
    if offset % alignment:
        cursor.fail(f"{cursor.where} lies at offset {offset}, not a multiple of {alignment}")
    return _Stored(name, format.name, shape, offset)


def _check_extents(cursor: Cursor, tensors: dict[str, _Stored], size: int) -> None:
    """Fail unless every tensor lies inside the file and apart from the others."""
    ordered = sorted(tensors.values(), key=lambda info: info.offset)
    for info in ordered:
        if info.end > size:
            cursor.fail(
                f"the tensor {quoted(info.name)} ends at byte {info.end}, but the file has only "
                f"{size}; it is truncated or damaged, download it again"
            )
    for before, after in pairwise(ordered):
        if before.end > after.offset:
            cursor.fail(f"the tensors {quoted(before.name)} and {quoted(after.name)} overlap")
