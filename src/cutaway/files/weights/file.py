"""The interface of every model file: metadata and tensors by name.

Keys and tensor names are GGUF's whatever the file's own format, so that code that reads a model
need not know the format.

Files are not memory-mapped: if mapped bytes are gone, the operating system kills the process that
reads them, while a failed read is an ordinary error.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError, InputError
from cutaway.files.weights.cursor import quote
from cutaway.files.weights.decode import dequantize
from cutaway.files.weights.formats import FORMATS

if TYPE_CHECKING:
    from cutaway.base._native import FileBytes


_AT_ONCE = 1 << 22  # bytes of a piece

TensorBytes: TypeAlias = "FileBytes | NDArray[np.uint8]"
"""A tensor's bytes: in memory, or in a file, where slices are read. Slices are read-only."""


def pieces(data: TensorBytes, multiple: int = 1) -> Iterator[NDArray[np.uint8]]:
    """Yield all bytes in pieces; multiple: the size of each piece is a multiple of this."""
    step = max(_AT_ONCE // multiple, 1) * multiple
    for start in range(0, data.nbytes, step):
        yield data[start : start + step]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's name, how it is stored and its size."""

    name: str
    format: str  # a key of `FORMATS`: "Q4_1"
    shape: tuple[int, ...]  # row-major, outermost first: (rows, cols)

    @property
    def nbytes(self) -> int:
        """How many bytes the stored tensor has."""
        return FORMATS[self.format].nbytes(prod(self.shape))


class ModelFile(ABC):
    """A model on disk.

    `metadata` maps GGUF's keys to str, int, float, bool, list[str] or read-only numpy arrays;
    `tensors` maps GGUF's tensor names, in the order of the file. Both stay valid after `close`.
    `value_types` maps keys to their GGUF value types, where the file has them.
    """

    path: Path
    metadata: Mapping[str, Any]
    value_types: Mapping[str, int] = MappingProxyType({})
    tensors: Mapping[str, TensorInfo]

    @abstractmethod
    def raw(self, name: str) -> TensorBytes:
        """Return a tensor's bytes in its format; they are read when they are sliced.

        Raises `InputError` for an unknown name or a closed file.
        """

    def expect(self, name: str) -> None:  # noqa: B027 — a reader may have no such call
        """Tell the operating system that a tensor's bytes will be read soon, to read them ahead."""

    @abstractmethod
    def close(self) -> None:
        """Close the file; bytes that `raw` returned can still be read."""

    def dequantize(self, name: str) -> NDArray[np.float32]:
        """Return the numbers of a tensor: a new float32 array of shape `tensors[name].shape`.

        Raises `InputError` for an unknown name or a closed file.
        """
        info = self.info(name)
        numbers, done, format = np.empty(prod(info.shape), np.float32), 0, FORMATS[info.format]
        for piece in pieces(self.raw(name), format.quant_block_bytes):
            values = dequantize(format, piece)
            numbers[done : (done := done + values.size)] = values
        return numbers.reshape(info.shape)

    def factors(self, name: str) -> NDArray[np.float32] | None:
        """Return the factor of products with a matrix, or with each of a stack; None without one.

        NVFP4 has a scale of the whole tensor, which llama.cpp's converter writes as another tensor
        (`blk.0.ffn_up.scale` for `blk.0.ffn_up.weight`). Gemma 4's `ffn_gate_inp.scale` is no such
        factor.
        """
        if name.endswith("ffn_gate_inp.weight"):
            return None
        scale = name.removesuffix(".weight") + ".scale"
        return self.dequantize(scale) if scale != name and scale in self.tensors else None

    def dequantize_scaled(self, name: str) -> NDArray[np.float32]:
        """Return the numbers of a tensor, times its factors."""
        numbers, factors = self.dequantize(name), self.factors(name)
        if factors is not None:
            numbers *= factors.reshape(-1, *[1] * (numbers.ndim - 1))
        return numbers

    def info(self, name: str) -> TensorInfo:
        """Return a tensor's entry. Raises `InputError` for an unknown name."""
        if name not in self.tensors:
            raise InputError(f"{self.path}: there is no tensor named {quote(name)}")
        return self.tensors[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# -- a file whose tensors are read on demand, whole or piece by piece ------------------------------


def open_bytes(path: Path, suffix: str) -> "FileBytes":
    """Open a regular file that is not empty; suffix: the file's usual ending, for an error."""
    from cutaway.base import _native  # models that are only listed need no kernels

    try:
        if not path.exists():
            raise InputError(f"{path}: there is no such file")
        if not path.is_file():  # opening a pipe would block forever
            raise FormatError(f"{path}: this is not a regular file; name the {suffix} file itself")
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise FormatError(f"{path}: the file is empty; download it again")
            name = str(path).encode(errors="backslashreplace").decode()
            return _native.FileBytes(file.fileno(), name)
    except OSError as error:
        raise InputError(f"{path}: the file cannot be opened: {error.strerror}") from error


class TensorFile(ABC):
    """The tensors of a file."""

    path: Path
    _bytes: "FileBytes | None"

    @abstractmethod
    def _span(self, name: str) -> tuple[int, int]:
        """Return a tensor's first byte in the file, and its end; raises as `raw` does."""

    def raw(self, name: str) -> "FileBytes":
        """See `ModelFile`; nothing is read yet."""
        start, end = self._span(name)
        if self._bytes is None:
            raise InputError(f"{self.path}: the file is closed, so {quote(name)} cannot be read")
        return self._bytes.part(start, end)

    def expect(self, name: str) -> None:
        """See `ModelFile`."""
        start, end = self._span(name)
        if self._bytes is not None:
            self._bytes.part(start, end).expect()

    def close(self) -> None:
        """Close the file once no bytes that `raw` returned are in use."""
        self._bytes = None
