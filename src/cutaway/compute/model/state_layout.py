"""Where each op's recurrent state lies in that of a text: one array of float32, op after op."""

from math import prod

from cutaway.compute.model.graph import Graph

_STEP = 16  # numbers: each op's part begins at a multiple, as the kernels read registers of them


def state_layout(graph: Graph) -> tuple[dict[str, slice], int]:
    """The place of each op's state, by the name of its tensor; and how many numbers all take."""
    places, end = dict[str, slice](), 0
    for op in (op for op in graph.ops if "state" in op.attrs):
        size = prod(op.attrs["state"])
        places[op.out.name] = slice(end, end + size)
        end += -(-size // _STEP) * _STEP
    return places, end
