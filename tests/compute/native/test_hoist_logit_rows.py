"""Rows that nobody wants leave the graph behind the last attention, and change nothing else."""

from copy import copy

import numpy as np

from cutaway.compute.backends import Batch
from cutaway.compute.backends.cpu.compile import hoist_logit_rows
from cutaway.compute.backends.reference import ReferenceBackend
from cutaway.compute.model import build
from cutaway.files.weights import GGUFFile
from support.random_llama import write_tiny_llama


def tiny(tmp_path):
    with GGUFFile(write_tiny_llama(tmp_path / "tiny.gguf")) as file:
        shapes = {name: info.shape for name, info in file.tensors.items()}
        weights = {name: file.dequantize(name) for name in file.tensors}
        return build(file.metadata, shapes)[1], weights


def test_only_wanted_rows_reach_the_last_mlp(tmp_path):
    graph, _ = tiny(tmp_path)
    ops = hoist_logit_rows(graph.ops)
    kinds = [op.kind for op in ops]
    last = len(kinds) - 1 - kinds[::-1].index("attend")
    assert kinds[last + 1 : last + 3] == ["logit_rows", "logit_rows"]  # heads' output and residual
    assert kinds.count("logit_rows") == 2
    assert [k for k in kinds if k != "logit_rows"] == [
        op.kind for op in graph.ops if op.kind != "logit_rows"
    ]


def test_the_definition_runs_the_changed_graph_to_the_same_logits(tmp_path):
    graph, weights = tiny(tmp_path)
    early = copy(graph)
    early.ops = hoist_logit_rows(graph.ops)
    ints = [np.array(x, np.int32) for x in ([5, 6, 7], [0, 1, 2], [0, 0, 0], [[0]], [0, 2])]
    plain, changed = (ReferenceBackend(g, weights, 1).run(Batch(*ints)) for g in (graph, early))
    assert plain.shape == changed.shape == (2, plain.shape[1])
    np.testing.assert_allclose(changed, plain, rtol=1e-4, atol=1e-5)  # BLAS sums by shape
