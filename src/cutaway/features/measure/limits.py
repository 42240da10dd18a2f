"""What a step must read and compute, and the least time for it: calculated, not measured.

A step reads every matrix of every layer and of the head once, packed as the kernels have it, of
experts those that its rows choose, and each sequence's keys and values. For every row it multiplies
by every matrix of the layers, for every wanted row by the head. Norms, the embedding's row and the
activations are left out, as is the arithmetic of attention (fp32): the limit is, if anything, too
high.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from cutaway.base import _native
from cutaway.compute.backends import KVLayout
from cutaway.compute.backends.cpu import kv_layout
from cutaway.compute.model import Graph
from cutaway.compute.model.mixture import expert_shares
from cutaway.files.weights import TensorInfo


@dataclass(frozen=True, slots=True)
class Costs:
    """Bytes and operations (a multiplication and an addition are two) of one model.

    layer_bytes, head_bytes      packed matrices of all layers; of the output
    layer_ops, head_ops          operations per row; per row whose logits are wanted
    kv                           how keys and values are stored
    expert_bytes                 packed matrices of all experts, which layer_bytes leaves out
    expert_share                 of them that one row chooses
    """

    layer_bytes: int
    head_bytes: int
    layer_ops: int
    head_ops: int
    kv: KVLayout
    expert_bytes: int = 0
    expert_share: float = 1.0

    def step_bytes(self, context: int, batch: int = 1) -> int:
        """What a decode step of ``batch`` sequences reads when each has ``context`` tokens."""
        return self.weight_bytes(batch) + batch * self.kv.bytes_read(context)

    def weight_bytes(self, rows: int) -> int:
        """Of matrices, as rows that choose experts independently of each other read them."""
        chosen = 1 - (1 - self.expert_share) ** rows
        return self.layer_bytes + self.head_bytes + round(chosen * self.expert_bytes)

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
        reading = self.weight_bytes(tokens) + self.kv.bytes_read(tokens)
        return tokens / max(computing, reading / bandwidth)


def costs_of(graph: Graph, tensors: Mapping[str, TensorInfo], kv: str = "f16") -> Costs:
    """Count what a graph's steps cost with the weights of its file. kv: see ``Setup``."""
    cut = next(i for i, op in enumerate(graph.ops) if op.kind == "logit_rows")
    layers = [tensors[op.weights["weight"]] for op in graph.ops[:cut] if op.kind == "linear"]
    head = [tensors[op.weights["weight"]] for op in graph.ops[cut:] if op.kind == "linear"]
    shares = expert_shares(graph.ops, {name: tensor.shape for name, tensor in tensors.items()})
    experts = [(tensors[name], share) for name, share in shares.items()]
    every = sum(_packed(tensor) for tensor, _ in experts)
    chosen = sum(share * _packed(tensor) for tensor, share in experts)
    return Costs(
        layer_bytes=sum(map(_packed, layers)),
        head_bytes=sum(map(_packed, head)),
        layer_ops=sum(map(_ops, layers)) + round(sum(s * _ops(tensor) for tensor, s in experts)),
        head_ops=sum(map(_ops, head)),
        kv=kv_layout(graph, kv),
        expert_bytes=every,
        expert_share=chosen / every if every else 1.0,
    )


def _packed(tensor: TensorInfo) -> int:
    *count, rows, cols = tensor.shape
    size: int = _native.packed_bytes(tensor.format, rows, cols)
    return prod(count) * size


def _ops(tensor: TensorInfo) -> int:
    return 2 * prod(tensor.shape)
