"""What a token costs a GPU in counts: dispatches and bytes of weights, from a model's sizes alone.

Knows how to compile a program without a device and without weights; ``gpu.py`` prints the counts.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

from cutaway.base import _native
from cutaway.compute import calls, model
from cutaway.compute.backends.gpu.batches import Bounds
from cutaway.compute.backends.gpu.compile import compile_plan
from cutaway.compute.backends.gpu.launches import StepSize, launches
from cutaway.compute.backends.gpu.memory import make_memory
from cutaway.compute.backends.gpu.program import Program
from cutaway.compute.backends.gpu.weights import DeviceWeights, PackedMatrix, PanelRange
from cutaway.compute.lowering import matrix_shapes, read_vectors
from cutaway.compute.lowering.compile import spell_out_orders
from cutaway.compute.lowering.packing import LANES, PackedWeights
from cutaway.files import hub
from cutaway.files.weights import GGUFFile, ModelFile
from make_model import RandomModel
from shapes import SHAPES

CONTEXT = 512
KV_BLOCKS = CONTEXT // _native.KV_BLOCK
PAPER: Any = SimpleNamespace(name="paper", binding=1 << 62, storage=lambda _words: None)
"""Stands in for a device: its buffers are as large as wanted, and do not exist."""


class Counts(NamedTuple):
    """What a step of one row does, and of how many numbers the device reads the weights.

    kernels   dispatches, by the name of their kernel
    weights   bytes of packed matrices that the step reads
    products  multiplications of weights, for each row
    """

    model: str
    layers: int
    kernels: dict[str, int]
    weights: int
    products: int

    @property
    def dispatches(self) -> int:
        """Of all kernels."""
        return sum(self.kernels.values())


def count(name: str) -> Counts:
    """Count a token of a model: of a name or a path, or of a shape in ``shapes.py``."""
    with _open(name) as file:
        shapes = {tensor: info.shape for tensor, info in file.tensors.items()}
        config, graph = model.build(file.metadata, shapes, CONTEXT)
        vectors = read_vectors(graph, file)
        graph = spell_out_orders(graph, vectors)
        weights = DeviceWeights(PAPER)
        weights.matrices = _on_paper(graph, file)
    plan = PackedWeights(weights.matrices, vectors, {}).lower(graph, CONTEXT).calls
    memory = make_memory(PAPER, plan, "f16", KV_BLOCKS, graph)
    program = compile_plan(plan, weights, memory, "f16", Bounds(0, 0, CONTEXT, KV_BLOCKS))
    stored = int(memory.has_states)
    kernels = Counter(
        launch.dispatch.kernel.name
        for launch in launches(program, StepSize(rows=1, logits=1, stored=stored))
    )
    read = [*_reads(program, plan)]
    return Counts(
        name, config.layers, dict(kernels.most_common()),
        round(sum(share * _nbytes(m) for m, share in read)),
        round(sum(share * m.rows * m.cols for m, share in read)),
    )  # fmt: skip


@contextmanager
def _open(name: str) -> Iterator[ModelFile]:
    if name not in SHAPES:
        with GGUFFile(hub.resolve(name)) as file:
            yield file
        return
    with GGUFFile(hub.resolve("smollm2")) as tokenizer:
        yield RandomModel(SHAPES[name], name, tokenizer, format="Q4_K")


def _on_paper(graph: model.Graph, file: ModelFile) -> dict[Any, PackedMatrix]:
    """Return the matrices as if they had been packed, all into one buffer."""
    matrices = {}
    for part, (rows, cols) in matrix_shapes(graph).items():
        format = file.info(part[0]).format
        panel, panels = _native.panel_bytes(format, cols) // 4, -(-rows // LANES)
        pieces = (PanelRange(0, 0, 0, panels),)
        kind = _native.kernel_format(format)
        matrices[part] = PackedMatrix(kind, rows, cols, 1.0, panel, pieces)
    return matrices


def _reads(program: Program, plan: list[calls.Call]) -> Iterator[tuple[PackedMatrix, float]]:
    """Yield the matrices that multiply a row, each with the share of it that is read."""
    for call in plan:
        if isinstance(call, calls.LinearCall):
            for part in call.parts:
                yield program.matrices[part.matrix], 1.0
        elif isinstance(call, calls.ExpertsCall):
            share = call.arguments.choice.used / len(call.experts)
            for expert in call.experts:
                for biased in (*expert.gate, expert.up, expert.down):
                    yield program.matrices[biased.matrix], share


def _nbytes(m: PackedMatrix) -> int:
    return 4 * m.panel_words * -(-m.rows // LANES)
