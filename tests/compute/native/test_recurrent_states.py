"""Recurrent states: the same bits whatever the chunks, the company and the slots."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.compute.backends import DRAFT_STATES, KV_BLOCK, Batch
from cutaway.compute.backends.cpu import CpuBackend
from cutaway.compute.backends.reference import ReferenceBackend
from cutaway.compute.loading.open import open_model
from cutaway.compute.model import build
from support.native_plans import TIERS, assert_same_bits, fed, int32, run_text, spans
from support.random_lfm2 import write_tiny_lfm2
from support.random_llama import VOCAB

BLOCKS = 6
TOKENS = np.random.default_rng(7).integers(3, VOCAB, 100).tolist()


# -- one convolution -------------------------------------------------------------------------------


def convolved(tier, x, weight, bias, *, cuts, threads=1):
    """x (sequences, T, n) through a convolution of weight (n, taps), some rows of each a call."""
    count, length, n = x.shape
    plan, source, out = fed(x.reshape(-1, n), tier, threads, kv_blocks=count, context=32)
    plan.conv((source, 0), (out, 0), np.ascontiguousarray(weight.T).ravel(), bias, *weight.shape)
    result = np.empty_like(x)
    for start, stop in spans(length, cuts):
        part = np.arange(start, stop)
        tokens = int32([s * length + part for s in range(count)]).ravel()
        which = np.repeat(np.arange(count, dtype=np.int32), stop - start)
        every = np.arange(len(tokens), dtype=np.int32)
        tables = np.arange(count, dtype=np.int32)[:, None]
        found = plan.run(tokens, int32(np.tile(part, count)), which, tables, every)
        result[:, start:stop] = found.reshape(count, stop - start, n)
    return result


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_convolution_is_its_definition_with_the_same_bits_in_every_way(data):
    n, taps = data.draw(st.sampled_from([1, 16, 37, 600])), data.draw(st.integers(2, 7))
    count, length = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 20))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = rng.normal(size=(count, length, n)).astype(np.float32)
    weight = rng.normal(size=(n, taps)).astype(np.float32)
    bias = rng.normal(size=n if data.draw(st.booleans()) else 0).astype(np.float32)
    run = partial(convolved, x=x, weight=weight, bias=bias)
    first = run(TIERS[0], cuts=(length,))
    padded = np.concatenate([np.zeros((count, taps - 1, n)), x.astype(float)], axis=1)
    expected = sum(weight[:, t].astype(float) * padded[:, t : t + length] for t in range(taps))
    expected = expected + bias if len(bias) else expected
    np.testing.assert_allclose(first, expected, rtol=1e-5, atol=1e-5)
    cuts = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    for tier in TIERS:
        assert_same_bits(run(tier, cuts=cuts, threads=3), first)


# -- the states of a model -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny_lfm2(tmp_path_factory.mktemp("states") / "tiny.gguf")


@pytest.fixture(params=["cpu", "reference"])
def backend(path, request):
    with open_model(path) as file:
        shapes = {name: info.shape for name, info in file.tensors.items()}
        _, graph = build(file.metadata, shapes)
        if request.param == "cpu":
            return CpuBackend(graph, file, kv_blocks=BLOCKS, context=256, threads=2)
        weights = {name: file.multiplied(name) for name in file.tensors}
        return ReferenceBackend(graph, weights, BLOCKS)


def batch_of(start, tokens, blocks, states=None):
    at = np.arange(len(tokens), dtype=np.int32)
    table = np.array([blocks], np.int32)
    states = None if states is None else np.array(states, np.int32).reshape(-1, 2)
    return Batch(int32(tokens), at + start, 0 * at, table, at, states=states)


def same(backend, ours, theirs):
    """The reference backend's products may round otherwise where there are fewer rows."""
    if backend.name == "cpu":
        assert_same_bits(ours, theirs)
    else:
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_what_is_kept_of_a_text(backend):
    """Three of five layers keep the last two of 64 inputs."""
    assert backend.kv.state == ((0, 2, 4), "F32", 3 * 2 * 64 * 4)
    assert [group.layers for group in backend.kv.groups] == [(1, 3)]


