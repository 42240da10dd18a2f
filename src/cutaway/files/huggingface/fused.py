"""The experts of a layer in one tensor, as some files hold them. Knows both ways round."""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.weights import TensorInfo
from cutaway.files.weights.cursor import quoted

FUSED = {"ffn_gate_exps": slice(0, 1), "ffn_up_exps": slice(1, 2), "ffn_down_exps": slice(None)}
"""GGUF's name -> which half of the rows it is, where gate and up are one; all of them for down."""


@dataclass(frozen=True)
class Fused:
    """A rewrite: rows of each expert of a tensor, (experts, outputs, inputs).

    is_turned: whether the tensor is (experts, inputs, outputs)
    rows: which of the outputs
    """

    shape: tuple[int, int, int]
    is_turned: bool
    rows: slice

    @classmethod
    def of(cls, info: TensorInfo, hidden: int, experts: int, part: slice) -> "Fused":
        """part: of FUSED. FormatError where the tensor does not fit, or would fit both ways."""
        is_down = part == slice(None)
        count, *sides = info.shape
        if count != experts or sides.count(hidden) != 1:
            raise FormatError(
                f"the tensor {quoted(info.name)} is {info.shape}, which is not {experts} experts "
                f"with one side of {hidden}"
            )
        is_turned = sides[0 if is_down else 1] != hidden
        outputs, inputs = reversed(sides) if is_turned else sides
        half = outputs // 2
        rows = part if is_down else slice((part.start or 0) * half, part.stop * half)
        return cls((experts, outputs if is_down else half, inputs), is_turned, rows)

    def __call__(self, x: NDArray[Any]) -> NDArray[Any]:
        """(experts, outputs, inputs)."""
        return (x.swapaxes(1, 2) if self.is_turned else x)[:, self.rows]
