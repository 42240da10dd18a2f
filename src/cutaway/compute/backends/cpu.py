"""The CPU backend, which is the default: it compiles the graph to one native plan.

Knows the threads that compute and sample, the plans that share one set of weights, and the settings
of a plan that follow from the machine and the environment.

``CUTAWAY_ISA`` forces a tier of instructions (generic, avx2, avxvnni, avx512, amx, neon, i8mm;
amx-plain does in plain C++ what matrix units do, on any machine). ``CUTAWAY_PREFETCH`` forces how
weights are prefetched (none, near, far); without it the first steps are timed and the fastest way
is kept.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from cutaway.base import _native
from cutaway.base.resources import default_threads
from cutaway.compute.backends.base import Bytes, put
from cutaway.compute.backends.layout import DRAFT_STATES, KV_BLOCK
from cutaway.compute.backends.packed import PackedBackend
from cutaway.compute.calls import Floats, plain
from cutaway.compute.lowering import matrix_shapes
from cutaway.compute.lowering.emit import Emitter
from cutaway.compute.lowering.packing import (
    Shapes,
    pack_matrices,
    reads_of,
)
from cutaway.compute.model import Graph
from cutaway.compute.model.op import Slice
from cutaway.errors import CutawayError, FormatError, InputError
from cutaway.files.weights import ModelFile

if TYPE_CHECKING:
    from cutaway.base.offload import Offload


# -- the machine and its environment ---------------------------------------------------------------


def tiers() -> tuple[str, ...]:
    """Return the instruction-set tiers of this machine, best first."""
    return tuple(_native.tiers().split(","))


def new_plan(pool: _native.Pool, kv_blocks: int, context: int, kv: str) -> _native.Plan:
    """Return an empty plan with KV blocks of its own, for the best tier or the forced one."""
    tier, prefetch = os.environ.get("CUTAWAY_ISA", ""), _prefetch()
    try:
        return _native.Plan(pool, tier, kv_blocks, context, prefetch, kv, DRAFT_STATES)
    except ValueError as error:
        raise InputError(f"CUTAWAY_ISA: {error}") from None


def _prefetch() -> str:
    """Return the value of CUTAWAY_PREFETCH; "" means that the fastest way is found by timing."""
    value = os.environ.get("CUTAWAY_PREFETCH", "")
    if value not in ("", "none", "near", "far"):
        raise InputError(f"CUTAWAY_PREFETCH is {value!r}; set it to none, near or far, or unset it")
    return value


@cache
def report_refusal() -> None:
    """Log, once in a process, that a better tier of this processor is not used."""
    if refusal := _native.amx_refusal():
        from logging import getLogger

        getLogger("cutaway").warning("%s: %s is used instead", refusal, tiers()[0])


# -- the backend -----------------------------------------------------------------------------------


class CpuBackend(PackedBackend):
    """A backend with one plan, one pool of threads and one set of packed weights."""

    name = "cpu"
    _runner: _native.Plan
    _keeps_all = True  # memory is plentiful, and a plan takes long to make

    def __init__(
        self,
        graph: Graph,
        file: ModelFile,
        *,
        kv_blocks: int,
        context: int,
        threads: int | None = None,
        pool: _native.Pool | None = None,
        kv: str = "f16",
        offload: "Offload | None" = None,
        on_progress: Callable[[int], None] = lambda _done: None,
    ) -> None:
        """threads: how many compute; None takes the count of ``default_threads``.

        pool: the threads of a backend that never runs at the same time, to use instead of new ones
        kv: how keys and values are stored, as ``check_kv`` returned it
        offload: a file that keeps the matrices, so that memory is only a cache; None: no file
        """
        self.kv_blocks, self._context, self.kv_format = kv_blocks, context, kv
        self.pool = pool or _native.Pool(threads or default_threads().count)
        self.threads = self.pool.threads
        self._runner = self._new_plan()
        self.tier: str = self._runner.tier
        report_refusal()
        shapes = matrix_shapes(graph)
        self._resident: tuple[int, float] | None = None
        if offload is None:
            matrices = pack_matrices(shapes, file, self.pool, on_progress)
        else:
            reads = reads_of(graph, file.tensors)
            with offload.open(reads) as disk:
                matrices = pack_matrices(shapes, file, self.pool, on_progress, disk)
            self._resident = offload.room, reads.kept_share(offload.room)
        self._set_graph(graph, file, matrices)
        self._add_ops(self._runner)

    @classmethod
    def copy_backend(
        cls, other: PackedBackend, matrices: Mapping[Slice, _native.Packed], context: int
    ) -> Self:
        """Return a backend of another one's graph, with its threads, for one text of this context.

        matrices: the other backend's, on the CPU
        """
        backend = cls.__new__(cls)
        backend._context, backend.kv_blocks = context, -(-context // KV_BLOCK)
        backend.kv_format, backend.kv = other.kv_format, other.kv
        backend.pool, backend.threads = other.pool, other.pool.threads
        backend._graph, backend._after, backend._orders = other._graph, other._after, other._orders
        backend._weights = other._weights._replace(matrices=matrices)
        backend._resident = None
        backend._start(own_memory=True)
        backend.tier = backend._runner.tier
        return backend

    @property
    def _sampler_tier(self) -> str:
        return self.tier

    def _new_plan(self) -> _native.Plan:
        """Return an empty plan with KV blocks of its own."""
        return new_plan(self.pool, self.kv_blocks, self._context, self.kv_format)

    def _pack(
        self, shapes: Shapes, file: ModelFile, shared: Mapping[Slice, Any]
    ) -> Mapping[Slice, _native.Packed]:
        """Pack matrices as ``PackedBackend`` says, into memory even if the model is offloaded."""
        return {**shared, **pack_matrices(shapes, file, self.pool)}

    def _decode(self, matrix: _native.Packed, first: int, last: int) -> Floats:
        return matrix.decode(first, last)

    def _lower(self, graph: Graph, **options: Any) -> tuple[_native.Plan, Emitter]:
        plan = self._runner.beside()
        return plan, self._fill(plan, graph, **options)

    def _fill(self, plan: _native.Plan, graph: Graph, **options: Any) -> Emitter:
        """Add a graph's ops to an empty plan."""
        matrices, _, stored = self._weights
        lowered = self._weights.lower(graph, self._context, **options)
        plan.add(plain(lowered.calls), [*matrices.values()], [*stored.values()])
        return lowered

    def _start(self, *, own_memory: bool) -> None:
        self._runner = self._new_plan() if own_memory else self._runner.beside()
        self._add_ops(self._runner)

    def _add_ops(self, plan: _native.Plan) -> None:
        """Add the whole graph to an empty plan."""
        if self._resident:
            plan.set_resident_budget(*self._resident)
        try:
            self._fill(plan, self._graph)
        except CutawayError:
            raise
        except ValueError as error:  # from the plan, which checks each op's shapes
            raise FormatError(
                f"the model's tensors do not fit one another or its metadata: {error}; get the "
                "file again"
            ) from error

    @property
    def kept_experts(self) -> list[tuple[list[int], int, int]]:
        """Return three counts for each layer whose experts only the file of ``offload_folder`` has.

        They are: how many rows chose each expert lately (older rows count less); how many of the
        experts that steps needed were in memory; how many were read from the file.
        """
        return self._runner.kept_experts

    @property
    def prefetch(self) -> str:
        """The fastest prefetch for steps of 1, of 2 and of more rows, such as "far, near, far"."""
        fastest: str = self._runner.prefetch
        return fastest

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """See ``Backend``."""
        self._runner.copy_blocks(*_sources_and_targets(pairs))

    def read_block(self, block_id: int) -> list[Bytes]:
        """See ``Backend``."""
        return self._runner.block_memory(block_id, False)

    def write_block(self, block_id: int, pieces: Sequence[Bytes]) -> None:
        """See ``Backend``."""
        windows = sum(map(len, pieces)) == self.kv.bytes_per_token * self.kv.block_tokens
        put(pieces, self._runner.block_memory(block_id, windows))

    def copy_states(self, pairs: list[tuple[int, int]]) -> None:
        """See ``Backend``."""
        self._runner.copy_states(*_sources_and_targets(pairs))

    def read_state(self, slot: int) -> Bytes | None:
        """See ``Backend``."""
        return self._runner.state_memory(slot, False)

    def write_state(self, slot: int, state: Bytes) -> None:
        """See ``Backend``."""
        stored = self._runner.state_memory(slot, True)
        assert stored is not None
        stored[:] = state

    def copy_windows(self, pairs: list[tuple[int, int]]) -> None:
        """See ``Backend``."""
        self._runner.copy_windows(*_sources_and_targets(pairs))


def _sources_and_targets(pairs: list[tuple[int, int]]) -> NDArray[np.int32]:
    """Return the sources of all pairs, then their targets: (2, pairs)."""
    return np.array(pairs, np.int32).reshape(-1, 2).T.copy()
