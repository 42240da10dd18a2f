"""The machine's rates, and the load by other processes while it was measured.

From native probes and /proc. What a system does not report is None, never an estimate.
"""

import os
from pathlib import Path
from time import perf_counter, process_time

from cutaway.base import _native
from cutaway.base.system import ticks_per_second
from cutaway.files.weights import ModelFile, TensorInfo

STREAMS = (1, 2, 4, 8)
"""Numbers of streams that a thread reads at once; the best counts."""


class Probe:
    """The best rates seen so far; every ``turn`` measures again.

    buffer   bytes to read: as many as the model's weights, so that caches have the same effect
    weight   the matrix whose panel the tile kernel multiplies by
    Figures: ``bandwidth`` bytes/s; ``kernel_ops`` and ``instruction_ops`` operations/s, the
    latter, int8, 0 where the weights are floats or the tier's instructions are not timed;
    ``kernel_fractions`` the first over the second, of each turn: other load slows both alike.
    """

    def __init__(
        self, threads: int, tier: str, buffer: int, file: ModelFile, weight: TensorInfo
    ) -> None:
        self.tier, self.buffer = tier, buffer
        self._pool = _native.Pool(threads)
        self._memory = _native.ReadProbe(self._pool, buffer)
        self._weight = _some_rows(self._pool, file, weight)
        self.bandwidth = self.kernel_ops = self.instruction_ops = 0.0
        self.kernel_fractions: list[float] = []
        self.format = weight.format

    def turn(self) -> None:
        """Measure each rate once, and reading, which others disturb most, twice."""
        for streams in STREAMS * 2:
            self.bandwidth = max(self.bandwidth, self._memory.run(self._pool, streams))
        kernel = _native.tile_rate(self._pool, self.tier, self._weight)
        self.kernel_ops = max(self.kernel_ops, kernel)
        if not self._weight.is_float:  # those are multiplied as floats
            bare = _native.instruction_rate(self._pool, self.tier)
            self.instruction_ops = max(self.instruction_ops, bare)
            if bare:
                self.kernel_fractions.append(kernel / bare)

    @property
    def ops(self) -> float:
        """What the limit is taken from: the instructions' rate, or else the kernel's own."""
        return max(self.instruction_ops, self.kernel_ops)


def _some_rows(pool: _native.Pool, file: ModelFile, weight: TensorInfo) -> _native.Packed:
    """The first panel of a matrix."""
    rows, cols = min(weight.shape[0], 16), weight.shape[1]
    arena = _native.Arena(_native.packed_bytes(weight.format, rows, cols))
    raw = file.raw(weight.name)[: rows * (weight.nbytes // weight.shape[0])]
    return arena.pack(pool, weight.format, raw, rows, cols)


class Noise:
    """The share of all processors' time that other processes took since the meter was made."""

    def __init__(self) -> None:
        self._wall, self._own, self._busy = perf_counter(), process_time(), busy_seconds()

    def share(self) -> float | None:
        """0 … 1; None where the system does not report it."""
        now = busy_seconds()
        if self._busy is None or now is None:
            return None
        others = (now - self._busy) - (process_time() - self._own)
        everything = (os.cpu_count() or 1) * (perf_counter() - self._wall)
        return min(max(others / everything, 0.0), 1.0)


def busy_seconds() -> float | None:
    """Processor seconds used by all processes since the system started, other guests included."""
    try:
        fields = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:9]
    except OSError:
        return None
    user, nice, system, _, _, interrupt, soft, steal = map(int, fields)
    return (user + nice + system + interrupt + soft + steal) / ticks_per_second()


def peak_memory() -> int | None:
    """Peak memory of this process in bytes; None where the system does not report it."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return None
    lines = (line.split() for line in status.splitlines())
    return next((int(words[1]) * 1024 for words in lines if words[0] == "VmHWM:"), None)
