"""A file in which some tensors hold several, which are read one by one.

Knows which: the newest GGUF files have gate and up of all experts of a layer in one tensor.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.weights.cursor import quoted
from cutaway.files.weights.file import ModelFile, TensorInfo

_GATE_UP = "ffn_gate_up_exps"


@dataclass(frozen=True, slots=True)
class _Rows(TensorInfo):
    """Rows of each of the stacked matrices of ``source``: (matrices, rows, …) of it."""

    source: TensorInfo
    rows: slice

    def bytes_of(self, raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Of the source's bytes, these rows': a new array."""
        found = raw.reshape(*self.source.shape[:2], -1)[:, self.rows]
        found = np.ascontiguousarray(found).reshape(-1)
        found.flags.writeable = False
        return found


class ApartFile(ModelFile):
    """A file whose fused tensors are replaced by what they hold. Closing this closes the file."""

    def __init__(self, file: ModelFile) -> None:
        """FormatError for a fused tensor that cannot be halved."""
        self.path, self._file = file.path, file
        self.metadata, self.value_types = file.metadata, file.value_types
        parts = [part for info in file.tensors.values() for part in _apart(info)]
        self.tensors = MappingProxyType({part.name: part for part in parts})
        if len(self.tensors) < len(parts):
            twice = next(p.name for p in parts if self.tensors[p.name] is not p)
            raise FormatError(f"{file.path}: {quoted(twice)} is there twice, apart and in one")

    def raw(self, name: str) -> NDArray[np.uint8]:
        """See ``ModelFile``; a view of what is not fused."""
        info = self.info(name)
        if isinstance(info, _Rows):
            return info.bytes_of(self._file.raw(info.source.name))
        return self._file.raw(_source(info))

    def expect(self, name: str) -> None:
        """See ``ModelFile``."""
        self._file.expect(_source(self.info(name)))

    def release(self, name: str) -> None:
        """See ``ModelFile``."""
        self._file.release(_source(self.info(name)))

    def close(self) -> None:
        """See ``ModelFile``."""
        self._file.close()


def apart(file: ModelFile) -> ModelFile:
    """The file, with its fused tensors apart if it has some."""
    return ApartFile(file) if any(_GATE_UP in name for name in file.tensors) else file


def _source(info: TensorInfo) -> str:
    return info.source.name if isinstance(info, _Rows | _Whole) else info.name


@dataclass(frozen=True, slots=True)
class _Whole(TensorInfo):
    """All of ``source``, by another name."""

    source: TensorInfo


def _apart(info: TensorInfo) -> Iterator[TensorInfo]:
    """What a tensor holds: itself, or gate and up, each half of the rows of each expert."""
    if _GATE_UP not in info.name:
        yield info
        return
    for i, name in enumerate(info.name.replace(_GATE_UP, f"ffn_{x}_exps") for x in ("gate", "up")):
        if len(info.shape) == 1:  # factors of each expert's products
            yield _Whole(name, info.format, info.shape, info)
            continue
        experts, rows, *columns = info.shape
        if rows % 2:
            raise FormatError(
                f"tensor {info.name} has {rows} rows, which are not gate and up alike"
            )
        half = slice(i * rows // 2, (i + 1) * rows // 2)
        yield _Rows(name, info.format, (experts, rows // 2, *columns), info, half)
