"""What a step must read and compute, and the least time for it: calculated, not measured.

A step reads every matrix of every layer and of the head once, packed as the kernels have it,
and each sequence's keys and values. For every row it multiplies by every matrix of the layers,
for every wanted row by the head. Norms, the embedding's row and the activations are left out,
as is the arithmetic of attention (fp32): the limit is, if anything, too high.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from cutaway.base import _native
from cutaway.compute.backends import KVLayout
from cutaway.compute.backends.cpu import kv_layout
from cutaway.compute.model import Graph
from cutaway.files.weights import TensorInfo


@dataclass(frozen=True, slots=True)
class Costs:
    """Bytes and operations (a multiplication and an addition are two) of one model.

    layer_bytes, head_bytes      packed matrices of all layers; of the output
    layer_ops, head_ops          operations per row; per row whose logits are wanted
    kv                           how keys and values are stored
    """

    layer_bytes: int
    head_bytes: int
    layer_ops: int
    head_ops: int
    kv: KVLayout

    def step_bytes(self, context: int, batch: int = 1) -> int:
        """What a decode step of ``batch`` sequences reads when each has ``context`` tokens."""
        return self.layer_bytes + self.head_bytes + batch * self.kv.bytes_read(context)

    def step_ops(self, batch: int = 1) -> int:
        """What a decode step of ``batch`` sequences computes."""
        return batch * (self.layer_ops + self.head_ops)

    def decode_limit(self, context: int, batch: int, bandwidth: float, ops: float) -> float:
        """Tokens per second if only reading (bytes/s) and multiplying (ops/s) take time.

        The larger of the two times counts, as if both were done at once.
        """
        seconds = max(self.step_bytes(context, batch) / bandwidth, self.step_ops(batch) / ops)
        return batch / seconds

    def prefill_limit(self, tokens: int, bandwidth: float, ops: float) -> float:
        """Prompt tokens a second; the logits of the last one are wanted."""
        computing = (tokens * self.layer_ops + self.head_ops) / ops
        return tokens / max(computing, self.step_bytes(tokens) / bandwidth)


def costs_of(graph: Graph, tensors: Mapping[str, TensorInfo], kv: str = "f16") -> Costs:
    """Count what a graph's steps cost with the weights of its file. kv: see ``Setup``."""
    cut = next(i for i, op in enumerate(graph.ops) if op.kind == "logit_rows")
    layers = [tensors[op.weights["weight"]] for op in graph.ops[:cut] if op.kind == "linear"]
    head = [tensors[op.weights["weight"]] for op in graph.ops[cut:] if op.kind == "linear"]
    return Costs(
        layer_bytes=sum(map(_packed, layers)),
        head_bytes=sum(map(_packed, head)),
        layer_ops=sum(map(_ops, layers)),
        head_ops=sum(map(_ops, head)),
        kv=kv_layout(graph, kv),
    )


def _packed(tensor: TensorInfo) -> int:
    size: int = _native.packed_bytes(tensor.format, *tensor.shape)
    return size


def _ops(tensor: TensorInfo) -> int:
    rows, cols = tensor.shape
    return 2 * rows * cols
