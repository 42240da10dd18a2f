"""A GGUF file, or a model in several of them.

Knows the header, the metadata and the tensor table, and checks that the three agree with each other
and with the size of the file. Knows which tensors of some files are fused, and the keys that number
the parts of a model (`split.no`, `split.count`, `split.tensors.count`): all parts must be of one
model. Does not know what a key means.

Reads versions 2 and 3, little-endian. Source: docs/gguf.md of ggml.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.weights.cursor import Cursor, quote
from cutaway.files.weights.decode import dequantize
from cutaway.files.weights.file import ModelFile, TensorBytes, TensorFile, TensorInfo, open_bytes
from cutaway.files.weights.formats import FORMATS, FORMATS_BY_ID, unread

if TYPE_CHECKING:
    from cutaway.base._native import FileBytes


_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMS = 4
_MIN_PAIR = 8 + 4 + 1  # the bytes of an empty key, a value type and a one-byte value
_MIN_TENSOR = 8 + 4 + 8 + 4 + 8  # an empty name, one dimension, a type and an offset

# The first bytes of files that people download by mistake -> a hint.
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
    """A tensor, with its offset in bytes from the start of the file."""

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
        if not isinstance(name := metadata.get("general.architecture", ""), str):
            cursor.fail(f"the metadata value 'general.architecture' must be text, not {name!r:.40}")
        tensors = _read_tensors(cursor, tensor_count, _alignment(cursor, metadata))
        _check_extents(cursor, tensors, data.nbytes)
        self.metadata, self.value_types = MappingProxyType(metadata), MappingProxyType(types)
        self.tensors = MappingProxyType(tensors)
        self._bytes = data

    def _span(self, name: str) -> tuple[int, int]:
        self.info(name)
        return self.tensors[name].offset, self.tensors[name].end


def _read_header(cursor: Cursor, data: "FileBytes") -> tuple[int, int]:
    """Return the numbers of tensors and of metadata pairs in the header."""
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
    """Return the values by key, and their types."""
    cursor.reading = "the metadata"
    cursor.check_room(count, _MIN_PAIR, f"pairs of at least {_MIN_PAIR} bytes")
    metadata: dict[str, Any] = {}
    types: dict[str, int] = {}
    for i in range(count):
        cursor.reading = f"metadata key {i + 1} of {count}"
        key = cursor.string()
        if key in metadata:
            cursor.fail(f"the metadata key {quote(key)} occurs twice")
        cursor.reading = f"the metadata value {quote(key)}"
        types[key] = cursor.u32()
        metadata[key] = cursor.value(types[key])
    return metadata, types


def _alignment(cursor: Cursor, metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        cursor.fail("the metadata value 'general.alignment' is not a power of two")
    return alignment


def _read_tensors(cursor: Cursor, count: int, alignment: int) -> dict[str, _Stored]:
    cursor.reading = "the tensor table"
    cursor.check_room(count, _MIN_TENSOR, f"entries of at least {_MIN_TENSOR} bytes")
    entries: dict[str, tuple[str, tuple[int, ...], int]] = {}
    for i in range(count):
        cursor.reading = f"tensor {i + 1} of {count}"
        name = cursor.string()
        if name in entries:
            cursor.fail(f"the tensor name {quote(name)} occurs twice")
        entries[name] = _read_tensor(cursor, name, alignment)
    start = -(-cursor.position // alignment) * alignment  # the table is padded to the alignment
    return {
        name: _Stored(name, format, shape, start + offset)
        for name, (format, shape, offset) in entries.items()
    }


def _read_tensor(cursor: Cursor, name: str, alignment: int) -> tuple[str, tuple[int, ...], int]:
    """Read an entry after its name: its format, its shape, and its offset from the data's start."""
    cursor.reading = f"the tensor {quote(name)}"
    dims = cursor.u32()
    if not 1 <= dims <= _MAX_DIMS:
        cursor.fail(f"{cursor.reading} has {dims} dimensions, and GGUF allows 1 to {_MAX_DIMS}")
    shape = tuple(reversed(cursor.u64s(dims)))
    type_id, offset = cursor.u32(), cursor.u64()
    format = FORMATS_BY_ID.get(type_id)
    if format is None:
        cursor.fail(f"{cursor.reading} is stored as {unread(type_id)}")
    if 0 in shape:
        cursor.fail(f"{cursor.reading} has an empty dimension in its shape {shape}")
    if shape[-1] % format.quant_block_elements:
        cursor.fail(
            f"{cursor.reading} has rows of {shape[-1]} weights, which is not a multiple of "
            f"the {format.quant_block_elements} in a quant block of {format.name}"
        )
    if offset % alignment:
        cursor.fail(f"{cursor.reading} lies at offset {offset}, not a multiple of {alignment}")
    return format.name, shape, offset


