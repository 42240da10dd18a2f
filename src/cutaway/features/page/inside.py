"""The places of a model's parts, from which a page (local/inside.js) computes a step's inside."""

from typing import Any

import numpy as np

from cutaway.base import _native
from cutaway.compute.backends import STEP_ROWS
from cutaway.compute.backends.layout import state_layout
from cutaway.compute.model import Graph, Op
from cutaway.compute.model.anatomy import Anatomy, StreamPart
from cutaway.compute.model.ops.attention import Attend
from cutaway.compute.model.ops.convolutions import Conv
from cutaway.compute.model.ops.linear import Linear
from cutaway.compute.model.ops.norms import NormOp
from cutaway.compute.model.ops.numbers import Mul, Scale
from cutaway.compute.model.ops.states import DeltaNet, Mamba2, SelectiveScan, StateOp, Wkv7
from cutaway.compute.model.positions import NO_BIAS
from cutaway.errors import InputError
from cutaway.features.page.plan import Readable

Data = dict[str, Any]

_NAMES: dict[type[Op], str] = {
    DeltaNet: "delta nets", Mamba2: "Mamba 2", SelectiveScan: "Mamba 1", Wkv7: "RWKV-7",
}  # fmt: skip


def page_inside(graph: Graph, read: Readable) -> Data:
    """Describe the model's parts for local/inside.js; InputError if that cannot show the parts."""
    anatomy = Anatomy(graph)
    anatomy.check_paths()
    if anatomy.stream_scales:
        raise InputError("each of its layers multiplies all of its stream")
    page = _PageInside(anatomy, read)
    layers = len(anatomy.stream) - 1
    attends = {op.layer: page.attention(op) for op in anatomy.attends}
    if unseen := [op for op in graph.states if not isinstance(op, Conv)]:
        raise InputError(f"its layers have {_NAMES.get(type(unseen[0]), unseen[0].kind)}")
    convolves = {op.layer: page.convolution(op) for op in graph.states}
    if len({of["heads"] for of in attends.values()}) != 1:
        raise InputError("its layers do not have equally many heads")
    return {
        "stream": [read.tensors[name] for name in anatomy.stream],
        "attends": [attends.get(layer) for layer in range(layers)],
        "convolves": [convolves.get(layer) for layer in range(layers)],
        "longest": STEP_ROWS,
        "parts": [page.part(part) for part in anatomy.parts],
        "norm": page.norm(anatomy.norm),
        "normed": read.tensors[anatomy.norm.out.name],
        "head": page.linear(anatomy.head) | {"out": read.tensors[anatomy.head.out.name]},
    }


class _PageInside:
    def __init__(self, anatomy: Anatomy, read: Readable) -> None:
        self._anatomy, self._read = anatomy, read
        self._states, _ = state_layout(anatomy.graph)

    def attention(self, op: Attend) -> Data:
        is_plain = op.reads is None and op.values_from is None and op.bias == NO_BIAS
        if op.mask.chunked or not is_plain:
            raise InputError("its layers see chunks, latents, or keys of other layers")
        return {
            "layer": op.layer,
            "heads": op.heads.queries,
            "kv_heads": op.heads.kv,
            "head_dim": op.heads.dim,
            "value_dim": op.value_dim,
            "kv_bytes": _native.kv_block_bytes(op.heads.kv, op.heads.dim, op.value_dim)
            // _native.KV_BLOCK,
            "scale": op.scale,
            "softcap": op.softcap,
            "window": op.mask.window,
            "query": self._read.tensors[op.inputs[0]],
            "out": self._read.tensors[op.out.name],
            "sinks": self._vector(op, "sinks"),
        }

    def convolution(self, op: StateOp) -> Data:
        before, width = op.state
        return {
            "input": self._read.tensors[op.inputs[0]],
            "out": self._read.tensors[op.out.name],
            "at": self._states[op.out.name].start,
            "width": width,
            "taps": before + 1,
            "weight": self._vector(op, "weight"),
            "bias": self._vector(op, "bias"),
        }

    def part(self, part: StreamPart) -> Data:
        return {
            "name": part.name,
            "given": self._read.tensors[part.op.out.name],
            "factor": part.factor,
            "path": [self._step(op) for op in part.path[:-1]],
            "layer": part.mixer.layer if part.mixer else None,
        }

    def norm(self, op: NormOp) -> Data:
        return {
            "kind": op.kind,
            "input": self._read.tensors[op.inputs[0]],
            "weight": self._vector(op, "weight"),
            "bias": self._vector(op, "bias"),
            "eps": op.eps,
            "group": op.group,
        }

    def linear(self, op: Linear) -> Data:
        begin, end = op.rows
        matrix, is_float = self._read.matrices[op.matrix]
        bias = self._vector(op, "bias")
        return {
            "kind": op.kind,
            "input": self._read.tensors[op.inputs[0]],
            "matrix": matrix,
            "rows": end - begin,
            "is_float": is_float,
            "bias": None if bias is None else bias[begin:end],
        }

    def _step(self, op: Op) -> Data:
        """Describe an op between the heads and the residual stream."""
        if isinstance(op, Scale):
            return {"kind": op.kind, "factor": op.number}
        if isinstance(op, Mul):
            return {"kind": op.kind, "input": self._read.tensors[op.inputs[0]]}
        if isinstance(op, Linear):
            return self.linear(op)
        if isinstance(op, NormOp):
            return self.norm(op)
        raise InputError(f"its heads go through {op.kind}")

    def _vector(self, op: Op, role: str) -> list[float] | None:
        name = op.weights.get(role)
        if name is None:
            return None
        vector: list[float] = np.asarray(self._read.vectors[name], np.float32).ravel().tolist()
        return vector
