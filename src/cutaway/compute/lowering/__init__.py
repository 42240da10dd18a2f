"""Lower a graph to the calls that make a plan: fuse its ops, and give each tensor a buffer.

This module knows which weights a plan may read, by number, and which rows of matrices the ops of a
graph read. It knows names and shapes, but not how a backend stores weights; it imports no backend.
On the CPU and in a page, native/calls.cpp builds a plan from the calls.
"""

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

from cutaway.compute.calls import Floats
from cutaway.compute.model import Graph, Op
from cutaway.compute.model.op import Matrix, Slice
from cutaway.files.weights import ModelFile


class WeightTable(NamedTuple):
    """The weights that a plan may read.

    matrices  matrices; a key is a tensor, and the rows of the tensor that an op reads
    vectors   norms, biases and other vectors, by name
    stored    the names of tables that stay in the file, in the order of their numbers
    """

    matrices: Mapping[Slice, Matrix]
    vectors: Mapping[str, Floats]
    stored: Sequence[str] = ()

    def matrices_of(self, op: Op, graph: Graph, role: str = "weight") -> list[Matrix]:
        """Return the matrices that an op reads in this role; experts or heads have one each."""
        parts = op.matrices(graph.shapes)
        return [self.matrices[part] for part in parts if part[0] == op.weights[role]]


def matrix_shapes(graph: Graph) -> dict[Slice, tuple[int, int]]:
    """Return the rows and columns of each matrix, or part of one, in the order of the ops."""
    parts = dict.fromkeys(part for op in graph.ops for part in op.matrices(graph.shapes))
    return {part: (part[2] - part[1], graph.shapes[part[0]][-1]) for part in parts}


def read_vectors(graph: Graph, file: ModelFile, but: Container[str] = ()) -> dict[str, Floats]:
    """Read a graph's vectors in float32: norms, biases, divisors of frequencies, convolutions.

    Biases of experts have a row for each expert. but: the names of vectors to leave out
    """
    names = dict.fromkeys(name for op in graph.ops for name in op.vectors)
    return {name: file.dequantize(name) for name in names if name not in but}
