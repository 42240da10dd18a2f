"""Spells out adapters as ops that this backend has kernels for: y = W x + B (scale · A x).

Knows names and ops only. Linear layers that share an input and an A compute A x once.
"""

from collections.abc import Iterator
from dataclasses import replace

from cutaway.compute.model import Graph, Op, Tensor
from cutaway.compute.model.lora import Lora, loras


def spelled_out(graph: Graph) -> Graph:
    """The same graph, with the same results by name, without ``loras`` in its ops."""
    made, within = Graph(graph.shapes), dict[tuple[str, tuple[str, ...]], str]()
    made.ops = [one for op in graph.ops for one in _ops(op, graph, within)]
    return made


def _ops(op: Op, graph: Graph, within: dict[tuple[str, tuple[str, ...]], str]) -> Iterator[Op]:
    if not (each := loras(op)):
        yield op
        return
    name, width = op.out.name, op.out.width
    alone = Tensor(f"{name} alone", width)
    attrs = {key: value for key, value in op.attrs.items() if key != "loras"}
    yield replace(op, out=alone, attrs=attrs)
    so_far = [alone, *(Tensor(f"{name} with {n}", width) for n in range(1, len(each))), op.out]
    for n, lora in enumerate(each):
        if (lora.a, op.inputs) not in within:
            yield from _inner(op, graph.shapes[lora.b][1], lora, f"{name} inner {n}", within)
        added, rows = Tensor(f"{name} added {n}", width), op.attrs.get("rows", (0, width))
        read = (within[lora.a, op.inputs],)
        yield Op("linear", added, read, {"weight": lora.b}, {"rows": rows})
        yield Op("add", so_far[n + 1], (so_far[n].name, added.name))


def _inner(
    op: Op, rank: int, lora: Lora, name: str, within: dict[tuple[str, tuple[str, ...]], str]
) -> Iterator[Op]:
    """scale · A x, or scale times A's row of a token; its name is added to ``within``."""
    inner, rows = Tensor(name, rank), {"rows": (0, rank)} if op.kind == "linear" else {}
    within[lora.a, op.inputs] = inner.name
    yield Op(op.kind, inner, op.inputs, {"weight": lora.a}, rows)
    if lora.scale != 1:
        scaled = Tensor(f"{name} scaled", rank)
        within[lora.a, op.inputs] = scaled.name
        yield Op("scale", scaled, (inner.name,), {}, {"factor": lora.scale})
