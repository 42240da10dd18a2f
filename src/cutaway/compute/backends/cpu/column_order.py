"""Spells out act-order as ops that this backend has kernels for.

A matrix whose columns are in another order than its input's numbers reads a copy of these.
Knows names, ops and the orders. Linear layers that share an input and an order share the copy.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from cutaway.compute.backends.cpu.compile import Vector
from cutaway.compute.model import Graph, Op, Tensor


def ordered(graph: Graph, vectors: Mapping[str, Vector]) -> Graph:
    """The same graph, with the same results by name, in which no linear layer has an order.

    vectors: the orders by their names
    """
    made, copies = Graph(graph.shapes), dict[tuple[str, bytes], str]()
    made.ops = [one for op in graph.ops for one in _ops(op, vectors, copies)]
    return made


def _ops(
    op: Op, vectors: Mapping[str, Vector], copies: dict[tuple[str, bytes], str]
) -> Iterator[Op]:
    if op.kind != "linear" or "order" not in op.weights:
        yield op
        return
    order, (x,) = op.weights["order"], op.inputs
    key = x, vectors[order].tobytes()
    if key not in copies:
        copy = Tensor(f"{op.out.name} input in order", len(vectors[order]))
        copies[key] = copy.name
        yield Op("reorder", copy, (x,), {"order": order})
    weights = {role: name for role, name in op.weights.items() if role != "order"}
    yield replace(op, inputs=(copies[key],), weights=weights)
