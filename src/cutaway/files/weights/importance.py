"""Importance matrices: how much each column of a model's matrices matters.

Knows llama.cpp's files of importance matrices: GGUF, which it reads and writes, and the older .dat,
which it reads. An entry has the name of its matrix, and describes the inputs of that matrix while a
text was read: the sum of squares of each column, and the number of rows. In a stack each expert has
its own sums and number. Does not know how entries are collected, or how quantising uses them.

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
from cutaway.files.weights.cursor import Cursor, quote
from cutaway.files.weights.file import ModelFile, TensorInfo, open_bytes
from cutaway.files.weights.gguf import GGUFFile

Floats = NDArray[np.float32]
_SUMS, _COUNTS = ".in_sum2", ".counts"
_DATASETS, _CHUNKS, _CHUNK = "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"


class ColumnSums(NamedTuple):
    """One matrix's sums of squares, (n, columns), and numbers of rows, (n,).

    n is the number of experts, or 1.
    """

    sums: Floats
    counts: Floats


@dataclass(frozen=True)
class Importance:
    """An importance matrix.

    datasets  the texts that it was collected from
    chunks    how many pieces of the texts, each of chunk_size tokens; 0 if the file has no count
    path      the file it was read from
    """

    entries: Mapping[str, ColumnSums]
    datasets: tuple[str, ...]
    chunks: int
    chunk_size: int
    path: Path | None = None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file. InputError or FormatError if it is no importance matrix."""
        data = open_bytes(path, ".gguf")
        if data[:4].tobytes() == b"GGUF":
            with GGUFFile(path) as file:
                importance = cls(*_read_gguf(file), path)
        else:
            importance = cls(*_read_dat(Cursor(data, path), data.nbytes), path)
        for name, entry in importance.entries.items():
            if not (np.isfinite(entry.sums).all() and (entry.sums >= 0).all()):
                raise FormatError(
                    f"{path}: the entry {quote(name)} holds what is no sum of squares; collect it "
                    "again"
                )
        return importance

    def write(self, path: Path) -> None:
        """Write llama.cpp's GGUF form of it, whole or not at all."""
        from cutaway.files.weights.gguf_writer import write_gguf

        write_gguf(path, _ImportanceFile(path, self))

    def column_means(self, info: TensorInfo) -> Floats | None:
        """Return the mean square of each column's input, (matrices, columns); None if unknown.

        The mean is 1 for experts that no row used. InputError if the entry has another shape.
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
                f"{self.path}: {quote(info.name)} has {means.size} columns here and "
                f"{matrices * columns} in the model; collect the importance from this model"
            )
        return means.reshape(matrices, columns)

    def check(self, tensors: Mapping[str, TensorInfo]) -> list[str]:
        """Return the matrices without an entry. InputError if the entries are another model's."""
        infos = [info for name, info in tensors.items() if name in self.entries]
        if not infos:
            raise InputError(
                f"{self.path}: no entry is called as a tensor of the model; collect the importance "
                "from this model"
            )
        for info in infos:
            self.column_means(info)
        return [name for name in tensors if name not in self.entries]

    def to_metadata(self) -> dict[str, Any]:
        """Return the metadata by which a quantised file names its importance matrix."""
        metadata: dict[str, Any] = {"quantize.imatrix.entries_count": len(self.entries)}
        if self.path is not None:
            metadata["quantize.imatrix.file"] = self.path.name
        if self.datasets:
            metadata["quantize.imatrix.dataset"] = self.datasets[0]
        if self.chunks:
            metadata["quantize.imatrix.chunks_count"] = self.chunks
        return metadata


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
    if not isinstance(datasets, list) or not all(isinstance(number, int) for number in numbers):
        raise FormatError(f"{file.path}: what it says of its texts is damaged; collect it again")
    return entries, tuple(map(str, datasets)), numbers[0], numbers[1]


def _entry(file: GGUFFile, name: str) -> ColumnSums:
    sums, counts = (file.tensors.get(name + end) for end in (_SUMS, _COUNTS))
    if sums is None or counts is None or {sums.format, counts.format} != {"F32"}:
        raise FormatError(f"{file.path}: the entry {quote(name)} needs sums and counts in F32")
    numbers = file.dequantize(counts.name).reshape(-1)
    values = file.dequantize(sums.name).reshape(-1)
    if values.size % numbers.size:
        raise FormatError(f"{file.path}: the entry {quote(name)} has sums and counts of two sizes")
    return ColumnSums(values.reshape(numbers.size, -1), np.rint(numbers))


def _read_dat(cursor: Cursor, size: int) -> _Read:
    """Read the older form, whose sums count each chunk as one row."""
    cursor.reading, entries = "the header", {}
    count = _int32(cursor)
    if count < 1:
        cursor.fail("this is no importance matrix; collect one with 'cutaway imatrix'")
    cursor.check_room(count, 16, "entries of at least 16 bytes")
    for i in range(count):
        cursor.reading = f"entry {i + 1} of {count}"
        name = _text(cursor)
        chunks, columns = _int32(cursor), _int32(cursor)
        if columns < 1:
            cursor.fail(f"{cursor.reading} is empty; collect it again")
        values = cursor.numbers(np.dtype("<f4"), columns).astype(np.float32)
        entries[name] = ColumnSums(values[None], np.array([max(chunks, 1)], np.float32))
    if cursor.position == size:
        return entries, (), 0, 0
    cursor.reading = "what it says of its text"
    return entries, (), _int32(cursor), 0


def _int32(cursor: Cursor) -> int:
    return int(cursor.numbers(np.dtype("<i4"), 1)[0])


def _text(cursor: Cursor) -> str:
    size = _int32(cursor)
    if size < 0:
        cursor.fail(f"{cursor.reading} has a name of {size} bytes; collect it again")
    return cursor.take(size).decode("utf-8", "surrogateescape")


class _ImportanceFile(ModelFile):
    """An importance matrix as a GGUF file to write."""

    def __init__(self, path: Path, importance: Importance) -> None:
        self.path = path
        self.metadata = {
            "general.type": "imatrix", _DATASETS: list(importance.datasets),
            _CHUNKS: importance.chunks, _CHUNK: importance.chunk_size,
        }  # fmt: skip
        self._data: dict[str, Floats] = {}
        for name, (sums, counts) in sorted(importance.entries.items()):
            is_single = len(counts) == 1  # has one dimension less, as in llama.cpp's files
            self._data[name + _SUMS] = sums[0] if is_single else sums
            self._data[name + _COUNTS] = counts if is_single else counts[:, None]
        self.tensors = MappingProxyType(
            {name: TensorInfo(name, "F32", data.shape) for name, data in self._data.items()}
        )

    def raw(self, name: str) -> NDArray[np.uint8]:
        return np.ascontiguousarray(self._data[name], "<f4").reshape(-1).view(np.uint8)

    def close(self) -> None:
        """Do nothing: the data is in memory."""
