"""A graph whose adapters are ops of their own: W x, A x, its multiple, and B of that added.

Knows only names and ops, of which the rest of this backend has kernels. What reads the same input
has one A. Refuses to know what becomes of the ops.
"""

from collections.abc import Iterator
from dataclasses import replace

from cutaway.model import Graph, Op, Tensor


def spelled_out(graph: Graph) -> Graph:
    """The same graph without ``lora_a`` and ``lora_b`` in its ops; the same results by name."""
    made, within = Graph(graph.shapes), dict[tuple[str, str], str]()
    made.ops = [one for op in graph.ops for one in _ops(op, graph, within)]
    return made


def _ops(op: Op, graph: Graph, within: dict[tuple[str, str], str]) -> Iterator[Op]:
    if "lora_a" not in op.weights:
        yield op
        return
    name, width = op.out.name, op.out.width
    weights = {role: w for role, w in op.weights.items() if not role.startswith("lora")}
    alone, added = Tensor(f"{name} alone", width), Tensor(f"{name} added", width)
    yield replace(op, out=alone, weights=weights)
    a, b = op.weights["lora_a"], op.weights["lora_b"]
    if (a, op.inputs[0]) not in within:
        inner, factor = Tensor(f"{name} inner", graph.shapes[a][0]), op.attrs["lora_scale"]
        within[a, op.inputs[0]] = inner.name
        yield Op("linear", inner, op.inputs, {"weight": a}, {"rows": (0, inner.width)})
        if factor != 1:
            scaled = Tensor(f"{name} scaled", inner.width)
            within[a, op.inputs[0]] = scaled.name
            yield Op("scale", scaled, (inner.name,), {}, {"factor": factor})
    rows = {"rows": op.attrs["rows"]}
    yield Op("linear", added, (within[a, op.inputs[0]],), {"weight": b}, rows)
    yield Op("add", op.out, (alone.name, added.name))
