"""A graph whose adapters are ops of their own: W x, A x, its multiple, and B of that added.

Knows only names and ops, of which the rest of this backend has kernels. What reads the same input
has one A.
"""

from collections.abc import Iterator
from dataclasses import replace

from cutaway.compute.model import Graph, Op, Tensor
from cutaway.compute.model.lora import Lora, loras


def spelled_out(graph: Graph) -> Graph:
    """The same graph without ``loras`` in its ops; the same results by name."""
    made, within = Graph(graph.shapes), dict[tuple[str, str], str]()
    made.ops = [one for op in graph.ops for one in _ops(op, graph, within)]
    return made


def _ops(op: Op, graph: Graph, within: dict[tuple[str, str], str]) -> Iterator[Op]:
    if not (each := loras(op)):
        yield op
        return
    name, width = op.out.name, op.out.width
    alone = Tensor(f"{name} alone", width)
    attrs = {key: value for key, value in op.attrs.items() if key != "loras"}
    yield replace(op, out=alone, attrs=attrs)
    so_far = [alone, *(Tensor(f"{name} with {n}", width) for n in range(1, len(each))), op.out]
    for n, lora in enumerate(each):
        if (lora.a, op.inputs[0]) not in within:
            yield from _inner(op, graph.shapes[lora.a][0], lora, f"{name} inner {n}", within)
        added, rows = Tensor(f"{name} added {n}", width), {"rows": op.attrs["rows"]}
        yield Op("linear", added, (within[lora.a, op.inputs[0]],), {"weight": lora.b}, rows)
        yield Op("add", so_far[n + 1], (so_far[n].name, added.name))


def _inner(
    op: Op, rank: int, lora: Lora, name: str, within: dict[tuple[str, str], str]
) -> Iterator[Op]:
    """A x, and its multiple; ``within`` learns what that is called."""
    inner = Tensor(name, rank)
    within[lora.a, op.inputs[0]] = inner.name
    yield Op("linear", inner, op.inputs, {"weight": lora.a}, {"rows": (0, rank)})
    if lora.scale != 1:
        scaled = Tensor(f"{name} scaled", rank)
        within[lora.a, op.inputs[0]] = scaled.name
        yield Op("scale", scaled, (inner.name,), {}, {"factor": lora.scale})
