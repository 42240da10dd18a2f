"""The experts of a layer in one tensor, as some files hold them. Knows both ways round."""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.weights import TensorInfo
from cutaway.files.weights.cursor import quoted

_PART = {"ffn_gate_exps": 0, "ffn_up_exps": 1, "ffn_down_exps": None}
FUSED = frozenset(_PART)
"""GGUF's names; in files, gate and up are one."""


@dataclass(frozen=True)
class Fused:
    """A rewrite: rows of each expert of a tensor, (experts, outputs, inputs).

    is_turned: whether the tensor is (experts, inputs, outputs)
    rows: which of the outputs
    """

    shape: tuple[int, ...]
    is_turned: bool
    rows: slice

    @classmethod
    def of(
        cls, name: str, info: TensorInfo, hidden: int, experts: int,
        *, is_turned: bool | None, alternate: bool,
    ) -> "Fused":  # fmt: skip
        """name: of FUSED; is_turned: None where the shape says it; alternate: gate and up do.

        FormatError where the tensor does not fit, or would fit both ways.
        """
        part, (count, *sides) = _PART[name], info.shape
        if is_turned is None:
            fits = sides.count(hidden) == 1
            is_turned = sides[0 if part is None else 1] != hidden
        else:
            fits = sides[1 if is_turned == (part is None) else 0] == hidden
        if count != experts or not fits:
            raise FormatError(
                f"the tensor {quoted(info.name)} is {info.shape}, which is not {experts} experts "
                f"with one side of {hidden}"
            )
        outputs, inputs = reversed(sides) if is_turned else sides
        rows = _rows(part, outputs, alternate=alternate)
        return cls((experts, outputs if part is None else outputs // 2, inputs), is_turned, rows)

    @classmethod
    def bias(cls, name: str, info: TensorInfo, *, alternate: bool) -> "Fused":
        """What is added to the outputs of each expert: (experts, outputs). name: of FUSED."""
        part, (experts, outputs) = _PART[name], info.shape
        rows = _rows(part, outputs, alternate=alternate)
        return cls((experts, outputs if part is None else outputs // 2), False, rows)

    def __call__(self, x: NDArray[Any]) -> NDArray[Any]:
        """(experts, outputs, inputs), or (experts, outputs)."""
        return (x.swapaxes(1, 2) if self.is_turned else x)[:, self.rows]


def _rows(part: int | None, outputs: int, *, alternate: bool) -> slice:
    if part is None:
        return slice(None)
    half = outputs // 2
    return slice(part, None, 2) if alternate else slice(part * half, (part + 1) * half)