def test_a_text_goes_on_from_the_state_after_any_of_its_rows(backend):
    """As after drafts of which the first so many were right."""
    plain = run_text(backend, 0, TOKENS[:50], [0, 1]).copy()
    for right in range(6):
        first = BLOCKS
        backend.run(batch_of(0, TOKENS[:30], [2, 3]))
        wrong = [5] * (5 - right)
        tokens = [*TOKENS[30 : 30 + right], *wrong]
        backend.run(batch_of(30, tokens, [2, 3], [(i, first + i) for i in range(5)]))
        if right:
            last = 30 + right - 1
            backend.copy_states([(first + right - 1, [2, 3][last // KV_BLOCK])])
        rest = run_text(backend, 30 + right, TOKENS[30 + right : 50], [2, 3])
        same(backend, rest, plain[30 + right :])


def test_a_fork_goes_on_from_a_state_that_others_go_on_from(backend):
    plain = run_text(backend, 0, TOKENS, [0, 1, 2, 3])
    backend.run(batch_of(0, TOKENS[:32], [4]))
    for _ in range(2):  # blocks 0 and 1 are written over; the state of 4 is left as it is
        found = backend.run(batch_of(32, TOKENS[32:64], [4, 0])).copy()
        same(backend, found, plain[32:64])


def test_a_state_s_memory_is_all_there_is_of_it(backend):
    plain = run_text(backend, 0, TOKENS[:40], [0, 1])
    run_text(backend, 0, TOKENS[:32], [0])
    kept = backend.state_memory(0).copy()
    keys = [piece.copy() for piece in backend.block_memory(0)]
    run_text(backend, 0, TOKENS[50:90], [0, 1])
    assert backend.state_memory(4) is None
    backend.state_memory(4, new=True)[:] = kept
    for to, piece in zip(backend.block_memory(4), keys, strict=True):
        to[:] = piece
    same(backend, run_text(backend, 32, TOKENS[32:40], [4, 5]), plain[32:])


def test_a_batch_that_cannot_be_is_refused(backend):
    run_text(backend, 0, TOKENS[:32], [0])
    with pytest.raises(ValueError, match="goes on from a state that was freed"):
        backend.run(batch_of(32, TOKENS[32:34], [5, 1]))
    backend.copy_states([(0, -1)])
    with pytest.raises(ValueError, match="goes on from a state that was freed"):
        backend.run(batch_of(32, TOKENS[32:34], [0, 1]))
    for slot in (-1, BLOCKS + DRAFT_STATES):
        with pytest.raises(ValueError, match=r"slot|names no state"):
            backend.run(batch_of(0, TOKENS[:2], [0], [(1, slot)]))
        with pytest.raises(ValueError, match=r"slot|states"):
            backend.copy_states([(slot, 0)])
        with pytest.raises(ValueError, match=r"slot|state"):
            backend.state_memory(slot)


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ([(1, 0), (0, 1)], "not in order"), ([(2, 0)], "not in order"),
        ([(0, 1), (1, 1)], "two states are stored in one slot"),
    ],
)  # fmt: skip
def test_the_native_backend_refuses_states_that_overwrite_each_other(path, states, said):
    with open_model(path) as file:
        shapes = {name: info.shape for name, info in file.tensors.items()}
        backend = CpuBackend(build(file.metadata, shapes)[1], file, kv_blocks=2, context=64)
    with pytest.raises(ValueError, match=said):
        backend.run(batch_of(0, TOKENS[:2], [0], states))


def test_a_state_is_not_overwritten_while_another_sequence_goes_on_from_it(path):
    with open_model(path) as file:
        shapes = {name: info.shape for name, info in file.tensors.items()}
        backend = CpuBackend(build(file.metadata, shapes)[1], file, kv_blocks=3, context=64)
    backend.run(batch_of(0, TOKENS[:32], [0]))
    at, tables = int32([0, 32]), int32([[2, -1], [0, 1]])
    batch = Batch(int32([5, 6]), at, int32([0, 1]), tables, int32([0]), states=int32([[0, 0]]))
    with pytest.raises(ValueError, match="that another sequence goes on from"):
        backend.run(batch)
