"""The CPU backend, the default: the graph compiled to one native plan.

Knows the threads that compute and sample, the plans that share one set of weights, and the settings
of a plan that follow from the machine and the environment.

``CUTAWAY_ISA`` forces a tier of instructions (generic, avx2, avxvnni, avx512, amx, neon, i8mm;
amx-plain is the path of the matrix units in plain C++, on any machine). ``CUTAWAY_PREFETCH`` forces
how weights are prefetched (none, near, far); without it the first steps are timed and the fastest
way is kept.
"""

import os
from collections.abc import Callable, Container, Sequence
from copy import copy
from functools import cache, cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from cutaway import sampling
from cutaway.base import _native
from cutaway.base.resources import default_threads
from cutaway.compute.backends.base import Batch, Bytes, Edit, Logits, put, reorder_columns
from cutaway.compute.backends.cpu.packing import (
    PackedWeights,
    Weights,
    pack_matrices,
    read_stored,
    reads_of,
    stored_bytes,
    weight_bytes,
)
from cutaway.compute.backends.layout import DRAFT_STATES, KVLayout, kv_groups, state_group
from cutaway.compute.lowering import read_vectors
from cutaway.compute.lowering.compile import spell_out_adapters, spell_out_orders
from cutaway.compute.model import Graph
from cutaway.compute.model.ops.linear import Adaptable
from cutaway.errors import CutawayError, FormatError, InputError
from cutaway.files.weights import ModelFile
from cutaway.sampling import ReadRow, RowDraw, Sampled, read_rows

if TYPE_CHECKING:
    from cutaway.base.offload import Offload
    from cutaway.compute.backends.cpu.tap import Tap, WholeRun
    from cutaway.compute.backends.stored import Numbers, StoredKV


# -- the machine and its environment ---------------------------------------------------------------


def tiers() -> tuple[str, ...]:
    """The instruction-set tiers of this machine, best first."""
    return tuple(_native.tiers().split(","))


def new_plan(pool: _native.Pool, kv_blocks: int, context: int, kv: str) -> _native.Plan:
    """Return an empty plan with KV blocks of its own, of the best tier or the forced one."""
    tier, prefetch = os.environ.get("CUTAWAY_ISA", ""), _prefetch()
    try:
        return _native.Plan(pool, tier, kv_blocks, context, prefetch, kv, DRAFT_STATES)
    except ValueError as error:
        raise InputError(f"CUTAWAY_ISA: {error}") from None


def _prefetch() -> str:
    """Return CUTAWAY_PREFETCH; "" takes the fastest way."""
    value = os.environ.get("CUTAWAY_PREFETCH", "")
    if value not in ("", "none", "near", "far"):
        raise InputError(f"CUTAWAY_PREFETCH is {value!r}; set it to none, near or far, or unset it")
    return value


@cache
def report_refusal() -> None:
    """Log, once a process, that a better tier of this processor is not used."""
    if refusal := _native.amx_refusal():
        from logging import getLogger

        getLogger("cutaway").warning("%s: %s is used instead", refusal, tiers()[0])


# -- the backend -----------------------------------------------------------------------------------


Array = NDArray[np.float32]


