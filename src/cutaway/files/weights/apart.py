"""A file in which some tensors hold several, which are read one by one.

Knows which: the newest GGUF files have gate and up of all experts of a layer in one tensor; those
of DeepSeek from before 2025 have what makes keys and values of a latent in one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.weights.cursor import quoted
from cutaway.files.weights.decode import dequantize
from cutaway.files.weights.file import ModelFile, TensorBytes, TensorInfo
from cutaway.files.weights.formats import FORMATS

_GATE_UP, _KEYS_VALUES = "ffn_gate_up_exps", "attn_kv_b"


@dataclass(frozen=True, slots=True)
class _Part(TensorInfo):
    """Rows of each of the stacked matrices of ``source``; all of it where ``rows`` is None.

    stack: how many matrices there are, of how many rows each
    turned: as float32, their rows for columns
    """

    source: TensorInfo
    stack: tuple[int, int] = (1, 1)
    rows: slice | None = None
    turned: bool = False

    def bytes_of(self, raw: TensorBytes) -> TensorBytes:
        """Of the source's bytes, these rows': a new array, or all as they are."""
        if self.rows is None:
            return raw
        if self.turned:
            numbers = dequantize(FORMATS[self.source.format], raw[:])
            numbers = numbers.reshape(*self.stack, -1)[:, self.rows]
            found = np.ascontiguousarray(numbers.swapaxes(1, 2)).view(np.uint8).reshape(-1)
        else:
            found = self._rows_of_each(raw, self.rows)
        found.flags.writeable = False
        return found

    def _rows_of_each(self, raw: TensorBytes, rows: slice) -> NDArray[np.uint8]:
        count, height = self.stack
        row = raw.nbytes // (count * height)  # bytes
        first, last, _ = rows.indices(height)
        found = np.empty((count, (last - first) * row), np.uint8)
        for i, place in enumerate(found):
            place[:] = raw[(i * height + first) * row : (i * height + last) * row]
        return found.reshape(-1)


class ApartFile(ModelFile):
    """A file whose fused tensors are replaced by what they hold. Closing this closes the file."""

    def __init__(self, file: ModelFile) -> None:
        """FormatError for a fused tensor that cannot be cut."""
        self.path, self._file = file.path, file
        self.metadata, self.value_types = file.metadata, file.value_types
        parts = [part for info in file.tensors.values() for part in _apart(info, file)]
        self.tensors = MappingProxyType({part.name: part for part in parts})
        if len(self.tensors) < len(parts):
            twice = next(p.name for p in parts if self.tensors[p.name] is not p)
            raise FormatError(f"{file.path}: {quoted(twice)} is there twice, apart and in one")

    def raw(self, name: str) -> TensorBytes:
        """See ``ModelFile``; what is not fused is read when it is sliced."""
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
    """The file, with its fused tensors apart if it has some."""
    is_fused = any(_GATE_UP in name or _KEYS_VALUES in name for name in file.tensors)
    return ApartFile(file) if is_fused else file


def _source(info: TensorInfo) -> str:
    return info.source.name if isinstance(info, _Part) else info.name


def _apart(info: TensorInfo, file: ModelFile) -> Iterator[TensorInfo]:
    """What a tensor holds, itself as a rule."""
    if _GATE_UP in info.name:
        yield from _gate_and_up(info)
    elif _KEYS_VALUES in info.name and len(info.shape) > 1:
        yield from _keys_and_values(info, file)
    else:
        yield info


def _gate_and_up(info: TensorInfo) -> Iterator[TensorInfo]:
    """Each a half of the rows of each expert; of factors and the like, all of them."""
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
    """A matrix of each head for its keys, turned as the query reads it, and one for its values.

    Nothing where the file has these, too.
    """
    keys_name, values_name = (info.name.replace(_KEYS_VALUES, f"attn_{x}_b") for x in "kv")
    if keys_name in file.tensors and values_name in file.tensors:
        return
    prefix = file.metadata.get("general.architecture")
    names = ("attention.head_count", "attention.value_length")
    heads, values = (file.metadata.get(f"{prefix}.{name}") for name in names)
    rows, rank = info.shape[-2:]
    if type(heads) is not int or type(values) is not int or not 0 < values * heads < rows or (
        rows % heads
    ):  # fmt: skip
        raise FormatError(
            f"tensor {info.name} has {rows} rows, which are no keys and values of {heads!r} heads "
            f"({prefix}.attention.head_count, attention.value_length)"
        )
    stack = heads, rows // heads
    keys = stack[1] - values
    yield _Part(keys_name, "F32", (heads, rank, keys), info, stack, slice(keys), turned=True)
    shape, rows_of = (heads, values, rank), slice(keys, stack[1])
    yield _Part(values_name, info.format, shape, info, stack, rows_of)
