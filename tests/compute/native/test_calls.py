"""A plan's calls as data: what one list says is a plan, and a bad one is refused in a sentence."""

from random import Random

import pytest

from cutaway.base import _native
from cutaway.compute.calls import plain
from cutaway.compute.loading.open import open_model
from cutaway.compute.lowering import matrix_shapes, read_vectors
from cutaway.compute.lowering.compile import spell_out_orders
from cutaway.compute.lowering.emit import lower
from cutaway.compute.lowering.packing import pack_matrices, weight_table
from cutaway.compute.model import build
from cutaway.features.page.plan import as_lists
from support.fuzz.mutation import mutate_json
from support.native_plans import new_plan, table
from support.random_granite_hybrid import write_tiny_granite_hybrid
from support.random_lfm2 import write_tiny_lfm2
from support.random_llama import write_tiny_llama
from support.random_qwen35 import write_tiny_qwen35

CONTEXT = 64
BUFFER, ROWS = ["AddBuffer", 4, False], ["EmbedRows", 0, [0, 0], "token"]


def refused(calls):
    """What is said of these calls."""
    try:
        new_plan("").add(calls, [table([[1, 2, 3, 4]])])
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("calls", "sentence"),
    [
        ([["Nothing"]], "a plan has no call 'Nothing'"),
        ([[*BUFFER, 1]], "AddBuffer has 2 arguments"),
        ([["AddBuffer", 0, False]], "a buffer cannot be 0 wide"),
        ([["AddBuffer", float("nan"), False]], "a number is larger than it may be"),
        ([["AddBuffer", 2**31, False]], "a number is larger than it may be"),
        ([ROWS], "a plan has no such buffer, or column of one"),
        ([BUFFER, ["EmbedRows", 0, [0, 4], "token"]], "a plan has no such buffer"),
        ([BUFFER, ["EmbedRows", 1, [0, 0], "token"]], "a number names no matrix"),
        ([BUFFER, ["EmbedRows", 0, [0, 0], "letter"]], "'letter' is not known"),
        ([BUFFER, ["EmbedRows", 0, [0], "token"]], "a list has not as many items"),
        ([BUFFER, ["EmbedRows", 0, 2]], "EmbedRows has 3 arguments"),
        ([BUFFER, ["Reorder", False, [0, 0], 7, [0, 0]]], "more items than there are numbers"),
    ],
)
def test_what_cannot_be_is_said(calls, sentence):
    assert sentence in refused(calls)


def test_what_is_no_data_is_refused():
    for wrong in (None, {"AddBuffer": 4}, [["AddBuffer", None, False]], object()):
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            new_plan("").add(wrong, [])


WRITERS = (write_tiny_llama, write_tiny_lfm2, write_tiny_granite_hybrid, write_tiny_qwen35)


def lowered(path, apart):
    """The calls of a model's plan, and the matrices that they name."""
    with open_model(path) as file:
        graph = build(file.metadata, {name: info.shape for name, info in file.tensors.items()})[1]
        matrices = pack_matrices(matrix_shapes(graph), file, _native.Pool(1))
        vectors = read_vectors(graph, file)
    weights = weight_table(matrices, vectors)
    emitter = lower(
        spell_out_orders(graph, vectors), weights, CONTEXT, apart=apart, keeps_all=apart
    )
    return as_lists(plain(emitter.calls)), [*matrices.values()]


@pytest.mark.parametrize("write", WRITERS)
def test_changed_calls_are_refused_in_a_sentence_or_are_a_plan(write, tmp_path):
    """What crashes ends the tests."""
    path, accepted = write(tmp_path / "tiny.gguf"), 0
    for apart in (False, True):
        calls, matrices = lowered(path, apart)
        for seed in range(150):
            plan = new_plan("generic", kv_blocks=2, context=CONTEXT)
            try:
                plan.add(mutate_json(Random(seed), calls), matrices)
                accepted += 1
            except (
                ValueError,
                TypeError,
                RuntimeError,
                OverflowError,
                UnicodeEncodeError,
            ) as error:
                assert str(error)
    assert 0 < accepted < 300
