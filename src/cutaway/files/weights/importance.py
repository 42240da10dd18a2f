"""Importance matrices: how much each column of a model's matrices matters.

Knows llama.cpp's files of them: GGUF, read and written, and the older .dat, read. An entry is
called as its matrix, and holds what that was multiplied by while a text was read: of each column
the sum of squares, and how many rows that is of; of a stack of experts for each expert. Does not
know how these are collected, or what quantising does with them.

Source: `tools/imatrix/imatrix.cpp` and `common/imatrix-loader.cpp` of llama.cpp.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError, InputError
from cutaway.files.weights.cursor import Cursor, quoted
from cutaway.files.weights.file import ModelFile, TensorInfo, open_bytes
from cutaway.files.weights.gguf import GGUFFile

Floats = NDArray[np.float32]
_SUMS, _COUNTS = ".in_sum2", ".counts"
_DATASETS, _CHUNKS, _CHUNK = "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"


class ColumnSums(NamedTuple):
    """One matrix's: sums of squares, (n, columns), and of how many rows, (n,); n experts, or 1."""

    sums: Floats
    counts: Floats


@dataclass(frozen=True)
class Importance:
    """An importance matrix.

    datasets  the texts that it was collected from
    chunks    how many pieces of them, each of chunk_size tokens; 0 where the file does not say
    path      the file it was read from
    """

    entries: Mapping[str, ColumnSums]
    datasets: tuple[str, ...]
    chunks: int
    chunk_size: int
    path: Path | None = None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file. InputError or FormatError where it is none."""
        data = open_bytes(path, ".gguf")
        if data[:4].tobytes() == b"GGUF":
            with GGUFFile(path) as file:
                found = cls(*_read_gguf(file), path)
        else:
            found = cls(*_read_dat(Cursor(data, path), data.nbytes), path)
        for name, entry in found.entries.items():
            if not (np.isfinite(entry.sums).all() and (entry.sums >= 0).all()):
                raise FormatError(
                    f"{path}: the entry {quoted(name)} holds what is no sum of squares; collect it "
                    "again"
                )
        return found

    def write(self, path: Path) -> None:
        """Write llama.cpp's GGUF form of it, whole or not at all."""
        from cutaway.files.weights.gguf_writer import write_gguf

        write_gguf(path, _ImportanceFile(path, self))

    def of(self, info: TensorInfo) -> Floats | None:
        """The mean square of each column's input: (matrices, columns); None where there is none.

        1 for experts that no row came to. InputError where the entry is of another shape.
        """
        entry = self.entries.get(info.name)
        if entry is None:
            return None
        with np.errstate(divide="ignore", invalid="ignore"):
            means = entry.sums / entry.counts[:, None]
        means = np.where(entry.counts[:, None] > 0, means, np.float32(1))
        matrices, columns = prod(info.shape[:-2]), info.shape[-1]
        if means.size != matrices * columns:
            raise InputError(
                f"{self.path}: {quoted(info.name)} has {means.size} columns here and "
                f"{matrices * columns} in the model; collect the importance from this model"
            )
        return means.reshape(matrices, columns)

    def check(self, tensors: Mapping[str, TensorInfo]) -> list[str]:
        """The matrices that have no entry. InputError where it is of another model."""
        found = [info for name, info in tensors.items() if name in self.entries]
        if not found:
            raise InputError(
                f"{self.path}: no entry is called as a tensor of the model; collect the importance "
                "from this model"
            )
        for info in found:
            self.of(info)
        return [name for name in tensors if name not in self.entries]

    def said_of_it(self) -> dict[str, Any]:
        """What a quantised file says of the matrix that it was quantised with."""
        said: dict[str, Any] = {"quantize.imatrix.entries_count": len(self.entries)}
        if self.path is not None:
            said["quantize.imatrix.file"] = self.path.name
        if self.datasets:
            said["quantize.imatrix.dataset"] = self.datasets[0]
        if self.chunks:
            said["quantize.imatrix.chunks_count"] = self.chunks
        return said


