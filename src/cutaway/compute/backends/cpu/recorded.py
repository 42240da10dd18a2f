"""A plan as data: the calls of an ``Emitter``, for a core that has no Python.

Knows what arguments the calls have (native/plan_module.cpp); native/web/calls.cpp makes the same
calls from them. Runs nothing, and does not know where the list goes.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from cutaway.base import _native
from cutaway.compute.backends.cpu.compile import GraphCompiler, Vector, ordered
from cutaway.compute.backends.cpu.emit import Emitter
from cutaway.compute.backends.cpu.packing import pack_matrices, read_vectors
from cutaway.compute.model import Graph
from cutaway.compute.model.op import Slice
from cutaway.compute.model.ops.rows import EmbedStored
from cutaway.errors import InputError
from cutaway.files.weights import ModelFile

Call = list[Any]
"""Its name, then its arguments: numbers, words, truths and lists of these. What may be missing is a
list of none or one."""

CALLS = (
    "buffer", "output", "embed", "embed_positions", "gather", "reorder", "normalise", "map",
    "linear", "attend", "rotate", "conv", "delta_net", "mamba2", "join", "experts", "given",
)  # fmt: skip
"""Those that the core knows."""


class RecordedPlan(NamedTuple):
    """What a core needs beside the packed weights.

    matrices  of each, as they lie: its format, rows, columns, and the factor of its products
    calls     that make the plan
    tap       that make the one whose tensors can be read, without fusions
    head      that make the one of the ops after ``logit_rows``, on rows that are given
    """

    context: int
    matrices: list[tuple[str, int, int, float]]
    calls: list[Call]
    tap: list[Call]
    head: list[Call]


class Readable(NamedTuple):
    """What is read by its name beside a recorded plan.

    tensors   of the tap: the number of its buffer, and its width
    matrices  by their slices of the file's: their numbers, and whether they read unrounded floats
    vectors   norms and biases
    """

    tensors: dict[str, tuple[int, int]]
    matrices: dict[Slice, tuple[int, bool]]
    vectors: Mapping[str, Vector]


def write_plan(
    graph: Graph,
    file: ModelFile,
    weights: Path,
    context: int,
    on_progress: Callable[[int], None] = lambda _done: None,
) -> tuple[RecordedPlan, Readable]:
    """Pack a model's matrices into a file; the plan that reads them, and what it has by name.

    InputError where the model needs what the core does not have.
    """
    vectors, pool = read_vectors(graph, file), _native.Pool(1)
    if graph.after_pooling():
        raise InputError("the model computes vectors or scores, and a page writes texts")
    if any(isinstance(op, EmbedStored) for op in graph.ops):
        raise _unknown("a table of embeddings that stays in its file")
    packed, experts = pack_matrices(graph, file, pool, on_progress, _Into(weights))
    graph = ordered(graph, vectors)
    numbers = {id(matrix): i for i, matrix in enumerate(packed.values())}

    def plan_of(part: Graph, *, kept: bool = False) -> tuple[list[Call], Emitter]:
        compiler = GraphCompiler(part, packed, experts, vectors, {}, apart=kept)
        return recorded(compiler, context, numbers, kept=kept)

    tap, emitter = plan_of(graph, kept=True)
    formats = [file.tensors[name].format for name, _, _ in packed]
    matrices = [
        (format, one.rows, one.cols, one.factor)
        for format, one in zip(formats, packed.values(), strict=True)
    ]
    plan = RecordedPlan(context, matrices, plan_of(graph)[0], tap, plan_of(graph.after_rows())[0])
    read = {
        op.out.name: (emitter.view(op.out.name)[0], op.out.width)
        for op in emitter.c.ops
        if op.out.name in emitter.where
    }
    named = {part: (numbers[id(one)], one.is_float) for part, one in packed.items()}
    return plan, Readable(read, named, vectors)


class _Into:
    """A file for packed weights, in the place of a folder to offload them to."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def open(self, reads: Any) -> Iterator[int]:
        with self._path.open("w+b") as file:
            file.truncate(reads.size)
            yield file.fileno()


