"""The tensors that a quantised matrix is made of, by their endings, and checks of their shapes."""

from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.shards import Shards
from cutaway.files.weights.cursor import quoted


def bases(shards: Shards, ending: str) -> Iterator[str]:
    """The names of the matrices that have a tensor of this ending, without it."""
    return (name.removesuffix(ending) for name in shards if name.endswith(ending))


class MatrixParts:
    """Those tensors of one matrix that were asked for. Errors name the tensor."""

    def __init__(self, shards: Shards, base: str) -> None:
        self._shards, self.base = shards, base
        self.used: list[str] = []

    def has(self, ending: str) -> bool:
        """Whether there is one with this ending."""
        return self.base + ending in self._shards

    def shape(self, ending: str, *dtypes: str) -> tuple[int, ...]:
        """Its shape; FormatError where it is missing, or of another dtype than these."""
        name = self.base + ending
        if name not in self._shards:
            raise FormatError(
                f"the tensor {quoted(name)} is missing, without which {quoted(self.base)} cannot "
                "be read; download the model again"
            )
        dtype, shape = self._shards.dtype(name), self._shards.shape(name)
        if dtype not in dtypes:
            raise FormatError(
                f"the tensor {quoted(name)} is stored as {dtype}; it must be {' or '.join(dtypes)}"
            )
        if 0 in shape:
            raise FormatError(f"the tensor {quoted(name)} has the shape {shape}: it holds nothing")
        if name not in self.used:
            self.used.append(name)
        return shape

    def sides(self, ending: str, *dtypes: str) -> tuple[int, int]:
        """The shape of one that has two dimensions."""
        shape = self.shape(ending, *dtypes)
        if len(shape) != 2:
            raise FormatError(
                f"the tensor {quoted(self.base + ending)} has {len(shape)} dimensions, not 2"
            )
        return shape[0], shape[1]

    def dtype(self, ending: str) -> str:
        """How the file stores it."""
        return self._shards.dtype(self.base + ending)

    def expect(self, ending: str, shape: tuple[int, ...], *dtypes: str) -> None:
        """FormatError where it has another shape."""
        if (found := self.shape(ending, *dtypes)) != shape:
            raise FormatError(
                f"the tensor {quoted(self.base + ending)} has the shape {found}, which is not "
                f"{shape} as the others of its matrix ask for; download the model again"
            )

    def array(self, ending: str) -> NDArray[Any]:
        """Its numbers; floats as float32."""
        return self._shards.part(self.base + ending)


FLOATS = ("F16", "BF16", "F32")
"""The dtypes of scales."""
