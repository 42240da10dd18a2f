"""The GPU backend: the graph's calls as dispatches of kernels, through WebGPU, with the CPU's bits.

Knows which programs a model has, and what they share. Rows are sampled on the CPU, from logits that
are copied back.
"""

import os
from collections.abc import Callable, Container, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from cutaway import sampling
from cutaway.base import _native
from cutaway.base.resources import default_threads
from cutaway.compute.backends.base import Batch, Bytes, Edit, Logits, reorder_columns
from cutaway.compute.backends.gpu.adapters import open_device
from cutaway.compute.backends.gpu.batches import Bounds
from cutaway.compute.backends.gpu.check import check
from cutaway.compute.backends.gpu.compile import compile_plan
from cutaway.compute.backends.gpu.device import Device
from cutaway.compute.backends.gpu.memory import make_memory
from cutaway.compute.backends.gpu.program import Program
from cutaway.compute.backends.gpu.run import DeviceRunner
from cutaway.compute.backends.gpu.tap import DeviceTap
from cutaway.compute.backends.gpu.weights import DeviceWeights
from cutaway.compute.backends.layout import KVLayout, kv_groups, state_group
from cutaway.compute.calls import Call, Floats, View
from cutaway.compute.lowering import read_vectors
from cutaway.compute.lowering.compile import spell_out_adapters, spell_out_orders
from cutaway.compute.lowering.emit import Emitter
from cutaway.compute.lowering.emit import lower as lower_graph
from cutaway.compute.model import Graph
from cutaway.compute.model.ops.rows import EmbedStored
from cutaway.files.weights import ModelFile
from cutaway.sampling import ReadRow, RowDraw, Sampled, read_rows

if TYPE_CHECKING:
    from cutaway.compute.backends.stored import Numbers, StoredKV


