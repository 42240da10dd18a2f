"""The interface of every model file: metadata and tensors by name.

Keys and tensor names are GGUF's whatever the file's own format, so that whoever reads a model need
not know which format it was.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import InputError
from cutaway.files.weights.cursor import quoted
from cutaway.files.weights.decode import dequantize
from cutaway.files.weights.formats import FORMATS


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's name, how it is stored and its size."""

    name: str
    format: str  # a key of `FORMATS`: "Q4_1"
    shape: tuple[int, ...]  # row-major, outermost first: (rows, cols)

    @property
    def nbytes(self) -> int:
        """Bytes, as stored."""
        return FORMATS[self.format].nbytes(prod(self.shape))


class ModelFile(ABC):
    """A model on disk.

    `metadata` maps GGUF's keys to str, int, float, bool, list[str] or read-only numpy arrays;
    `tensors` maps GGUF's tensor names, in the order of the file. Both stay valid after `close`.
    `value_types` maps the keys whose GGUF value type the file gives to that type.
    """

    path: Path
    metadata: Mapping[str, Any]
    value_types: Mapping[str, int] = MappingProxyType({})
    tensors: Mapping[str, TensorInfo]

    @abstractmethod
    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor in its format: uint8 (nbytes,), read-only.

        Raises `InputError` for an unknown name or a closed file.
        """

    def expect(self, name: str) -> None:  # noqa: B027 — a reader may have no such call
        """Tell the system that a tensor's bytes will be read soon: the disk can begin."""

    @abstractmethod
    def release(self, name: str) -> None:
        """Tell the system that a tensor's bytes were read: they need no memory any more.

        They can be read again. Does nothing after `close`.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the file; what `raw` returned stays valid."""

    def dequantize(self, name: str) -> NDArray[np.float32]:
        """Return the numbers of a tensor: a new float32 array of shape `tensors[name].shape`.

        Raises `InputError` for an unknown name or a closed file.
        """
        info = self.info(name)
        return dequantize(FORMATS[info.format], self.raw(name)).reshape(info.shape)

    def factors(self, name: str) -> NDArray[np.float32] | None:
        """Return what products with a matrix, or with each of a stack, are multiplied by, if any.

        NVFP4 has a scale of the whole tensor, which llama.cpp's converter writes as another
        (`blk.0.ffn_up.scale` beside `blk.0.ffn_up.weight`). Gemma 4's `ffn_gate_inp.scale` is none.
        """
        if name.endswith("ffn_gate_inp.weight"):
            return None
        scale = name.removesuffix(".weight") + ".scale"
        return self.dequantize(scale) if scale != name and scale in self.tensors else None

    def multiplied(self, name: str) -> NDArray[np.float32]:
        """Return the numbers of a tensor, times its factors."""
        numbers, factors = self.dequantize(name), self.factors(name)
        if factors is not None:
            numbers *= factors.reshape(-1, *[1] * (numbers.ndim - 1))
        return numbers

    def info(self, name: str) -> TensorInfo:
        """Return a tensor's entry. Raises `InputError` for an unknown name."""
        if name not in self.tensors:
            raise InputError(f"{self.path}: there is no tensor named {quoted(name)}")
        return self.tensors[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