def _check_extents(cursor: Cursor, tensors: dict[str, _Stored], size: int) -> None:
    """Fail unless every tensor lies inside the file and apart from the others."""
    ordered = sorted(tensors.values(), key=lambda info: info.offset)
    for info in ordered:
        if info.end > size:
            cursor.fail(
                f"the tensor {quote(info.name)} ends at byte {info.end}, but the file has only "
                f"{size}; it is truncated or damaged, download it again"
            )
    for before, after in pairwise(ordered):
        if before.end > after.offset:
            cursor.fail(f"the tensors {quote(before.name)} and {quote(after.name)} overlap")


# -- fused tensors, whose parts are read one by one ------------------------------------------------


_GATE_UP, _KEYS_VALUES = "ffn_gate_up_exps", "attn_kv_b"


@dataclass(frozen=True, slots=True)
class _Part(TensorInfo):
    """Rows of each of the stacked matrices of ``source``; all rows if ``rows`` is None.

    stack: how many matrices there are, and how many rows each has
    is_transposed: whether rows and columns are swapped; the result is float32
    """

    source: TensorInfo
    stack: tuple[int, int] = (1, 1)
    rows: slice | None = None
    is_transposed: bool = False

    def bytes_of(self, raw: TensorBytes) -> TensorBytes:
        """Return these rows' bytes as a new array; if ``rows`` is None, the source's own bytes."""
        if self.rows is None:
            return raw
        if self.is_transposed:
            numbers = dequantize(FORMATS[self.source.format], raw[:])
            numbers = numbers.reshape(*self.stack, -1)[:, self.rows]
            data = np.ascontiguousarray(numbers.swapaxes(1, 2)).view(np.uint8).reshape(-1)
        else:
            data = self._rows_of_each(raw, self.rows)
        data.flags.writeable = False
        return data

    def _rows_of_each(self, raw: TensorBytes, rows: slice) -> NDArray[np.uint8]:
        count, height = self.stack
        row = raw.nbytes // (count * height)  # bytes
        first, last, _ = rows.indices(height)
        blocks = np.empty((count, (last - first) * row), np.uint8)
        for i, place in enumerate(blocks):
            place[:] = raw[(i * height + first) * row : (i * height + last) * row]
        return blocks.reshape(-1)


class ApartFile(ModelFile):
    """A file whose fused tensors are replaced by their parts. Closing this closes the file."""

    def __init__(self, file: ModelFile) -> None:
        """Raise FormatError for a fused tensor that cannot be cut."""
        self.path, self._file = file.path, file
        self.metadata, self.value_types = file.metadata, file.value_types
        parts = [part for info in file.tensors.values() for part in _apart(info, file)]
        self.tensors = MappingProxyType({part.name: part for part in parts})
        if len(self.tensors) < len(parts):
            twice = next(p.name for p in parts if self.tensors[p.name] is not p)
            raise FormatError(f"{file.path}: {quote(twice)} is there twice, apart and in one")

    def raw(self, name: str) -> TensorBytes:
        """See ``ModelFile``; bytes that are not of a fused tensor are read when they are sliced."""
        info = self.info(name)
        raw = self._file.raw(_source(info))
        return info.bytes_of(raw) if isinstance(info, _Part) else raw

    def expect(self, name: str) -> None:
        """See ``ModelFile``."""
        self._file.expect(_source(self.info(name)))

    def close(self) -> None:
        """See ``ModelFile``."""
        self._file.close()


def apart(file: ModelFile) -> ModelFile:
    """Return the file, with its fused tensors split if it has some."""
    is_fused = any(_GATE_UP in name or _KEYS_VALUES in name for name in file.tensors)
    return ApartFile(file) if is_fused else file


def _source(info: TensorInfo) -> str:
    return info.source.name if isinstance(info, _Part) else info.name


def _apart(info: TensorInfo, file: ModelFile) -> Iterator[TensorInfo]:
    """Yield the parts of a fused tensor; yield any other tensor unchanged."""
    if _GATE_UP in info.name:
        yield from _gate_and_up(info)
    elif _KEYS_VALUES in info.name and len(info.shape) > 1:
        yield from _keys_and_values(info, file)
    else:
        yield info


