"""DeBERTa's distances: what each layer's queries and keys are multiplied by to speak of them.

All layers share a matrix with a row for each distance, normed. A layer projects it as it projects
tokens (share_att_key), or by matrices of its own; the result depends on the weights alone, so that
it is made once, when the tensor is asked for. Knows DeBERTa's names, as GGUF would have them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.shards import Shards
from cutaway.files.huggingface.tensors import TensorSource

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
