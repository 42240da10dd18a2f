"""MDLM's modulation by time, folded into norms and matrices: the model has no use for the time.

Each block has a shift, a scale and a gate for each of its two halves, which a matrix makes of an
embedding of sigma (DiT's adaLN, Peebles & Xie 2022, arXiv 2212.09748). MDLM is always given 0 for
it, so that these are constants: LN(x) · w · (1 + scale) + shift is a norm with a bias, and gate ·
(W x + b) a matrix with other rows. Knows MDLM's names.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.shards import Shards
from cutaway.files.huggingface.tensors import TensorSource

_ROOT = "backbone."
Array = NDArray[Any]
Sources = dict[str, TensorSource]


@dataclass(frozen=True)
class Scaled:
    """The rows of a tensor, each times a number of its own."""

    by: Array

    def __call__(self, x: Array) -> Array:
        """As float32."""
        return (x * self.by.reshape(-1, *[1] * (x.ndim - 1))).astype(np.float32)


def folded(sources: Sources, shards: Shards) -> Sources:
    """The same tensors, norms and matrices as the modulation leaves them, and the norms' biases.

    `FormatError` for a tensor of the modulation that is missing, or does not fit.
    """
    time, made = _time(shards), dict(sources)
    layers = sum(name.endswith(".attn_norm.weight") for name in sources)
    for p, block in ((f"blk.{i}.", f"{_ROOT}blocks.{i}.") for i in range(layers)):
        six = _modulated(shards, block, time, 6)
        for half, (norm, last) in enumerate(
            (("attn_norm", "attn_output"), ("ffn_norm", "ffn_down"))
        ):
            shift, scale, gate = six[3 * half : 3 * half + 3]
            _fold_norm(made, f"{p}{norm}", shift, scale)
            for name in (f"{p}{last}.weight", f"{p}{last}.bias"):
                if name in made:
                    made[name] = _scaled(made[name], gate)
    shift, scale = _modulated(shards, f"{_ROOT}output_layer.", time, 2)
    _fold_norm(made, "output_norm", shift, scale)
    return made


def _fold_norm(made: Sources, name: str, shift: Array, scale: Array) -> None:
    if f"{name}.weight" in made:  # else the graph will say what is missing
        made[f"{name}.weight"] = _scaled(made[f"{name}.weight"], 1 + scale)
        values = shift.astype(np.float32)
        made[f"{name}.bias"] = TensorSource(f"{name}.bias", "F32", values.shape, (), values=values)


def _scaled(source: TensorSource, by: Array) -> TensorSource:
    if source.shape[0] != len(by):
        raise FormatError(f"{source.name} has {source.shape[0]} rows, and its modulation {len(by)}")
    return replace(source, format="F32", rewrite=Scaled(by))


def _time(shards: Shards) -> Array:
    """What the blocks are given of sigma 0: its waves, all cosines 1 and all sines 0, embedded."""
    first = f"{_ROOT}sigma_map.mlp.0"
    width = _read(shards, f"{first}.weight").shape[-1]
    waves = np.repeat([1.0, 0.0], [width // 2, width - width // 2])
    hidden = _silu(_linear(shards, first, waves))
    return _silu(_linear(shards, f"{_ROOT}sigma_map.mlp.2", hidden))


def _modulated(shards: Shards, part: str, time: Array, count: int) -> list[Array]:
    """The modulation, split into `count` vectors."""
    made = _linear(shards, f"{part}adaLN_modulation", time)
    if len(made) % count:
        raise FormatError(f"{part}adaLN_modulation has {len(made)} rows, no {count} equal parts")
    return np.split(made, count)


def _linear(shards: Shards, name: str, x: Array) -> Array:
    weight, bias = _read(shards, f"{name}.weight"), _read(shards, f"{name}.bias")
    if weight.ndim != 2 or weight.shape != (*bias.shape, len(x)):
        raise FormatError(
            f"{name} has a matrix of {weight.shape} and a bias of {bias.shape}, and {len(x)} inputs"
        )
    made: Array = weight @ x + bias
    return made


def _read(shards: Shards, name: str) -> Array:
    if name not in {*shards}:
        raise FormatError(f"the files lack the tensor {name}; download the model again")
    shape = shards.info(name).shape
    made: Array = TensorSource(name, "F32", shape, (name,)).make(shards)[:].view(np.float32)
    return made.reshape(shape).astype(np.float64)


def _silu(x: Array) -> Array:
    made: Array = x / (1 + np.exp(-x))
    return made
