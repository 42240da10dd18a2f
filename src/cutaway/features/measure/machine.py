"""The machine: its rates, the load by other processes, and the least time that a step can take.

Native probes measure the rates; /proc gives the load. A figure that the operating system does not
report is None, never an estimate.

The limit is calculated, not measured. A step reads every matrix of the layers and of the head once,
as the kernels pack it, but only those experts that its rows choose. It also reads the keys and
values of each sequence. Each row is multiplied by every matrix of the layers, and each row whose
logits are wanted also by the head.
Norms, the embedding's row, activations and attention's arithmetic (fp32) are left out: the limit in
tokens per second is, if anything, too high.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from time import perf_counter, process_time

from cutaway.base import _native
from cutaway.base.reading_rate import ReadingRate
from cutaway.base.system import ticks_per_second
from cutaway.compute.backends import KVLayout, kv_layout
from cutaway.compute.model import Graph
from cutaway.compute.model.ops.linear import Linear
from cutaway.compute.model.ops.mixture import expert_shares
from cutaway.compute.model.ops.rows import LogitRows
from cutaway.files.weights import ModelFile, TensorInfo


class Probe:
    """The best rates measured so far; every ``turn`` measures again.

    buffer   bytes to read: as many as the model's weights, so that caches have the same effect
    weight   the matrix whose first panel the tile kernel multiplies by
    Figures: ``bandwidth`` in bytes/s; ``kernel_ops`` and ``instruction_ops`` in operations/s.
    ``instruction_ops`` is the rate of bare int8 instructions; it is 0 where the weights are floats
    or the tier has no such probe. ``kernel_fractions`` are the kernel's rate divided by the
    instructions' rate in each turn; other load slows both alike.
    """

    def __init__(
        self, threads: int, tier: str, buffer: int, file: ModelFile, weight: TensorInfo
    ) -> None:
        self.tier, self.buffer = tier, buffer
        self._pool = _native.Pool(threads)
        self._memory = ReadingRate(self._pool, buffer)
        self._weight = _pack_panel(self._pool, file, weight)
        self.bandwidth = self.kernel_ops = self.instruction_ops = 0.0
        self.kernel_fractions: list[float] = []
        self.format = weight.format

    def turn(self) -> None:
        """Measure each rate once, and reading twice, since other load disturbs reading most."""
        self.bandwidth = max(self.bandwidth, self._memory.measure(), self._memory.measure())
        kernel = _native.tile_rate(self._pool, self.tier, self._weight)
        self.kernel_ops = max(self.kernel_ops, kernel)
        if not self._weight.is_float:  # those are multiplied as floats
            bare = _native.instruction_rate(self._pool, self.tier)
            self.instruction_ops = max(self.instruction_ops, bare)
            if bare:
                self.kernel_fractions.append(kernel / bare)

    @property
    def ops(self) -> float:
        """The rate for the limit, in operations/s: the larger of the instructions' and kernel's."""
        return max(self.instruction_ops, self.kernel_ops)


def _pack_panel(pool: _native.Pool, file: ModelFile, weight: TensorInfo) -> _native.Packed:
    """Pack the first panel of a matrix."""
    rows, cols = min(weight.shape[0], 16), weight.shape[1]
    arena = _native.Arena(_native.packed_bytes(weight.format, rows, cols))
    raw = file.raw(weight.name)[: rows * (weight.nbytes // weight.shape[0])]
    return arena.pack(pool, weight.format, raw, rows, cols)


class Noise:
    """The share of all processors' time that other processes took since this object was made."""

    def __init__(self) -> None:
        self._wall, self._process, self._busy = perf_counter(), process_time(), busy_seconds()

    def share(self) -> float | None:
        """Return the share, 0 … 1; None where the operating system does not report it."""
        now = busy_seconds()
        if self._busy is None or now is None:
            return None
        other_seconds = (now - self._busy) - (process_time() - self._process)
        everything = (os.cpu_count() or 1) * (perf_counter() - self._wall)
        return min(max(other_seconds / everything, 0.0), 1.0)


