"""A plan as data: the calls of an ``Emitter``, for a core that has no Python.

Knows what arguments the calls have (native/module.cpp); native/web/core.cpp makes the same calls
from them. Runs nothing, and does not know where the list goes.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from cutaway.base import _native
from cutaway.compute.backends.cpu.column_order import ordered
from cutaway.compute.backends.cpu.compile import GraphCompiler
from cutaway.compute.backends.cpu.emit import Emitter
from cutaway.compute.backends.cpu.packing import pack_matrices, read_vectors
from cutaway.compute.model import Graph
from cutaway.errors import InputError
from cutaway.files.weights import ModelFile

Call = list[Any]
"""Its name, then its arguments: numbers, words, truths and lists of these. What may be missing is a
list of none or one."""

CALLS = (
    "buffer", "output", "embed", "embed_positions", "gather", "reorder", "normalise", "map",
    "linear", "attend", "rotate", "conv",
)  # fmt: skip
"""Those that the core knows."""


class RecordedPlan(NamedTuple):
    """What a core needs beside the packed weights.

    matrices  of each, as they lie: its format, rows, columns, and the factor of its products
    calls     that make the plan
    """

    context: int
    matrices: list[tuple[str, int, int, float]]
    calls: list[Call]


def write_plan(
    graph: Graph,
    file: ModelFile,
    weights: Path,
    context: int,
    on_progress: Callable[[int], None] = lambda _done: None,
) -> RecordedPlan:
    """Pack a model's matrices into a file; the plan that reads them.

    InputError where the model needs what the core does not have.
    """
    vectors, pool = read_vectors(graph, file), _native.Pool(1)
    if graph.after_pooling() or any(op.kind == "embed_stored" for op in graph.ops):
        raise _unknown("what is not a decoder")
    packed, experts = pack_matrices(graph, file, pool, on_progress, _Into(weights))
    if experts:
        raise _unknown("experts")
    graph = ordered(graph, vectors)
    numbers = {id(matrix): i for i, matrix in enumerate(packed.values())}
    calls = recorded(GraphCompiler(graph, packed, experts, vectors, {}), context, numbers)
    formats = [file.tensors[name].format for name, _, _ in packed]
    matrices = [
        (format, one.rows, one.cols, one.factor)
        for format, one in zip(formats, packed.values(), strict=True)
    ]
    return RecordedPlan(context, matrices, calls)


class _Into:
    """A file for packed weights, in the place of a folder to offload them to."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def open(self, reads: Any) -> Iterator[int]:
        with self._path.open("w+b") as file:
            file.truncate(reads.size)
            yield file.fileno()


def recorded(compiler: GraphCompiler, context: int, matrices: Mapping[int, int]) -> list[Call]:
    """The calls that make the plan of a graph.

    matrices: by ``id`` of a packed matrix, its number
    """
    plan = _Recorder(context, matrices)
    Emitter(compiler, plan, made_of=_ARGUMENTS)
    return plan.calls


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


def _experts_shape(**_sizes: Any) -> list[Any]:
    raise _unknown("experts")


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
