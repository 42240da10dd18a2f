"""What one op of the reference backend makes of rows of random numbers."""

import numpy as np

from cutaway.compute.backends.base import Batch
from cutaway.compute.backends.layout import KV_BLOCK
from cutaway.compute.backends.reference import ReferenceBackend
from cutaway.compute.model.graph import Graph

RNG = np.random.default_rng(0)
ROWS = 6
NEAR = {"rtol": 1e-5, "atol": 1e-5}


def numbers(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def run(x, build, weights=None, positions=None, limits=None):
    """What build(graph, x) makes of the rows x (M, n), one text at the given positions."""
    tensors = {"x.weight": x} | (weights or {})
    graph = Graph({name: w.shape for name, w in tensors.items()})
    build(graph, graph.embed("x"))
    blocks = -(-max(positions or [len(x)]) // KV_BLOCK) + 1
    backend = ReferenceBackend(graph, tensors, kv_blocks=blocks)
    rows = np.arange(len(x), dtype=np.int32)
    places = rows if positions is None else np.array(positions, np.int32)
    tables = np.arange(blocks, dtype=np.int32)[None]
    batch = Batch(rows, places, np.zeros(len(x), np.int32), tables, rows, limits)
    return backend.run(batch)