def busy_seconds() -> float | None:
    """Processor seconds of all processes and of other guests since boot; None if not reported."""
    try:
        fields = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:9]
    except OSError:
        return None
    user, nice, system, _, _, interrupt, soft, steal = map(int, fields)
    return (user + nice + system + interrupt + soft + steal) / ticks_per_second()


def peak_memory() -> int | None:
    """Peak memory of this process in bytes; None where the operating system does not report it."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return None
    lines = (line.split() for line in status.splitlines())
    return next((int(words[1]) * 1024 for words in lines if words[0] == "VmHWM:"), None)


# -- the limit -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Costs:
    """Bytes and operations of one model; a multiplication and an addition are two operations.

    layer_bytes   the bytes of the layers' packed matrices, without experts
    head_bytes    the bytes of the head's packed matrices
    layer_ops     the layers' operations per row
    head_ops      the head's operations per row whose logits are wanted
    kv            how keys and values are stored
    expert_bytes  the bytes of all experts' packed matrices
    expert_share  the share of expert_bytes that one row reads
    """

    layer_bytes: int
    head_bytes: int
    layer_ops: int
    head_ops: int
    kv: KVLayout
    expert_bytes: int = 0
    expert_share: float = 1.0

    def step_bytes(self, context: int, batch: int = 1) -> int:
        """Bytes that a decode step of ``batch`` sequences of ``context`` tokens each reads."""
        return self.weight_bytes(batch) + batch * self.kv.bytes_read(context)

    def weight_bytes(self, rows: int) -> int:
        """Bytes of matrices that so many rows read if they choose experts independently."""
        share_read = 1 - (1 - self.expert_share) ** rows
        return self.layer_bytes + self.head_bytes + round(share_read * self.expert_bytes)

    def step_ops(self, batch: int = 1) -> int:
        """Operations of a decode step of ``batch`` sequences."""
        return batch * (self.layer_ops + self.head_ops)

    def decode_limit(self, context: int, batch: int, bandwidth: float, ops: float) -> float:
        """Tokens per second if only reading (bytes/s) and multiplying (ops/s) take time.

        The larger of the two times counts, as if both were done at once.
        """
        seconds = max(self.step_bytes(context, batch) / bandwidth, self.step_ops(batch) / ops)
        return batch / seconds

    def prefill_limit(self, tokens: int, bandwidth: float, ops: float) -> float:
        """Prompt tokens per second, as in ``decode_limit``; only the last token needs logits."""
        computing = (tokens * self.layer_ops + self.head_ops) / ops
        reading = self.weight_bytes(tokens) + self.kv.bytes_read(tokens)
        return tokens / max(computing, reading / bandwidth)


def costs_of(graph: Graph, tensors: Mapping[str, TensorInfo], kv: str = "f16") -> Costs:
    """Count bytes and operations of a graph with its file's tensors. kv: see ``Setup``."""
    cut = next(i for i, op in enumerate(graph.ops) if isinstance(op, LogitRows))
    layers = [tensors[op.weights["weight"]] for op in graph.ops[:cut] if isinstance(op, Linear)]
    head = [tensors[op.weights["weight"]] for op in graph.ops[cut:] if isinstance(op, Linear)]
    shares = expert_shares(graph.ops, {name: tensor.shape for name, tensor in tensors.items()})
    experts = [(tensors[name], share) for name, share in shares.items()]
    expert_bytes = sum(_packed_bytes(tensor) for tensor, _ in experts)
    bytes_read = sum(share * _packed_bytes(tensor) for tensor, share in experts)
    return Costs(
        layer_bytes=sum(map(_packed_bytes, layers)),
        head_bytes=sum(map(_packed_bytes, head)),
        layer_ops=sum(map(_ops, layers)) + round(sum(s * _ops(tensor) for tensor, s in experts)),
        head_ops=sum(map(_ops, head)),
        kv=kv_layout(graph, kv),
        expert_bytes=expert_bytes,
        expert_share=bytes_read / expert_bytes if expert_bytes else 1.0,
    )


def _packed_bytes(tensor: TensorInfo) -> int:
    *count, rows, cols = tensor.shape
    size: int = _native.packed_bytes(tensor.format, rows, cols)
    return prod(count) * size


def _ops(tensor: TensorInfo) -> int:
    return 2 * prod(tensor.shape)
