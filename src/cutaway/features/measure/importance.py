"""Importance matrix: how much each column of a model's matrices matters, from a text that it reads.

Knows the input of each matrix, and sums the squares of this input over the tokens. The sums are
float32, in the order of the tokens, and a run's tensors always have the same bits. So the result is
equal for all numbers of threads, instruction sets and batch sizes. Does not know the file format.

It reads the text in chunks, as llama.cpp's `imatrix` does. Each chunk starts with an empty cache,
and with BOS where the model wants one; an incomplete last chunk is left out. It covers every matrix
of each layer, and in a mixture the experts that a token goes through.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.backends import KV_BLOCK, Batch, inspectable
from cutaway.compute.model import Graph
from cutaway.compute.model.ops.linear import Linear
from cutaway.compute.model.ops.mixture import Experts
from cutaway.engine.limits import last_seen
from cutaway.engine.scheduled import lay_rows
from cutaway.errors import CutawayError, InputError
from cutaway.files.weights.importance import ColumnSums, Importance

if TYPE_CHECKING:
    from cutaway.compute.loading.model import LoadedModel

Floats = NDArray[np.float32]
CHUNK = 512
_ROWS = 64  # per batch: all tapped tensors of so many rows are in memory
_LAYERS, _OUTPUT = "blk.", "output.weight"


def collect(
    model: "LoadedModel", text: str, *,
    dataset: str = "", chunk: int = CHUNK, chunks: int | None = None, with_output: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Importance:  # fmt: skip
    """Let a model read a text, and sum the squares of its matrices' inputs, by column.

    model: with a context and a KV cache of at least one chunk; nothing else may use it meanwhile
    dataset: the text's name; chunk: tokens of a chunk; chunks: at most so many; None: all
    with_output: include the output matrix; InputError where the model has none of its own
    progress: called with (tokens done, tokens in all)
    Raises InputError where the text fills no chunk, and CutawayError where a number is not finite.
    """
    if with_output and not model.graph.has(_OUTPUT):
        raise InputError("the model has no output matrix of its own: leave --process-output out")
    ids = model.tokenizer.encode(text)
    whole = len(ids) // chunk
    if whole < 1:
        raise InputError(
            f"the text has {len(ids)} tokens, and a chunk {chunk}: give a longer text, or --chunk"
        )
    count = whole if chunks is None else min(whole, chunks)
    sums = _Sums(model.graph, with_output=with_output)
    for i in range(count):
        part = ids[i * chunk : (i + 1) * chunk]
        if model.tokenizer.add_bos and model.tokenizer.bos_id is not None:
            part[0] = model.tokenizer.bos_id
        for done in sums.read(model, part):
            progress(i * chunk + done, count * chunk)
    return Importance(sums.entries(), (dataset,) if dataset else (), count, chunk)


class _Sums:
    """The sums of squares of the inputs of each matrix in a graph, by column."""

    def __init__(self, graph: Graph, *, with_output: bool) -> None:
        prefixes = (_LAYERS, _OUTPUT) if with_output else (_LAYERS,)
        ops = [
            op for op in graph.ops
            if any(name.startswith(prefixes) for name in op.weights.values())
        ]  # fmt: skip
        self._readers: dict[str, dict[str, None]] = {}  # by tensor: the matrices that read it
        for op in (op for op in ops if isinstance(op, Linear)):
            self._readers.setdefault(op.inputs[0], {})[op.weights["weight"]] = None
        self._mixtures = [op for op in ops if isinstance(op, Experts)]
        self._counts: dict[str, NDArray[np.int64]] = {}
        self._sums: dict[str, Floats] = {}
        self._shapes = graph.shapes
        self._needs_all_logits = with_output

    def read(self, model: "LoadedModel", ids: Sequence[int]) -> Iterator[int]:
        """Read one chunk in batches; yield how many of its tokens are done."""
        attention = model.config.attention
        blocks = list(range(-(-len(ids) // KV_BLOCK)))
        start = 0
        while start < len(ids):  # tokens that attend to each other must be in one batch
            stop = last_seen(attention, min(start + _ROWS, len(ids)) - 1, len(ids)) + 1
            tokens, positions, sequences, tables = lay_rows([(start, ids[start:stop], blocks)])
            rows = np.arange(0 if self._needs_all_logits else stop - start - 1, stop - start)
            seen = [last_seen(attention, p, len(ids)) for p in range(start, stop)]
            limits = None if attention == "causal" else np.array(seen, np.int32)
            self._add(model, Batch(
                tokens, positions, sequences, tables, rows.astype(np.int32), limits
            ))  # fmt: skip
            yield (start := stop)

    def _add(self, model: "LoadedModel", batch: Batch) -> None:
        tensor_names = [*self._readers]
        for op in self._mixtures:
            tensor_names += [*op.inputs, f"{op.out.name}.inner"]
        backend = inspectable(model.backend)
        _, tensors = backend.tap(batch, tensor_names)
        for tensor, matrices in self._readers.items():
            first, *same_input = matrices
            self._add_rows(first, 0, 1, tensors[tensor])
            for other in same_input:  # the same sums
                self._sums[other], self._counts[other] = self._sums[first], self._counts[first]
        for op in self._mixtures:
            x, scores = (tensors[name] for name in op.inputs)
            bias_name = op.weights.get("choosing_bias")
            bias = None if bias_name is None else backend.weight(bias_name)
            expert_ids, _ = op.mixture.choose(scores, bias)
            self._add_mixture(op, x, expert_ids, tensors[f"{op.out.name}.inner"])

    def _add_mixture(
        self, op: Experts, x: Floats, expert_ids: NDArray[np.int64], inner: Floats
    ) -> None:
        """Add the inputs of a mixture's experts.

        x (M, hidden), expert_ids (M, used), inner (M, used · inner)
        """
        count = self._shapes[op.weights["up"]][0]
        inner = inner.reshape(*expert_ids.shape, -1)
        for expert in np.unique(expert_ids):
            rows, ranks = np.nonzero(expert_ids == expert)
            for role in (role for role in ("gate", "up") if role in op.weights):
                self._add_rows(op.weights[role], expert, count, x[rows])
            self._add_rows(op.weights["down"], expert, count, inner[rows, ranks])

    def _add_rows(self, matrix: str, expert: int, experts: int, x: Floats) -> None:
        """Add the squares of the rows of ``x``, (n, columns), one after another."""
        sums = self._sums.setdefault(matrix, np.zeros((experts, x.shape[1]), np.float32))
        counts = self._counts.setdefault(matrix, np.zeros(experts, np.int64))
        # NumPy adds row after row along the first axis; only along the last may it sum pairwise.
        sums[expert] = np.add.reduce(np.concatenate([sums[expert, None], x * x]), axis=0)
        counts[expert] += len(x)
        if not np.isfinite(sums[expert]).all():
            raise CutawayError(f"{matrix} is multiplied by numbers that are not finite")

    def entries(self) -> dict[str, ColumnSums]:
        return {
            name: ColumnSums(sums, self._counts[name].astype(np.float32))
            for name, sums in self._sums.items()
        }  # fmt: skip