class CpuBackend:
    """One plan, one pool of threads, one set of packed weights. See ``Backend``."""

    name = "cpu"

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
        """threads: None takes the count of ``default_threads``.

        pool: threads to use instead, of a backend that never runs at the same time
        kv: how keys and values are stored, as ``check_kv`` returned it
        offload: keeps matrices in a file, of which memory is only a cache; None: in memory
        """
        self.kv_blocks, self._context = kv_blocks, context
        self.pool = pool or _native.Pool(threads or default_threads().count)
        self.threads = self.pool.threads
        plan = self._new_plan(kv)
        self.tier: str = plan.tier
        report_refusal()
        matrices = pack_matrices(graph, file, self.pool, on_progress, offload)
        self._packed = PackedWeights(matrices, read_vectors(graph, file), read_stored(graph, file))
        self._resident_budget = None if offload is None else offload.room
        self._experts_share = (
            1.0 if offload is None else reads_of(graph, file.tensors).kept_share(offload.room)
        )
        self._orders = {k: self._packed.vectors[v] for k, v in graph.orders.items()}
        self._after = graph.pooled_graph()
        self._graph = spell_out_orders(graph.body() if self._after else graph, self._packed.vectors)
        self._plan = plan
        self._emit(self._graph, plan)
        self.kv, self._kv = kv_layout(graph, kv), kv

    def _new_plan(self, kv: str) -> _native.Plan:
        """Return an empty plan with KV blocks of its own."""
        return new_plan(self.pool, self.kv_blocks, self._context, kv)

    def with_graph(self, graph: Graph, file: ModelFile) -> Self:
        """See ``Backend``; the other graph's own matrices are in memory."""
        shared = {name for op in self._graph.ops for name in op.weights.values()}
        packed = self._add_weights(graph, file, lambda name: name not in shared)
        backend = self._twin(
            spell_out_orders(graph, packed.vectors), packed, self._new_plan(self._kv)
        )
        backend.kv = kv_layout(graph, self._kv)
        return backend

    def with_adapter(self, graph: Graph, file: ModelFile) -> Self:
        """See ``Backend``; the adapter's matrices are in memory even if the model is offloaded."""
        matrices = self._packed.matrices
        graph, only = (
            spell_out_orders(spell_out_adapters(graph), self._packed.vectors),
            Graph(graph.shapes),
        )
        only.ops = [
            op
            for op in graph.ops
            if isinstance(op, Adaptable) and not matrices.keys() >= {*op.matrices(graph.shapes)}
        ]
        adapter_matrices = pack_matrices(only, file, self.pool)
        return self._twin(graph, self._packed._replace(matrices=matrices | adapter_matrices))

    def with_weights(self, file: ModelFile, names: Container[str]) -> Self:
        """See ``Backend``; the new weights are in memory even if the model is offloaded."""
        return self._twin(
            self._graph, self._add_weights(self._graph, file, lambda name: name in names)
        )

    def _add_weights(
        self, graph: Graph, file: ModelFile, is_wanted: Callable[[str], bool]
    ) -> PackedWeights:
        """Return the weights with those of the wanted names added or replaced."""
        packed, only = self._packed, Graph(graph.shapes)
        only.ops = [op for op in graph.ops if any(map(is_wanted, op.weights.values()))]
        matrices = packed.matrices | pack_matrices(only, file, self.pool)
        vectors = packed.vectors | read_vectors(only, file)
        return PackedWeights(matrices, vectors, packed.stored | read_stored(only, file))

    def _twin(self, graph: Graph, packed: PackedWeights, plan: _native.Plan | None = None) -> Self:
        """Return a backend with a plan on the same threads, by default with the same KV blocks."""
        twin = copy(self)
        for name in [attribute for attribute in vars(twin) if _is_cached(attribute)]:
            delattr(twin, name)  # made again, from the new graph, when it is first wanted
        twin._graph, twin._plan, twin._packed = graph, plan or self._plan.beside(), packed
        twin._emit(graph, twin._plan)
        return twin

    def _emit(self, graph: Graph, plan: _native.Plan) -> None:
        """Lower a graph into an empty plan that reads all weights."""
        if self._resident_budget is not None:
            plan.set_resident_budget(self._resident_budget, self._experts_share)
        try:
            self._packed.plan(plan, graph)
        except CutawayError:
            raise
        except ValueError as error:  # from the plan, which checks each op's shapes
            raise FormatError(
                f"the model's tensors do not fit one another or its metadata: {error}; get the "
                "file again"
            ) from error

    @property
    def kept_experts(self) -> list[tuple[list[int], int, int]]:
        """Three counts for each layer whose experts only the file of ``offload_folder`` has.

        They are: how many rows chose each expert lately (older ones count less); how many experts
        that steps needed were in memory; how many were read.
        """
        return self._plan.kept_experts

    @property
    def prefetch(self) -> str:
        """The fastest prefetch for steps of 1 row, 2 rows and more: "far, near, far"."""
        fastest: str = self._plan.prefetch
        return fastest

    def run(self, batch: Batch) -> Logits:
        """Logits (L, vocab), valid until the next run."""
        return self._plan.run(batch)

    @cached_property
    def _body(self) -> _native.Plan:
        """The plan without the head."""
        return self._plan if not self._graph.has_head else self._plan_part(self._graph.body())

    def hidden(self, batch: Batch) -> Array:
        """See ``Backend``."""
        return self._body.run(batch)

    @cached_property
    def _wholes(self) -> "dict[tuple[str, ...], WholeRun]":
        """The runs of ``run_whole``, by the names of the tensors that they read."""
        return {}

    def run_whole(self, batch: Batch, names: tuple[str, ...] = ()) -> tuple[Logits, Array]:
        """See ``Backend``."""
        from cutaway.compute.backends.cpu.tap import WholeRun

        if names not in self._wholes:
            whole_run = WholeRun(self._graph, self._packed, self._plan.beside(), names)
            self._wholes[names] = whole_run
        return self._wholes[names].run(batch)

    @cached_property
    def _finish(self) -> _native.Plan:
        """The plan of the ops after pooling."""
        assert self._after is not None
        return self._plan_part(self._after)

    def finish(self, x: Array) -> Array:
        """See ``Backend``."""
        if self._after is None:
            return x
        return self._finish.run_on(np.ascontiguousarray(x, np.float32))

    @cached_property
    def _tap(self) -> "Tap":
        return self._new_tap(keeps_all=True)

    @cached_property
    def _changed(self) -> "Tap":
        return self._new_tap(keeps_all=False)

    def _new_tap(self, *, keeps_all: bool) -> "Tap":
        from cutaway.compute.backends.cpu.tap import Tap

        return Tap(self._graph, self._packed, self._plan.beside(), keeps_all=keeps_all)

    def tap(
        self, batch: Batch, names: Sequence[str], edits: Sequence[Edit] = ()
    ) -> tuple[Logits, dict[str, Array]]:
        """See ``Inspectable``."""
        logits = self._tap.run(batch, edits).copy()
        return logits, {name: self._tap.read(name, batch) for name in dict.fromkeys(names)}

    def run_edited(self, batch: Batch, edits: Sequence[Edit]) -> Logits:
        """See ``Inspectable``."""
        return self._changed.run(batch, edits)

    @cached_property
    def _head(self) -> _native.Plan:
        """The plan of the head alone."""
        return self._plan_part(self._graph.head_graph())

    def _plan_part(self, graph: Graph) -> _native.Plan:
        """Return a plan of a part of the graph that shares weights, threads, keys and values."""
        plan = self._plan.beside()
        self._packed.plan(plan, graph)
        return plan

    def head(self, x: Array) -> Logits:
        """See ``Inspectable``."""
        logits: Logits = self._head.run_on(np.ascontiguousarray(x, np.float32))
        return logits

    @cached_property
    def _stored(self) -> "StoredKV":
        from cutaway.compute.backends.stored import StoredKV

        return StoredKV(self._graph, self.read_block, self._kv)

    def keys_values(
        self, layer: int, table: Sequence[int], first: int, last: int
    ) -> "tuple[Numbers, Numbers]":
        """See ``Inspectable``: float16, or float32 decoded from codes; the keys are rotated."""
        return self._stored.read(layer, table, first, last)

    @cached_property
    def _weights(self) -> Weights:
        return Weights(self._packed.matrices, self._packed.vectors)

    def weight(self, name: str, first: int = 0, last: int | None = None) -> Array:
        """See ``Inspectable``."""
        return reorder_columns(self._weights.rows(name, first, last), self._orders.get(name))

    def as_read(self, name: str, x: Array) -> Array:
        """See ``Inspectable``: quantised matrices read activations rounded to 8 bits."""
        from cutaway.compute.backends.stored import round_activations

        if self._weights.is_float(name):
            return x
        order = self._orders.get(name)
        if order is None:
            return round_activations(x)
        return reorder_columns(round_activations(x[:, order.astype(np.intp)]), order)

    def sample(self, logits: Logits, draws: Sequence[RowDraw]) -> list[Sampled | Exception]:
        """Sample a token for each row of logits, on the backend's threads."""
        return sampling.sample(logits, draws, tier=self.tier, pool=self.pool)

    def read(
        self, logits: Logits, next_ids: Sequence[int | None], top: int
    ) -> list[ReadRow | Exception]:
        """Return how likely the known next token was in each row."""
        return read_rows(logits, next_ids, top, tier=self.tier, pool=self.pool)

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """See ``Backend``."""
        self._plan.copy_blocks(*_sources_and_targets(pairs))

    def read_block(self, block_id: int) -> list[Bytes]:
        """See ``Backend``."""
        return self._plan.block_memory(block_id, False)

    def write_block(self, block_id: int, pieces: Sequence[Bytes]) -> None:
        """See ``Backend``."""
        windows = sum(map(len, pieces)) == self.kv.bytes_per_token * self.kv.block_tokens
        put(pieces, self._plan.block_memory(block_id, windows))

    def copy_states(self, pairs: list[tuple[int, int]]) -> None:
        """See ``Backend``."""
        self._plan.copy_states(*_sources_and_targets(pairs))

    def read_state(self, slot: int) -> Bytes | None:
        """See ``Backend``."""
        return self._plan.state_memory(slot, False)

    def write_state(self, slot: int, state: Bytes) -> None:
        """See ``Backend``."""
        stored = self._plan.state_memory(slot, True)
        assert stored is not None
        stored[:] = state

    def copy_windows(self, pairs: list[tuple[int, int]]) -> None:
        """See ``Backend``."""
        self._plan.copy_windows(*_sources_and_targets(pairs))


def _sources_and_targets(pairs: list[tuple[int, int]]) -> NDArray[np.int32]:
    """Return sources and targets, (2, pairs)."""
    return np.array(pairs, np.int32).reshape(-1, 2).T.copy()


def _is_cached(name: str) -> bool:
    return isinstance(getattr(CpuBackend, name, None), cached_property)


def kv_layout(graph: Graph, kv: str = "f16") -> KVLayout:
    """Return how a graph's layers keep keys and values; needs no weights."""

    def nbytes(kv_heads: int, head_dim: int, count: int) -> int:
        return _native.kv_block_bytes(kv_heads, head_dim, kv, count > 1) // _native.KV_BLOCK

    return KVLayout(_native.KV_BLOCK, kv_groups(graph, kv.upper(), nbytes), state_group(graph))


__all__ = ["CpuBackend", "kv_layout", "stored_bytes", "tiers", "weight_bytes"]
