"""Tensors of folders that the graph has otherwise: made once, when one is asked for.

*DeBERTa's distances*: all layers share a matrix with a row for each distance, normed. A layer
projects it as it projects tokens (share_att_key), or by matrices of its own.

*MDLM's modulation by time*: each block has a shift, a scale and a gate for each of its two halves,
which a matrix makes of an embedding of sigma (DiT's adaLN, Peebles & Xie 2022, arXiv 2212.09748).
MDLM is always given 0 for it, so that these are constants: LN(x) · w · (1 + scale) + shift is a
norm with a bias, and gate · (W x + b) a matrix with other rows.

*Tensors of one number* in each layer, which GGUF has as metadata. Knows these models' names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.shards import Shards
from cutaway.files.huggingface.tensors import TensorSource
from cutaway.files.weights.cursor import quoted

# -- DeBERTa's distances ---------------------------------------------------------------------------


Array = NDArray[Any]
Sources = dict[str, TensorSource]
_SHARED = ("rel_embd.weight", "rel_norm.weight", "rel_norm.bias")
_OWN = {"attn_k_rel": ("attn_k_pos", "attn_k"), "attn_q_rel": ("attn_q_pos", "attn_q")}
"""What is made: of which projection, or else of which that tokens have, too."""


@dataclass(frozen=True, slots=True)
class ProjectedRows(TensorSource):
    """A matrix for each head, (heads, distances, numbers of a head), float32.

    parts  rows of distances, norm and its bias, matrix, bias
    """

    parts: tuple[TensorSource, ...] = ()
    eps: float = 0.0

    def make(self, shards: Shards) -> NDArray[np.uint8]:
        """See `TensorSource`; computed in float64."""
        rows, scale, shift, matrix, bias = (_numbers(part, shards) for part in self.parts)
        rows = rows[: self.shape[1]]
        centred = rows - rows.mean(axis=1, keepdims=True)
        variance = (centred * centred).mean(axis=1, keepdims=True)
        normed = centred / np.sqrt(variance + self.eps) * scale + shift
        made = (normed @ matrix.T + bias).astype(np.float32)  # (distances, heads · d)
        heads = made.reshape(len(made), self.shape[0], -1).swapaxes(0, 1)
        data = np.ascontiguousarray(heads).reshape(-1).view(np.uint8)
        data.flags.writeable = False
        return data


def projected(sources: Sources, config: JsonObject, span: int) -> Sources:
    """The tensors, with those of distances made of their parts.

    span: distances to one side. `FormatError` for a part that is missing, or does not fit.
    """
    heads, eps = config.size("num_attention_heads"), config.positive("layer_norm_epsilon")
    shared = [_found(sources, name) for name in _SHARED]
    (rows, width), *norms = (one.shape for one in shared)
    if rows < 2 * span or norms != [(width,)] * 2:
        raise FormatError(f"{shared[0].name} has {rows} rows of {width}, and not {2 * span}")
    projections = {name for pair in _OWN.values() for name in pair[:1]}
    made = {
        name: one for name, one in sources.items()
        if name not in _SHARED and name.split(".")[-2] not in projections
    }  # fmt: skip
    for layer in range(config.size("num_hidden_layers")):
        for new, (own, usual) in _OWN.items():
            which = usual if config.flag("share_att_key") else own
            matrix, bias = (
                _found(sources, f"blk.{layer}.{which}.{end}") for end in ("weight", "bias")
            )
            if matrix.shape[1:] != (width,) or matrix.shape[0] % heads:
                raise FormatError(f"{matrix.name} is {matrix.shape}, for {heads} heads of {width}")
            shape = heads, 2 * span, matrix.shape[0] // heads
            name = f"blk.{layer}.{new}.weight"
            parts = (*shared, matrix, bias)
            made[name] = ProjectedRows(
                name, "F32", shape, tuple(one.sources[0] for one in parts), parts=parts, eps=eps
            )
    return made


def _found(sources: Sources, name: str) -> TensorSource:
    if name not in sources:
        raise FormatError(f"the files lack the tensor {name}; download the model again")
    return sources[name]


def _numbers(source: TensorSource, shards: Shards) -> Array:
    as_float = TensorSource(source.name, "F32", source.shape, source.sources, source.rewrite)
    made: Array = as_float.make(shards)[:].view(np.float32).reshape(source.shape)
    return made.astype(np.float64)


# -- MDLM's modulation, folded into norms and matrices ---------------------------------------------


_ROOT = "backbone."


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


# -- constants of activations ----------------------------------------------------------------------


def scalars(keys: Mapping[str, str], shards: Shards, layers: int) -> dict[str, NDArray[np.float32]]:
    """By GGUF's key: (layers,). keys: by the tensors' names, {} for the layer's number.

    `FormatError` for a tensor that is missing or is more than one number.
    """
    return {
        key: np.array([_number(shards, name.format(i)) for i in range(layers)], np.float32)
        for name, key in keys.items()
    }


def _number(shards: Shards, name: str) -> float:
    if name not in shards:
        raise FormatError(f"the tensor {quoted(name)} is missing; download the model again")
    numbers = shards.part(name)
    if numbers.size != 1:
        raise FormatError(f"the tensor {quoted(name)} has {numbers.size} numbers, not one")
    return float(numbers.reshape(-1)[0])
