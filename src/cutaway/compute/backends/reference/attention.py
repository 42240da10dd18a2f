"""Attention alone, by its definition: of a text whose queries, keys and values are given."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from cutaway.compute.backends.base import Batch
from cutaway.compute.backends.layout import KV_BLOCK
from cutaway.compute.backends.reference.kv import KVBlocks
from cutaway.compute.backends.reference.ops import attend
from cutaway.compute.backends.reference.run import Array, Run
from cutaway.compute.backends.reference.states import StateSlots
from cutaway.compute.model import Graph, Op


class Attended(NamedTuple):
    """What an op makes of its inputs: output (tokens, width), and weights (heads, tokens, n)."""

    op: Op
    output: Array
    weights: Array


def attention_of(
    graph: Graph, weights: Mapping[str, Array], batch: Batch, tensors: Mapping[str, Array]
) -> Iterator[Attended]:
    """Each op of a graph that attends, in their order.

    weights: by name, those that these ops read
    batch: all rows of one text; nothing is stored in its blocks
    tensors: the ops' inputs by name, (tokens, width)
    """
    blocks, noted = -(-len(batch.tokens) // KV_BLOCK), dict[str, Array]()
    batch = batch._replace(block_tables=np.arange(blocks, dtype=np.int32)[None])
    stored = KVBlocks(graph, blocks, "f16")
    stored.take(range(blocks))
    run = Run(weights, batch, stored, StateSlots(graph, blocks), noted.__setitem__)
    for op in (op for op in graph.ops if op.kind == "attend"):
        output = attend(op, run, *(tensors[name] for name in op.inputs))
        shares = noted.pop(f"{op.out.name}.weights")
        yield Attended(op, output, shares.reshape(op.attrs["heads"], len(output), -1))
