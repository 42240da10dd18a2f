"""What can be changed of a model, and what was found of each change."""

from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from cutaway.base.checks import check_choice
from cutaway.compute.backends import check_kv
from cutaway.errors import InputError
from cutaway.features.measure.doctor.damage import Damage
from cutaway.features.measure.doctor.draws import Parted
from cutaway.files.weights.mixes import MIXES

ModelPath = str | PathLike[str]


@dataclass(frozen=True, slots=True)
class ModelChange:
    """What is changed of BASE: another file of its weights, a format of weights, or of its cache.

    quant     a file or name of the same model
    quantize  of ``cutaway quantize``: BASE's matrices in this format
    kv        keys and values, as for ``LLM``
    """

    quant: ModelPath | None = None
    quantize: str | None = None
    kv: str = "f16"

    def __post_init__(self) -> None:
        if self.quantize is not None:
            check_choice("formats", self.quantize, tuple(MIXES))
        object.__setattr__(self, "kv", check_kv(self.kv))
        if self.quant is not None and self.quantize is not None:
            raise InputError("formats: they are of BASE's own weights: leave QUANT or formats out")

    @property
    def name(self) -> str:
        """For a table: "q4_1", "model-q4_1.gguf", "kv q8_0"."""
        parts = [] if self.quant is None else [Path(self.quant).name]
        parts += [] if self.quantize is None else [self.quantize]
        return " ".join([*parts, *([] if self.kv == "f16" and parts else [f"kv {self.kv}"])])


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A whole change. nbytes: of all tensors; kv_bytes: of a token's keys and values."""

    change: str
    nbytes: int
    kv_bytes: int
    damage: Damage
    drawn: Parted | None

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TensorCost:
    """One tensor in another format, the rest as in BASE. base_*: what it has in BASE."""

    tensor: str
    format: str
    base_format: str
    nbytes: int
    base_nbytes: int
    damage: Damage

    @property
    def saved(self) -> int:
        """Bytes that the format saves."""
        return self.base_nbytes - self.nbytes

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self) | {"saved": self.saved}