class GpuBackend:
    """One device, one set of packed weights, and the programs that read them. See ``Backend``."""

    name = "gpu"

    def __init__(
        self,
        graph: Graph,
        file: ModelFile,
        *,
        kv_blocks: int,
        context: int,
        threads: int | None = None,
        kv: str = "f16",
        on_progress: Callable[[int], None] = lambda _done: None,
        device: Device | None = None,
    ) -> None:
        """threads: CPU threads that pack and sample; device: None opens one; see ``CpuBackend``."""
        self.kv_blocks, self.context, self.kv_format = kv_blocks, context, kv
        self.pool = _native.Pool(threads or default_threads().count)
        self.threads = self.pool.threads
        self.device = device or open_device(os.environ.get("CUTAWAY_GPU_FMA") or None)
        self.tier = f"webgpu {self.device.fused}"
        self._after = graph.pooled_graph()
        self._weights = DeviceWeights(self.device)
        self._weights.add(graph, file, self.pool, on_progress)
        self._vectors, self._stored = read_vectors(graph, file), _file_tables(graph, file)
        self._graph = spell_out_orders(graph.body() if self._after else graph, self._vectors)
        self._orders = dict(graph.orders)
        plan = self.lower(self._graph).calls
        self._memory = make_memory(self.device, plan, kv, kv_blocks, self._graph)
        self._runner = self.make_runner(plan)
        self.kv = kv_layout(graph, kv)
        check(self, graph, file)

    @property
    def program(self) -> Program:
        """The program that a step runs."""
        return self._runner.program

    def lower(self, graph: Graph, **options: Any) -> Emitter:
        """Return a graph's calls over this backend's weights; options: see ``lowering.emit``."""
        table = self._weights.table(self._vectors, [*self._stored])
        return lower_graph(graph, table, self.context, **options)

    def make_runner(self, plan: Sequence[Call]) -> DeviceRunner:
        """Return a runner of this plan on the device, over this backend's weights and memory."""
        bounds = Bounds(vocab=0, types=0, context=self.context, kv_blocks=self.kv_blocks)
        program = compile_plan(plan, self._weights, self._memory, self.kv_format, bounds)
        return DeviceRunner(self.device, program, [*self._stored.values()])

    def with_graph(self, graph: Graph, file: ModelFile) -> Self:
        """See ``Backend``."""
        twin = self._twin(graph, file)
        plan = twin.lower(twin._graph).calls
        twin._memory = make_memory(self.device, plan, self.kv_format, self.kv_blocks, twin._graph)
        twin._runner, twin.kv = twin.make_runner(plan), kv_layout(graph, self.kv_format)
        return twin

    def with_adapter(self, graph: Graph, file: ModelFile) -> Self:
        """See ``Backend``."""
        twin = self._twin(spell_out_adapters(graph), file)
        twin._runner = twin.make_runner(twin.lower(twin._graph).calls)
        return twin

    def with_weights(self, file: ModelFile, names: Container[str]) -> Self:
        """See ``Backend``."""
        twin = self._twin(self._graph, file, lambda name: name in names)
        twin._runner = twin.make_runner(twin.lower(twin._graph).calls)
        return twin

    def _twin(
        self, graph: Graph, file: ModelFile, is_new: Callable[[str], bool] | None = None
    ) -> Self:
        """Return a backend for another graph over the same memory; read the weights it lacks.

        is_new: by name, which weights to read although this backend has some of that name
        """
        twin = copy(self)
        for name in [name for name in vars(twin) if _is_cached(name)]:
            delattr(twin, name)  # made again, from the new graph, when it is first wanted
        only = Graph(graph.shapes)
        only.ops = [
            op for op in graph.ops if is_new is None or any(map(is_new, op.weights.values()))
        ]
        twin._weights = self._weights.share(is_new)
        twin._weights.add(only, file, self.pool)
        lacking = Graph(graph.shapes)
        lacking.ops = [op for op in only.ops if is_new or not {*op.vectors} <= {*self._vectors}]
        twin._vectors = self._vectors | read_vectors(lacking, file)
        twin._stored = self._stored | _file_tables(lacking, file)
        twin._graph = spell_out_orders(graph, twin._vectors)
        return twin

    # -- runs ----------------------------------------------------------------------------------

    def run(self, batch: Batch) -> Logits:
        """See ``Backend``."""
        return self._runner.run(batch)

    @cached_property
    def _body(self) -> DeviceRunner:
        """The program without the head."""
        if not self._graph.has_head:
            return self._runner
        return self.make_runner(self.lower(self._graph.body()).calls)

    def hidden(self, batch: Batch) -> Floats:
        """See ``Backend``."""
        return self._body.run(batch)

    @cached_property
    def _wholes(self) -> dict[tuple[str, ...], tuple[DeviceRunner, list[tuple[View, int]]]]:
        """Programs of ``run_whole``, each with the views and widths it reads; by tensor names."""
        return {}

    def run_whole(self, batch: Batch, names: tuple[str, ...] = ()) -> tuple[Logits, Floats]:
        """See ``Backend``."""
        if names not in self._wholes:
            last, read = self._graph.choosing_last()
            by_name = {op.out.name: op.out for op in last.ops}
            read_tensors = [by_name[name] for name in names] or [read]
            also = {tensor.name for tensor in read_tensors}
            lowered = self.lower(last, hoist=False, apart=bool(names), also=also)
            views = [(lowered.view(tensor.name), tensor.width) for tensor in read_tensors]
            self._wholes[names] = self.make_runner(lowered.calls), views
        runner, views = self._wholes[names]
        logits, rows = runner.run(batch), len(batch.tokens)
        return logits, np.concatenate([runner.read(view, rows, width) for view, width in views], 1)

    @cached_property
    def _finish(self) -> DeviceRunner:
        """The program of the ops after pooling."""
        assert self._after is not None
        return self.make_runner(self.lower(self._after).calls)

    def finish(self, x: Floats) -> Floats:
        """See ``Backend``."""
        if self._after is None:
            return x
        return self._finish.run_on(np.ascontiguousarray(x, np.float32))

    @cached_property
    def _head(self) -> DeviceRunner:
        """The program of the head alone."""
        return self.make_runner(self.lower(self._graph.head_graph()).calls)

    def head(self, x: Floats) -> Logits:
        """See ``Inspectable``."""
        return self._head.run_on(np.ascontiguousarray(x, np.float32))

    @cached_property
    def _taps(self) -> "dict[tuple[str, ...], DeviceTap]":
        """Taps, by the names of the tensors that are read after their runs."""
        return {}

    def tap(
        self, batch: Batch, names: Sequence[str], edits: Sequence[Edit] = ()
    ) -> tuple[Logits, dict[str, Floats]]:
        """See ``Inspectable``."""
        read = tuple(dict.fromkeys(names))
        if read not in self._taps:
            self._taps[read] = DeviceTap(self, self._graph, read)
        tap = self._taps[read]
        return tap.run(batch, edits), {name: tap.read(name, batch) for name in read}

    def run_edited(self, batch: Batch, edits: Sequence[Edit]) -> Logits:
        """See ``Inspectable``."""
        return self.tap(batch, (), edits)[0]

    def weight(self, name: str, first: int = 0, last: int | None = None) -> Floats:
        """See ``Inspectable``."""
        if name in self._vectors:
            return self._vectors[name][first:last]
        return reorder_columns(self._weights.rows(name, first, last), self._order(name))

    @cached_property
    def _stored_kv(self) -> "StoredKV":
        from cutaway.compute.backends.stored import StoredKV

        return StoredKV(self._graph, self.read_block, self.kv_format)

    def keys_values(
        self, layer: int, table: Sequence[int], first: int, last: int
    ) -> "tuple[Numbers, Numbers]":
        """See ``Inspectable``: float16, or float32 decoded from codes; the keys are rotated."""
        return self._stored_kv.read(layer, table, first, last)

    def as_read(self, name: str, x: Floats) -> Floats:
        """See ``Inspectable``: quantised matrices read activations rounded to 8 bits."""
        from cutaway.compute.backends.stored import round_activations

        if self._weights.is_float(name):
            return x
        order = self._order(name)
        if order is None:
            return round_activations(x)
        return reorder_columns(round_activations(x[:, order.astype(np.intp)]), order)

    def _order(self, name: str) -> Floats | None:
        order = self._orders.get(name)
        return None if order is None else self._vectors[order]

    def sample(self, logits: Logits, draws: Sequence[RowDraw]) -> list[Sampled | Exception]:
        """Sample a token for each row of logits, on the CPU's threads."""
        return sampling.sample(logits, draws, pool=self.pool)

    def read(
        self, logits: Logits, next_ids: Sequence[int | None], top: int
    ) -> list[ReadRow | Exception]:
        """Return how likely the known next token was in each row."""
        return read_rows(logits, next_ids, top, pool=self.pool)

    # -- KV blocks and states ------------------------------------------------------------------

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """See ``Backend``."""
        self._memory.copy_blocks(pairs)

    def copy_windows(self, pairs: list[tuple[int, int]]) -> None:
        """See ``Backend``."""
        self._memory.copy_windows(pairs)

    def copy_states(self, pairs: list[tuple[int, int]]) -> None:
        """See ``Backend``."""
        self._memory.copy_states(pairs)

    def read_block(self, block_id: int) -> list[Bytes]:
        """See ``Backend``."""
        return self._memory.read_block(block_id)

    def write_block(self, block_id: int, pieces: Sequence[Bytes]) -> None:
        """See ``Backend``."""
        self._memory.write_block(block_id, np.concatenate([*pieces]))

    def read_state(self, slot: int) -> Bytes | None:
        """See ``Backend``."""
        return self._memory.read_state(slot)

    def write_state(self, slot: int, state: Bytes) -> None:
        """See ``Backend``."""
        self._memory.write_state(slot, state)


def _is_cached(name: str) -> bool:
    return isinstance(getattr(GpuBackend, name, None), cached_property)


def _file_tables(graph: Graph, file: ModelFile) -> dict[str, _native.StoredTable]:
    """Return the tables whose rows are read from the file, token by token; it stays open."""
    names = [op.weights["weight"] for op in graph.ops if isinstance(op, EmbedStored)]
    return {name: _native.StoredTable(file.info(name).format, file.raw(name)) for name in names}


def kv_layout(graph: Graph, kv: str = "f16") -> KVLayout:
    """Return how a graph's layers keep keys and values; needs no weights."""

    def nbytes(kv_heads: int, head_dim: int, count: int) -> int:
        return _native.kv_block_bytes(kv_heads, head_dim, kv, count > 1) // _native.KV_BLOCK

    return KVLayout(_native.KV_BLOCK, kv_groups(graph, kv.upper(), nbytes), state_group(graph))