def _gate_and_up(info: TensorInfo) -> Iterator[TensorInfo]:
    """Yield gate and up: each has half of every expert's rows.

    A vector, such as experts' factors, is not split: gate and up each have all of it.
    """
    for i, name in enumerate(info.name.replace(_GATE_UP, f"ffn_{x}_exps") for x in ("gate", "up")):
        if len(info.shape) == 1:
            yield _Part(name, info.format, info.shape, info)
            continue
        experts, rows, *columns = info.shape
        if rows % 2:
            raise FormatError(
                f"tensor {info.name} has {rows} rows, which are not gate and up alike"
            )
        half = slice(i * rows // 2, (i + 1) * rows // 2)
        shape = (experts, rows // 2, *columns)
        yield _Part(name, info.format, shape, info, (experts, rows), half)


def _keys_and_values(info: TensorInfo, file: ModelFile) -> Iterator[TensorInfo]:
    """Yield the heads' matrices for keys, transposed as the query reads them, and for values.

    Yield nothing if the file also has these matrices.
    """
    keys_name, values_name = (info.name.replace(_KEYS_VALUES, f"attn_{x}_b") for x in "kv")
    if keys_name in file.tensors and values_name in file.tensors:
        return
    prefix = file.metadata.get("general.architecture")
    names = ("attention.head_count", "attention.value_length", "embedding_length")
    heads, values, hidden = (file.metadata.get(f"{prefix}.{name}") for name in names)
    if values is None and prefix == "minicpm3" and type(heads) is type(hidden) is int and heads > 0:
        values = hidden // heads or None  # llama.cpp's converter leaves the key out
    if values is None:
        raise FormatError(
            f"tensor {info.name} cannot be cut into keys and values, since the model file lacks "
            f"the metadata key {prefix}.attention.value_length"
        )
    rows, rank = info.shape[-2:]
    if type(heads) is not int or type(values) is not int or not 0 < values * heads < rows or (
        rows % heads
    ):  # fmt: skip
        raise FormatError(
            f"tensor {info.name} has {rows} rows, which are no keys and values of {heads!r} heads "
            f"({prefix}.attention.head_count, attention.value_length or embedding_length)"
        )
    stack = heads, rows // heads
    keys = stack[1] - values
    yield _Part(keys_name, "F32", (heads, rank, keys), info, stack, slice(keys), is_transposed=True)
    shape, rows_of = (heads, values, rank), slice(keys, stack[1])
    yield _Part(values_name, info.format, shape, info, stack, rows_of)


# -- a model in several files, read as one ---------------------------------------------------------


_NO, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"


def open_gguf(paths: Sequence[Path]) -> ModelFile:
    """Open the model in these files, in order. FormatError unless they are all its parts."""
    files = [GGUFFile(path) for path in paths]
    for i, file in enumerate(files):
        no, count = file.metadata.get(_NO, 0), file.metadata.get(_COUNT, 1) or 1
        if (no, count) != (i, len(files)):
            raise FormatError(
                f"{file.path}: by its name it is part {i + 1} of {len(files)}, but its split.no "
                f"(from 0) is {no!r:.20} and its split.count {count!r:.20}: give it its own name "
                "back (NAME-00001-of-00003.gguf), or download all parts again"
            )
    return apart(files[0] if len(files) == 1 else SplitGGUF(files))


class SplitGGUF(ModelFile):
    """The parts of a model, in order: the metadata of the first, the tensors of all."""

    def __init__(self, parts: Sequence[GGUFFile]) -> None:
        first = parts[0]
        self.path = first.path
        split_keys = (_NO, _COUNT, _TENSORS)  # of the file, not of the model
        self.metadata = MappingProxyType(
            {k: v for k, v in first.metadata.items() if k not in split_keys}
        )
        self.value_types = first.value_types
        self._parts: dict[str, GGUFFile] = {}
        tensors: dict[str, TensorInfo] = {}
        for part in parts:
            for name, info in part.tensors.items():
                if name in tensors:
                    raise FormatError(
                        f"{part.path}: {self._parts[name].path.name} has the tensor "
                        f"{quote(name)} too, so the parts are of different models: download "
                        "them again"
                    )
                tensors[name], self._parts[name] = info, part
        self.tensors = MappingProxyType(tensors)
        if first.metadata.get(_TENSORS, len(tensors)) != len(tensors):
            raise FormatError(
                f"{first.path}: the model has {first.metadata[_TENSORS]} tensors, and its "
                f"{len(parts)} parts have {len(tensors)}: download them again"
            )

    def raw(self, name: str) -> TensorBytes:
        """See `ModelFile`."""
        return self._part(name).raw(name)

    def expect(self, name: str) -> None:
        """See `ModelFile`."""
        self._part(name).expect(name)

    def close(self) -> None:
        """Close every part."""
        for part in self._parts.values():
            part.close()

    def _part(self, name: str) -> GGUFFile:
        self.info(name)
        return self._parts[name]
