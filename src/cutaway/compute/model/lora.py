"""Adapters in a graph (LoRA; Hu et al. 2021, arXiv 2106.09685): y = W x + scale · B (A x).

Knows which matrices can have an adapter, which shapes fit them, and that the products of several
adapters are added in order. No op is added: a linear layer reads two more matrices per adapter. So
does a look-up, whose A has a row for each token t: row t of W, plus scale · B (row t of A).
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from cutaway.compute.model.graph import Graph, Op
from cutaway.compute.model.op import Shapes
from cutaway.compute.model.ops.linear import Adaptable, Linear, Lora
from cutaway.errors import FormatError
from cutaway.files.weights.cursor import quote

A, B = ".lora_a", ".lora_b"
"""The endings of an adapter's two tensors for a matrix, after the name of the matrix.

Their shapes are (rank, in) and (out, rank). For an embedding (tokens, hidden) they are (tokens,
rank) and (hidden, rank), as llama.cpp writes them.
"""


def numbered_name(name: str, number: int) -> str:
    """Return the name that a tensor of adapter ``number`` has in the graph."""
    return f"{name}.{number}" if number else name


def add_adapter(
    graph: Graph, shapes: Shapes, scales: Mapping[str, float], number: int = 0
) -> Graph:
    """Return the graph with an adapter.

    shapes: the shapes of the adapter's tensors; scales: the factor of each matrix's product
    number: how many adapters the graph has already
    FormatError if the graph lacks the matrix of a tensor, or if a tensor does not fit its matrix.
    """
    matrices = matrices_of(shapes)
    plain = [op for op in graph.ops if isinstance(op, Adaptable)]
    layers = {op.weights["weight"] for op in plain if isinstance(op, Linear)}
    tables = {op.weights["weight"] for op in plain if not isinstance(op, Linear)}
    fixed = {
        name for op in graph.ops if not isinstance(op, Adaptable) for name in op.weights.values()
    }
    fixed |= layers & tables
    for name in matrices:
        is_plain = name in layers | tables and name not in fixed
        _check(name, graph.shapes.get(name), is_plain, name in tables, shapes)
    adapter_shapes = {numbered_name(name, number): shape for name, shape in shapes.items()}
    adapted_graph = Graph({**graph.shapes, **adapter_shapes})
    adapted_graph.ops = [
        _add_lora(op, scales, number)
        if isinstance(op, Adaptable) and op.weights["weight"] in matrices
        else op
        for op in graph.ops
    ]
    return adapted_graph


def matrices_of(names: Iterable[str]) -> list[str]:
    """List the matrices that an adapter's tensors change; FormatError for other tensors."""
    tensors = dict.fromkeys(names)
    if not tensors:
        raise FormatError("the adapter has no tensors")
    matrices = dict.fromkeys(name.removesuffix(A).removesuffix(B) for name in tensors)
    for name in matrices:
        if name in tensors:
            raise FormatError(
                f"the tensor {quote(name)} is none of an adapter's, which end in {A} or {B}"
            )
        for ending in (A, B):
            if name + ending not in tensors:
                raise FormatError(f"the adapter lacks the tensor {quote(name + ending)}")
    return [*matrices]


def _add_lora(op: Adaptable, scales: Mapping[str, float], number: int) -> Op:
    name = op.weights["weight"]
    lora = Lora(numbered_name(name + A, number), numbered_name(name + B, number), scales[name])
    return replace(op, loras=(*op.loras, lora))


def _check(
    name: str, shape: tuple[int, ...] | None, is_plain: bool, is_table: bool, shapes: Shapes
) -> None:
    if shape is None:
        raise FormatError(
            f"the adapter changes {quote(name)}, which the model does not have: it was made for "
            "another one"
        )
    if not is_plain or len(shape) != 2:
        raise FormatError(
            f"the adapter changes {quote(name)}, and only matrices of linear layers and "
            "embeddings can have one: not what is both, experts or norms"
        )
    a, b = shapes[name + A], shapes[name + B]
    rank = a[-1] if is_table else a[0]
    first, second = (shape[0], rank) if is_table else (rank, shape[1]), shape[1 if is_table else 0]
    if (a, b) != (first, (second, rank)):
        expected = f"({shape[0]}, rank)" if is_table else f"(rank, {shape[1]})"
        raise FormatError(
            f"the adapter has {a} and {b} for {quote(name)}, which is {shape}: it must be "
            f"{expected} and ({second}, rank), so it was made for another model"
        )
