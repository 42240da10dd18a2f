"""DeBERTa, v2 and v3: names and keys, and the projections of distances in each layer.

All layers share a matrix with a normed row for each distance. A layer projects this matrix as it
projects tokens (share_att_key), or by matrices of its own. The products are computed when they are
read. The graph, in ``compute/model/architectures/deberta.py``, reads them as tensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.families import bert
from cutaway.files.huggingface.families.family import Family
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.shards import Shards, Sources, TensorSource

# -- keys ------------------------------------------------------------------------------------------


def deberta_v2(config: JsonObject) -> dict[str, Any]:
    """Return the keys of v2 and v3, which have biases by distance in place of positions."""
    attention_types = config.get("pos_att_type")
    kinds = attention_types.split("|") if isinstance(attention_types, str) else attention_types
    if not isinstance(kinds, list) or sorted(map(str, kinds)) != ["c2p", "p2c"]:
        config.refuse("pos_att_type", "c2p and p2c together are")
    width = config.size("hidden_size") // config.size("num_attention_heads")
    buckets = config.get("position_buckets")
    in_buckets = isinstance(buckets, int) and buckets > 0
    return bert.keys_of(config) | {
        "attention.scale": (3 * (config.get("head_dim") or width)) ** -0.5,
        "attention.relative_buckets_count": _span(config),
        "attention.relative_farthest": _farthest(config) if in_buckets else 0,
    }


def _span(config: JsonObject) -> int:
    """Return how many distances on each side have a row."""
    buckets = config.get("position_buckets")
    return buckets if isinstance(buckets, int) and buckets > 0 else _farthest(config)


def _farthest(config: JsonObject) -> int:
    farthest = config.get("max_relative_positions")
    is_set = isinstance(farthest, int) and farthest > 0
    return config.size("max_relative_positions" if is_set else "max_position_embeddings")


# -- distances -------------------------------------------------------------------------------------


Array = NDArray[Any]
_SHARED = ("rel_embd.weight", "rel_norm.weight", "rel_norm.bias")
_PROJECTIONS = {"attn_k_rel": ("attn_k_pos", "attn_k"), "attn_q_rel": ("attn_q_pos", "attn_q")}
"""Each product, and its projection: a separate one, or the one that tokens have."""


@dataclass(frozen=True, slots=True)
class ProjectedRows(TensorSource):
    """The projected rows of distances, float32: (heads, distances, numbers of a head).

    parts  the rows, the norm's weights and bias, the projection's matrix and bias
    """

    parts: tuple[TensorSource, ...] = ()
    eps: float = 0.0

    def make(self, shards: Shards) -> NDArray[np.uint8]:
        """See `TensorSource`; the products are computed in float64."""
        rows, scale, shift, matrix, bias = (_numbers(part, shards) for part in self.parts)
        rows = rows[: self.shape[1]]
        centred = rows - rows.mean(axis=1, keepdims=True)
        variance = (centred * centred).mean(axis=1, keepdims=True)
        normed = centred / np.sqrt(variance + self.eps) * scale + shift
        projected = (normed @ matrix.T + bias).astype(np.float32)  # (distances, heads · d)
        heads = projected.reshape(len(projected), self.shape[0], -1).swapaxes(0, 1)
        data = np.ascontiguousarray(heads).reshape(-1).view(np.uint8)
        data.flags.writeable = False
        return data


def _project_distances(sources: Sources, config: JsonObject, _: Shards) -> dict[str, Any]:
    """Replace the tensors of distances by their products.

    `FormatError` for a part that is missing, or does not fit.
    """
    span = _span(config)
    heads, eps = config.size("num_attention_heads"), config.positive("layer_norm_epsilon")
    shared = [_require(sources, name) for name in _SHARED]
    (rows, width), *norms = (part.shape for part in shared)
    if rows < 2 * span or norms != [(width,)] * 2:
        raise FormatError(f"{shared[0].name} has {rows} rows of {width}, and not {2 * span}")
    projections = {name for pair in _PROJECTIONS.values() for name in pair[:1]}
    tokens = dict(sources)
    for name in tokens:
        if name in _SHARED or name.split(".")[-2] in projections:
            del sources[name]
    for layer in range(config.size("num_hidden_layers")):
        for new, (separate, common) in _PROJECTIONS.items():
            projection = common if config.flag("share_att_key") else separate
            matrix, bias = (
                _require(tokens, f"blk.{layer}.{projection}.{end}") for end in ("weight", "bias")
            )
            if matrix.shape[1:] != (width,) or matrix.shape[0] % heads:
                raise FormatError(f"{matrix.name} is {matrix.shape}, for {heads} heads of {width}")
            shape = heads, 2 * span, matrix.shape[0] // heads
            name = f"blk.{layer}.{new}.weight"
            parts = (*shared, matrix, bias)
            sources[name] = ProjectedRows(
                name, "F32", shape, tuple(part.sources[0] for part in parts), parts=parts, eps=eps
            )
    return {}


def _require(sources: Sources, name: str) -> TensorSource:
    if name not in sources:
        raise FormatError(f"the files lack the tensor {name}; download the model again")
    return sources[name]


def _numbers(source: TensorSource, shards: Shards) -> Array:
    as_float = TensorSource(source.name, "F32", source.shape, source.sources, source.rewrite)
    numbers: Array = as_float.make(shards)[:].view(np.float32).reshape(source.shape)
    return numbers.astype(np.float64)


# -- names of tensors ------------------------------------------------------------------------------


ROWS: Mapping[str, Family] = {
    "deberta-v2": replace(
        bert.BERT, architecture="deberta-v2", prefixes=("deberta.",), metadata=deberta_v2,
        must_be={
            **bert.BERT.must_be, "relative_attention": True, "position_biased_input": False,
            "norm_rel_ebd": "layer_norm", "conv_kernel_size": 0,  # v2-xlarge's
            "pooler_hidden_act": "gelu",
        },
        outside=bert.BODY | bert.HEAD | {
            "encoder.rel_embeddings": "rel_embd", "encoder.LayerNorm": "rel_norm",
        },
        layer={
            **bert.SELF_ATTENTION, **bert.OUTPUT,
            "attention.self.query_proj": "attn_q", "attention.self.key_proj": "attn_k",
            "attention.self.value_proj": "attn_v", "attention.self.pos_query_proj": "attn_q_pos",
            "attention.self.pos_key_proj": "attn_k_pos",
        },
        skipped=(*bert.BESIDES, *(  # heads that pretraining leaves
            f"{head}{end}" for head in (
                "lm_predictions.lm_head.", "lm_predictions.lm_head.dense.",
                "lm_predictions.lm_head.LayerNorm.", "mask_predictions.dense.",
                "mask_predictions.LayerNorm.", "mask_predictions.classifier.",
            ) for end in ("weight", "bias")
        )),
        names={**bert.BERT.names, "head_dim": "attention_head_size"},
        defaults={
            **bert.BERT.defaults, "layer_norm_epsilon": 1e-7, "relative_attention": False,
            "position_biased_input": True, "norm_rel_ebd": "none",
        },
        rank_activation="gelu", rebuild=_project_distances,
    ),
}  # fmt: skip
