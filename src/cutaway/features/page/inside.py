"""What a page needs to look into a step: where a model's parts are, as data.

Knows which tensors of the tap are the stream, attention and what is added (compute/model/anatomy),
and what lies between heads and the stream; trace/web/js/local/inside.js computes from it what
lab/inside computes. Refuses to know how.
"""

from typing import Any

import numpy as np

from cutaway.compute.backends import STEP_ROWS
from cutaway.compute.backends.cpu.recorded import Readable
from cutaway.compute.backends.layout import state_layout
from cutaway.compute.model import Graph, Op
from cutaway.compute.model.anatomy import Anatomy, StreamPart
from cutaway.errors import InputError

Data = dict[str, Any]
_UNSEEN = {"delta_net": "delta nets", "mamba2": "Mamba 2"}


def page_inside(graph: Graph, read: Readable) -> Data:
    """As local/inside.js reads it. InputError where a page cannot look into this model."""
    anatomy = Anatomy(graph)
    anatomy.check_paths()
    made = _PageInside(anatomy, read)
    layers = len(anatomy.stream) - 1
    attends = {op.attrs["layer"]: made.attention(op) for op in anatomy.attends}
    for op in graph.ops:
        if op.kind in _UNSEEN:
            raise InputError(f"its layers have {_UNSEEN[op.kind]}")
    convolves = {op.attrs["layer"]: made.convolution(op) for op in graph.ops if op.kind == "conv"}
    if len({of["heads"] for of in attends.values()}) != 1:
        raise InputError("its layers do not have equally many heads")
    return {
        "stream": [read.tensors[name] for name in anatomy.stream],
        "attends": [attends.get(layer) for layer in range(layers)],
        "convolves": [convolves.get(layer) for layer in range(layers)],
        "longest": STEP_ROWS,
        "parts": [made.part(part) for part in anatomy.parts],
        "norm": made.norm(anatomy.norm),
        "normed": read.tensors[anatomy.norm.out.name],
        "head": made.linear(anatomy.head) | {"out": read.tensors[anatomy.head.out.name]},
    }


class _PageInside:
    def __init__(self, anatomy: Anatomy, read: Readable) -> None:
        self._anatomy, self._read = anatomy, read
        self._states, _ = state_layout(anatomy.graph)

    def attention(self, op: Op) -> Data:
        a = op.attrs
        if a["chunked"] or "reads" in a or "values_from" in a or "distance" in a:
            raise InputError("its layers see chunks, latents, or keys of other layers")
        sizes = ("layer", "heads", "kv_heads", "head_dim", "scale", "softcap", "window")
        return {name: a[name] for name in sizes} | {
            "query": self._read.tensors[op.inputs[0]],
            "out": self._read.tensors[op.out.name],
            "sinks": self._vector(op, "sinks"),
        }

    def convolution(self, op: Op) -> Data:
        before, width = op.attrs["state"]
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
        ends = part.path[-1] if part.path else None
        return {
            "name": part.name,
            "given": self._read.tensors[part.op.out.name],
            "factor": part.factor,
            "path": [self._step(op) for op in part.path[:-1]],
            "layer": None if ends is None else ends.attrs["layer"],
        }

    def norm(self, op: Op) -> Data:
        return {
            "kind": op.kind,
            "input": self._read.tensors[op.inputs[0]],
            "weight": self._vector(op, "weight"),
            "bias": self._vector(op, "bias"),
            "eps": op.attrs["eps"],
            "group": op.attrs.get("group", op.out.width),
        }

    def linear(self, op: Op) -> Data:
        begin, end = op.attrs["rows"]
        matrix, is_float = self._read.matrices[op.weights["weight"], begin, end]
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
        """An op between the heads and the stream."""
        if op.kind == "scale":
            return {"kind": op.kind, "factor": op.attrs["factor"]}
        if op.kind == "mul":
            return {"kind": op.kind, "input": self._read.tensors[op.inputs[0]]}
        if op.kind == "linear":
            return self.linear(op)
        if op.kind in ("rms_norm", "layer_norm"):
            return self.norm(op)
        raise InputError(f"its heads go through {op.kind}")

    def _vector(self, op: Op, role: str) -> list[float] | None:
        name = op.weights.get(role)
        if name is None:
            return None
        found: list[float] = np.asarray(self._read.vectors[name], np.float32).ravel().tolist()
        return found