def recorded(
    compiler: GraphCompiler, context: int, matrices: Mapping[int, int], *, kept: bool = False
) -> tuple[list[Call], Emitter]:
    """The calls that make the plan of a graph, and where its tensors are.

    matrices: by ``id`` of a packed matrix, its number
    kept: every tensor can be read after a run
    """
    plan = _Recorder(context, matrices)
    return plan.calls, Emitter(compiler, plan, kept=kept, made_of=_ARGUMENTS)


def _unknown(name: str) -> InputError:
    return InputError(f"the model needs {name.replace('_', ' ')}, which a page cannot run yet")


def _rotation(*given: Any) -> list[Any]:
    return [*given, *(0.0, 1, 0)[len(given) - 3 :]]  # growth, period, offset


_SHAPE = {
    "heads": 0, "kv_heads": 0, "head_dim": 0, "scale": 1.0, "softcap": 0.0, "window": 0, "reach": 0,
    "chunked": False, "layer": 0, "reads": -1, "value_first": 0, "value_dim": 0,
}  # fmt: skip
"""An attention's sizes in the order of native/ops.h, and what each is where it is not said."""


def _attend_shape(**sizes: Any) -> list[Any]:
    return [*(_SHAPE | sizes).values()]


_MIXTURE = (
    "used", "gating", "normed", "scale", "groups", "used_groups", "best_of_group", "activation",
    "limit", "weighs_input", "tolerance", "bias",
)  # fmt: skip
"""How experts are chosen, in the order of native/experts.h."""


def _experts_shape(**sizes: Any) -> list[Any]:
    return [sizes[name] for name in _MIXTURE]


_ARGUMENTS = SimpleNamespace(
    Places=lambda floats, act: [floats, act],
    Norm=lambda weight, bias, eps, group: [weight, bias, eps, group],
    Rotation=_rotation,
    AttendShape=_attend_shape,
    ExpertsShape=_experts_shape,
)
"""What a call's arguments are made of, as lists in the order of the native constructors."""


class _Recorder:
    """A plan that only notes its calls."""

    def __init__(self, context: int, matrices: Mapping[int, int]) -> None:
        self.context, self.length, self.calls = context, 0, list[Call]()
        self._matrices, self._buffers = matrices, 0

    def buffer(self, width: int, quantised: bool) -> int:
        self._note("buffer", width, quantised)
        self._buffers += 1
        return self._buffers - 1

    def normalise(self, late: bool, x: Any, width: int, norm: Any, out: Any) -> None:
        self._note("normalise", late, x, width, [] if norm is None else [norm], out)

    def linear(
        self,
        late: bool,
        x: Any,
        parts: Any,
        *,
        adds: bool = False,
        gate: str = "",
    ) -> None:
        self._note("linear", late, x, parts, adds, gate)

    def experts(self, *arguments: Any) -> None:
        *before, experts, out, inner, biases = arguments

        def biased(i: int, role: int) -> list[Any]:
            return [experts[i][role], biases[role][i] if biases[role] else []]

        every = [
            [[biased(i, 0)] if gate else [], biased(i, 1), biased(i, 2)]
            for i, (gate, _, _) in enumerate(experts)
        ]
        self._note("experts", *before, every, out, inner)

    def __getattr__(self, name: str) -> Any:
        if name not in CALLS:
            raise _unknown(name)
        return lambda *arguments: self._note(name, *arguments)

    def _note(self, name: str, *arguments: Any) -> None:
        self.calls.append([name, *map(self._plain, arguments)])
        self.length += 1

    def _plain(self, argument: Any) -> Any:
        if isinstance(argument, _native.Packed):
            return self._matrices[id(argument)]
        if isinstance(argument, np.ndarray):
            return argument.tolist()
        if isinstance(argument, (list, tuple)):
            return [self._plain(item) for item in argument]
        return argument