_Read = tuple[dict[str, ColumnSums], tuple[str, ...], int, int]


def _read_gguf(file: GGUFFile) -> _Read:
    names = sorted(name.removesuffix(_SUMS) for name in file.tensors if name.endswith(_SUMS))
    if not names:
        raise FormatError(
            f"{file.path}: this is no importance matrix, whose tensors end in {_SUMS}; "
            "collect one with 'cutaway imatrix'"
        )
    entries = {name: _entry(file, name) for name in names}
    datasets = file.metadata.get(_DATASETS, [])
    numbers = [file.metadata.get(key, 0) for key in (_CHUNKS, _CHUNK)]
    if not isinstance(datasets, list) or not all(isinstance(one, int) for one in numbers):
        raise FormatError(f"{file.path}: what it says of its texts is damaged; collect it again")
    return entries, tuple(map(str, datasets)), numbers[0], numbers[1]


def _entry(file: GGUFFile, name: str) -> ColumnSums:
    sums, counts = (file.tensors.get(name + end) for end in (_SUMS, _COUNTS))
    if sums is None or counts is None or {sums.format, counts.format} != {"F32"}:
        raise FormatError(f"{file.path}: the entry {quoted(name)} needs sums and counts in F32")
    of = file.dequantize(counts.name).reshape(-1)
    values = file.dequantize(sums.name).reshape(-1)
    if values.size % of.size:
        raise FormatError(f"{file.path}: the entry {quoted(name)} has sums and counts of two sizes")
    return ColumnSums(values.reshape(of.size, -1), np.rint(of))


def _read_dat(cursor: Cursor, size: int) -> _Read:
    """The older form: sums as if each of its chunks were one row."""
    cursor.where, entries = "the header", {}
    count = _int32(cursor)
    if count < 1:
        cursor.fail("this is no importance matrix; collect one with 'cutaway imatrix'")
    cursor.check_room(count, 16, "entries of at least 16 bytes")
    for i in range(count):
        cursor.where = f"entry {i + 1} of {count}"
        name = _text(cursor)
        chunks, columns = _int32(cursor), _int32(cursor)
        if columns < 1:
            cursor.fail(f"{cursor.where} is empty; collect it again")
        values = cursor.numbers(np.dtype("<f4"), columns).astype(np.float32)
        entries[name] = ColumnSums(values[None], np.array([max(chunks, 1)], np.float32))
    if cursor.position == size:
        return entries, (), 0, 0
    cursor.where = "what it says of its text"
    return entries, (), _int32(cursor), 0


def _int32(cursor: Cursor) -> int:
    return int(cursor.numbers(np.dtype("<i4"), 1)[0])


def _text(cursor: Cursor) -> str:
    size = _int32(cursor)
    if size < 0:
        cursor.fail(f"{cursor.where} has a name of {size} bytes; collect it again")
    return cursor.take(size).decode("utf-8", "surrogateescape")


class _ImportanceFile(ModelFile):
    """What is written."""

    def __init__(self, path: Path, of: Importance) -> None:
        self.path = path
        self.metadata = {
            "general.type": "imatrix", _DATASETS: list(of.datasets), _CHUNKS: of.chunks,
            _CHUNK: of.chunk_size,
        }  # fmt: skip
        self._data: dict[str, Floats] = {}
        for name, (sums, counts) in sorted(of.entries.items()):
            one = len(counts) == 1  # of one dimension, as llama.cpp's files have it
            self._data[name + _SUMS] = sums[0] if one else sums
            self._data[name + _COUNTS] = counts if one else counts[:, None]
        self.tensors = MappingProxyType(
            {name: TensorInfo(name, "F32", data.shape) for name, data in self._data.items()}
        )

    def raw(self, name: str) -> NDArray[np.uint8]:
        return np.ascontiguousarray(self._data[name], "<f4").reshape(-1).view(np.uint8)

    def close(self) -> None:
        """Nothing."""
