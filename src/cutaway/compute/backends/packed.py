"""What the cpu and gpu backends share: packed weights, KV blocks of one layout, the CPU's sampler.

Knows the graphs that a backend runs in addition to the whole one, and how their tensors are read.
Does not know what runs them, nor where weights and KV blocks lie.
"""

from collections.abc import Container, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from cutaway import sampling
from cutaway.base import _native
from cutaway.compute.backends.base import Batch, Bytes, Edit, Logits, reorder_columns
from cutaway.compute.backends.layout import KVLayout, kv_groups, state_group
from cutaway.compute.calls import Floats, View
from cutaway.compute.lowering import matrix_shapes, read_vectors
from cutaway.compute.lowering.compile import spell_out_adapters, spell_out_orders
from cutaway.compute.lowering.emit import INNER, Emitter
from cutaway.compute.lowering.packing import PackedWeights, Shapes, read_stored
from cutaway.compute.model import Graph
from cutaway.compute.model.op import Slice
from cutaway.files.weights import ModelFile
from cutaway.sampling import Distributions, ReadRow, RowDraw, Sampled, read_rows

if TYPE_CHECKING:
    from cutaway.compute.backends.stored import StoredKV
    from cutaway.compute.backends.tap import PlanRunner, Tap


class PackedBackend:
    """Runs of parts of a graph, sampling, and reading: see ``Backend`` and ``Inspectable``.

    kv_format  how keys and values are stored, as ``check_kv`` returned it
    _graph     the graph that ``_runner`` runs; if a graph pools, this is its body
    _after     the ops after pooling; None if there are none
    _orders    a matrix's name -> the name of the tensor with the order of its columns
    """

    kv_format: str
    kv: KVLayout
    pool: _native.Pool
    _weights: PackedWeights
    _graph: Graph
    _after: Graph | None
    _orders: Mapping[str, str]
    _runner: "PlanRunner"
    _keeps_all = False  # whether one tap keeps all tensors; else each set of names has a tap

    # -- what a backend says -------------------------------------------------------------------

    def _pack(
        self, shapes: Shapes, file: ModelFile, shared: Mapping[Slice, Any]
    ) -> Mapping[Slice, Any]:
        """Pack matrices from a file; return the shared matrices, followed by these."""
        raise NotImplementedError

    def _decode(self, matrix: Any, first: int, last: int) -> Floats:
        """Return rows first … last - 1 of a packed matrix, exactly."""
        raise NotImplementedError

    def _lower(self, graph: Graph, **options: Any) -> "tuple[PlanRunner, Emitter]":
        """Return a runner of a graph over this backend's weights, keys and values.

        options: see ``lowering.emit.lower``
        """
        raise NotImplementedError

    def _start(self, *, own_memory: bool) -> None:
        """Set the runner of the graph; own_memory: whether it has KV blocks of its own."""
        raise NotImplementedError

    def read_block(self, block_id: int) -> list[Bytes]:
        """See ``Backend``."""
        raise NotImplementedError

    def _set_graph(self, graph: Graph, file: ModelFile, matrices: Mapping[Slice, Any]) -> None:
        """Set the graph to run, and its weights: packed matrices, and the others from the file."""
        vectors = read_vectors(graph, file)
        self._weights = PackedWeights(matrices, vectors, read_stored(graph, file))
        self._orders, self._after = graph.orders, graph.pooled_graph()
        self._graph = spell_out_orders(graph.body() if self._after else graph, vectors)
        self.kv = kv_layout(graph, self.kv_format)

    # -- other backends over the same weights --------------------------------------------------

    def with_graph(self, graph: Graph, file: ModelFile) -> Self:
        """See ``Backend``."""
        twin = self._twin(graph, file, own_memory=True)
        twin.kv = kv_layout(graph, self.kv_format)
        return twin

    def with_adapter(self, graph: Graph, file: ModelFile) -> Self:
        """See ``Backend``."""
        return self._twin(spell_out_adapters(graph), file)

    def with_weights(self, file: ModelFile, names: Container[str]) -> Self:
        """See ``Backend``."""
        return self._twin(self._graph, file, names)

    def _twin(
        self, graph: Graph, file: ModelFile, new: Container[str] = (), *, own_memory: bool = False
    ) -> Self:
        """Return a backend of another graph; read the weights it lacks, and those in ``new``."""
        twin = copy(self)
        for name in vars(self):
            if isinstance(getattr(type(self), name, None), cached_property):
                delattr(twin, name)  # it is made again, from the new graph, when first wanted
        matrices, vectors, stored = self._weights
        old = {part: matrix for part, matrix in matrices.items() if part[0] not in new}
        lacking = {p: shape for p, shape in matrix_shapes(graph).items() if p not in old}
        old_vectors = {name: vector for name, vector in vectors.items() if name not in new}
        old_tables = {name: table for name, table in stored.items() if name not in new}
        twin._weights = PackedWeights(
            twin._pack(lacking, file, old),
            old_vectors | read_vectors(graph, file, but=old_vectors),
            old_tables | read_stored(graph, file, but=old_tables),
        )
        twin._graph = spell_out_orders(graph, twin._weights.vectors)
        twin._start(own_memory=own_memory)
        return twin

    # -- runs ----------------------------------------------------------------------------------

    def run(self, batch: Batch) -> Logits:
        """Return logits (L, vocab), valid until the next run."""
        return self._runner.run(batch)

    @cached_property
    def _body(self) -> "PlanRunner":
        """Return the plan without the head."""
        return self._lower(self._graph.body())[0] if self._graph.has_head else self._runner

    def hidden(self, batch: Batch) -> Floats:
        """See ``Backend``."""
        return self._body.run(batch)

    @cached_property
    def _wholes(self) -> "dict[tuple[str, ...], tuple[PlanRunner, list[tuple[View, int]]]]":
        """The plans of ``run_whole`` by tensor names, each with the views and widths it reads."""
        return {}

    def run_whole(self, batch: Batch, names: tuple[str, ...] = ()) -> tuple[Logits, Floats]:
        """See ``Backend``."""
        if names not in self._wholes:
            graph, read = self._graph.choosing_last()
            by_name = {op.out.name: op.out for op in graph.ops}
            tensors = [by_name[name] for name in names] or [read]
            also = {tensor.name for tensor in tensors}
            runner, lowered = self._lower(graph, hoist=False, also=also)
            self._wholes[names] = runner, [(lowered.view(t.name), t.width) for t in tensors]
        runner, views = self._wholes[names]
        logits, rows = runner.run(batch), len(batch.tokens)
        parts = [runner.read(view, rows, width) for view, width in views]
        return logits, parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    @cached_property
    def _finish(self) -> "PlanRunner":
        """The plan of the ops after pooling."""
        assert self._after is not None
        return self._lower(self._after)[0]

    def finish(self, x: Floats) -> Floats:
        """See ``Backend``."""
        return (
            x if self._after is None else self._finish.run_on(np.ascontiguousarray(x, np.float32))
        )

    @cached_property
    def _head(self) -> "PlanRunner":
        """The plan of the head alone."""
        return self._lower(self._graph.head_graph())[0]

    def head(self, x: Floats) -> Logits:
        """See ``Inspectable``."""
        return self._head.run_on(np.ascontiguousarray(x, np.float32))

    @cached_property
    def _taps(self) -> "dict[tuple[bool, tuple[str, ...]], Tap]":
        """(Whether a tap keeps all tensors; if not, the names of those to be read) -> the tap."""
        return {}

    def _tap(self, names: tuple[str, ...]) -> "Tap":
        """Return a tap from which these tensors can be read after a run."""
        from cutaway.compute.backends.tap import Tap

        keeps_all = any(self._keeps_all or name.endswith(INNER) for name in names)
        key = keeps_all, () if keeps_all else names
        if key not in self._taps:
            lowered = self._lower(self._graph, apart=True, keeps_all=keeps_all, also=key[1])
            self._taps[key] = Tap(*lowered)
        return self._taps[key]

    def tap(
        self, batch: Batch, names: Sequence[str], edits: Sequence[Edit] = ()
    ) -> tuple[Logits, dict[str, Floats]]:
        """See ``Inspectable``."""
        tap = self._tap(tuple(dict.fromkeys(names)))
        logits = tap.run(batch, edits).copy()
        return logits, {name: tap.read(name, batch) for name in names}

    def run_edited(self, batch: Batch, edits: Sequence[Edit]) -> Logits:
        """See ``Inspectable``."""
        return self._tap(()).run(batch, edits)

    # -- weights, keys and values --------------------------------------------------------------

    @cached_property
    def _parts(self) -> dict[str, list[tuple[int, int, Any]]]:
        """Tensor -> its packed matrices in order, each with its first row and its last row + 1."""
        parts = dict[str, list[tuple[int, int, Any]]]()
        for name, first, last in sorted(self._weights.matrices):
            matrix = self._weights.matrices[name, first, last]
            parts.setdefault(name, []).append((first, last, matrix))
        return parts

    def weight(self, name: str, first: int = 0, last: int | None = None) -> Floats:
        """See ``Inspectable``."""
        if name in self._weights.vectors:
            return self._weights.vectors[name][first:last]
        last = self._parts[name][-1][1] if last is None else last
        rows = [
            self._decode(matrix, max(first, a) - a, min(last, b) - a)
            for a, b, matrix in self._parts[name]
            if a < last and first < b
        ]
        return reorder_columns(
            rows[0] if len(rows) == 1 else np.concatenate(rows), self._order(name)
        )

    def as_read(self, name: str, x: Floats) -> Floats:
        """See ``Inspectable``: quantised matrices read activations rounded to 8 bits."""
        if self._parts[name][0][2].is_float:
            return x
        order = self._order(name)
        if order is None:
            return _native.round_activations(x)
        return reorder_columns(_native.round_activations(x[:, order.astype(np.intp)]), order)

    def _order(self, name: str) -> Floats | None:
        return self._weights.vectors[self._orders[name]] if name in self._orders else None

    @cached_property
    def _stored_kv(self) -> "StoredKV":
        from cutaway.compute.backends.stored import StoredKV

        return StoredKV(self._graph, self.read_block, self.kv_format)

    def keys_values(
        self, layer: int, table: Sequence[int], first: int, last: int
    ) -> tuple[Floats, Floats]:
        """See ``Inspectable``; the keys are rotated."""
        return self._stored_kv.read(layer, table, first, last)

    # -- sampling ------------------------------------------------------------------------------

    @property
    def _sampler_tier(self) -> str:
        """Return the instruction set that samples; "" is the machine's best."""
        return ""

    def sample(self, logits: Logits, draws: Sequence[RowDraw]) -> list[Sampled | Exception]:
        """Sample a token for each row of logits, on the CPU's threads."""
        return sampling.sample(logits, draws, tier=self._sampler_tier, pool=self.pool)

    def read_distributions(
        self, logits: Logits, draws: Sequence[RowDraw], *, with_chances: bool
    ) -> Distributions:
        """Return what tokens were drawn from, read on the CPU's threads."""
        return sampling.read_distributions(
            logits, draws, with_chances=with_chances, tier=self._sampler_tier, pool=self.pool
        )

    def read(
        self, logits: Logits, next_ids: Sequence[int | None], top: int
    ) -> list[ReadRow | Exception]:
        """Return how likely the known next token was in each row."""
        return read_rows(logits, next_ids, top, tier=self._sampler_tier, pool=self.pool)


def kv_layout(graph: Graph, kv: str = "f16") -> KVLayout:
    """Return how a graph's layers keep keys and values."""

    def nbytes(kv_heads: int, key_dim: int, value_dim: int) -> int:
        return _native.kv_block_bytes(kv_heads, key_dim, value_dim, kv) // _native.KV_BLOCK

    return KVLayout(_native.KV_BLOCK, kv_groups(graph, kv.upper(), nbytes), state_group(graph))
