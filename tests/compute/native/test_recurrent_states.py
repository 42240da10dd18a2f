"""Recurrent states: the same bits whatever the chunks, the company and the slots."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.compute import calls
from cutaway.compute.backends import DRAFT_STATES, KV_BLOCK, Batch
from cutaway.compute.backends.cpu import CpuBackend
from cutaway.compute.backends.reference import ReferenceBackend
from cutaway.compute.loading.open import open_model
from cutaway.compute.model import build
from support.native_plans import (
    TIERS,
    add,
    assert_same_bits,
    int32,
    make_plan_with_rows,
    run_text,
    spans,
)
from support.random_granite_hybrid import write_tiny_granite_hybrid
from support.random_lfm2 import write_tiny_lfm2
from support.random_llama import VOCAB
from support.random_qwen35 import write_tiny_qwen35

BLOCKS = 6
TOKENS = np.random.default_rng(7).integers(3, VOCAB, 100).tolist()


# -- one convolution -------------------------------------------------------------------------------


def convolved(tier, x, weight, bias, *, cuts, threads=1, call=calls.ConvCall):
    """x (sequences, T, n) through a convolution of weight (n, taps), some rows of each a call."""
    count, _, n = x.shape
    plan, source, out = make_plan_with_rows(
        x.reshape(-1, n), tier, threads, kv_blocks=count, context=32
    )
    weights = calls.ConvWeights(np.ascontiguousarray(weight.T).ravel(), bias, *weight.shape)
    add(plan, call((source, 0), (out, 0), weights))
    return stepped(plan.run, n, x, cuts)


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


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_a_centred_convolution_is_its_definition_with_the_same_bits_in_every_way(data):
    n, taps = data.draw(st.sampled_from([1, 16, 37, 600])), data.draw(st.sampled_from([3, 5, 7]))
    count, length = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 20))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = rng.normal(size=(count, length, n)).astype(np.float32)
    weight = rng.normal(size=(n, taps)).astype(np.float32)
    bias = rng.normal(size=n if data.draw(st.booleans()) else 0).astype(np.float32)
    run = partial(convolved, x=x, weight=weight, bias=bias, call=calls.CentredConvCall)
    first = run(TIERS[0], cuts=(length,))
    ends = ((0, 0), (taps // 2, taps // 2), (0, 0))
    padded = np.pad(x.astype(float), ends)
    expected = sum(weight[:, t].astype(float) * padded[:, t : t + length] for t in range(taps))
    expected = expected + bias if len(bias) else expected
    np.testing.assert_allclose(first, expected, rtol=1e-5, atol=1e-5)
    for tier in TIERS:
        assert_same_bits(run(tier, cuts=(length,), threads=3), first)
    if length > 1:
        with pytest.raises(ValueError, match="reads a text in one step, from its first token on"):
            run(TIERS[0], cuts=(1, length))


def stepped(run, out, x, cuts):
    """x (sequences, T, n) through a plan, some rows of each a call: (sequences, T, out)."""
    count, length, _ = x.shape
    result = np.empty((count, length, out), np.float32)
    tables = np.arange(count, dtype=np.int32)[:, None]
    for start, stop in spans(length, cuts):
        part = np.arange(start, stop)
        tokens = int32([s * length + part for s in range(count)]).ravel()
        which = np.repeat(np.arange(count, dtype=np.int32), stop - start)
        every = np.arange(len(tokens), dtype=np.int32)
        found = run(Batch(tokens, int32(np.tile(part, count)), which, tables, every))
        result[:, start:stop] = found.reshape(count, stop - start, out)
    return result


# -- one delta net ---------------------------------------------------------------------------------


def turned(tier, x, shape, scale, dt, *, cuts, threads=1):
    """x (sequences, T, n) through a delta net, some rows of each a call; a and b come last."""
    count, _, n = x.shape
    _, heads, _, values, *_ = shape
    options = {"kv_blocks": count, "context": 32, "width": heads * values}
    plan, source, out = make_plan_with_rows(x.reshape(-1, n), tier, threads, **options)
    views = (source, 0), (source, n - len(dt) - heads), (source, n - heads), (out, 0)
    add(plan, calls.DeltaNetCall(views, shape, scale, dt))
    return stepped(plan.run, heads * values, x, cuts)


def removed_and_added(tier, x, heads, size, *, cuts, threads=1):
    """x (sequences, T, 6 · heads · size) through RWKV-7's heads, some rows of each a call."""
    count, width = len(x), heads * size
    options = {"kv_blocks": count, "context": 32, "width": width}
    plan, source, out = make_plan_with_rows(x.reshape(-1, 6 * width), tier, threads, **options)
    views = *((source, i * width) for i in range(6)), (out, 0)
    add(plan, calls.Wkv(views, heads, size))
    return stepped(plan.run, width, x, cuts)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_rwkv_s_heads_are_their_definition_with_the_same_bits_in_every_way(data):
    heads, size = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([16, 48, 64, 80]))
    count, length = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 20))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = (rng.normal(size=(count, length, 6, heads, size)) / 3).astype(np.float32)
    run = partial(removed_and_added, x=x.reshape(count, length, -1), heads=heads, size=size)
    first = run(TIERS[0], cuts=(length,))
    for sequence, ours in zip(x.astype(float), first, strict=True):
        state = np.zeros((heads, size, size))
        for (v, r, keep, k, removed, loss), row in zip(sequence, ours, strict=True):
            had = np.einsum("hk,hkv->hv", removed, state)
            state = (
                keep[..., None] * state + k[..., None] * v[:, None] - loss[..., None] * had[:, None]
            )
            expected = np.einsum("hk,hkv->hv", r, state)
            near = 1e-4 * max(np.abs(state).max(), 1)
            np.testing.assert_allclose(row.reshape(heads, size), expected, atol=near, rtol=1e-4)
    cuts = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    for tier in TIERS:
        assert_same_bits(run(tier, cuts=cuts, threads=3), first)


def turned_by_definition(x, shape, scale, dt):
    """One sequence (T, n), in float64."""
    k_heads, heads, keys, values, grouped, most = shape
    split, state = k_heads * keys, np.zeros((heads, keys, values))
    out = []
    for row in x.astype(float):
        q, k = (part.reshape(k_heads, keys) for part in (row[:split], row[split : 2 * split]))
        q, k = (each / np.sqrt((each**2).sum(-1, keepdims=True) + 1e-6) for each in (q, k))
        v = row[2 * split :][: heads * values].reshape(heads, values)
        a, b = row[-len(dt) - heads : -heads], row[-heads:]
        of = np.arange(heads) // (heads // k_heads) if grouped else np.arange(heads) % k_heads
        state *= np.exp(scale * np.logaddexp(0, a + dt)).reshape(heads, -1, 1)
        change = (v - np.einsum("hk,hkv->hv", k[of], state)) * (most / (1 + np.exp(-b)))[:, None]
        state += k[of][:, :, None] * change[:, None]
        out.append(np.einsum("hk,hkv->hv", q[of], state) / np.sqrt(keys))
    return np.array(out).reshape(len(x), -1)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_delta_net_is_its_definition_with_the_same_bits_in_every_way(data):
    k_heads, each = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    keys, values = data.draw(st.sampled_from([1, 16, 24, 70])), data.draw(st.sampled_from([16, 80]))
    grouped, most = data.draw(st.booleans()), data.draw(st.sampled_from([1.0, 2.0]))
    shape = (k_heads, k_heads * each, keys, values, grouped, most)
    count, length = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 20))
    rng, heads = np.random.default_rng(data.draw(st.integers(0, 99))), k_heads * each
    factors = heads * data.draw(st.sampled_from([1, keys]))  # of a head's state, or of each key's
    width = 2 * k_heads * keys + heads * values + factors + heads
    x = (rng.normal(size=(count, length, width)) * 2).astype(np.float32)
    x[..., -factors - heads :] *= data.draw(st.sampled_from([1, 40]))  # gates: open or closed
    scale = -np.exp(rng.normal(size=factors)).astype(np.float32)
    dt = rng.normal(size=factors).astype(np.float32)
    run = partial(turned, x=x, shape=shape, scale=scale, dt=dt)
    first = run(TIERS[0], cuts=(length,))
    expected = np.array([turned_by_definition(each, shape, scale, dt) for each in x])
    np.testing.assert_allclose(first, expected, rtol=1e-4, atol=2e-5)
    cuts = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    for tier in TIERS:
        assert_same_bits(run(tier, cuts=cuts, threads=3), first)


# -- Mamba 2 ---------------------------------------------------------------------------------------


def scanned(tier, x, shape, weights, *, cuts, threads=1):
    """x (sequences, T, n) through heads of Mamba 2, some rows of each a call; dt comes last."""
    count, _, n = x.shape
    _, heads, _, values = shape
    options = {"kv_blocks": count, "context": 32, "width": heads * values}
    plan, source, out = make_plan_with_rows(x.reshape(-1, n), tier, threads, **options)
    views = (source, 0), (source, n - heads), (out, 0)
    add(plan, calls.Mamba(views, shape, weights))
    return stepped(plan.run, heads * values, x, cuts)


def scanned_by_definition(x, shape, a, bias, skip):
    """One sequence (T, n), in float64."""
    groups, heads, keys, values = shape
    of, state, out = np.arange(heads) // (heads // groups), np.zeros((heads, keys, values)), []
    for row in x.astype(float):
        v = row[: heads * values].reshape(heads, values)
        k, q = row[heads * values : -heads].reshape(2, groups, keys)[:, of]
        step = np.logaddexp(0, row[-heads:] + bias)
        state *= np.exp(a * step)[:, None, None]
        state += k[:, :, None] * (v * step[:, None])[:, None]
        out.append(np.einsum("hk,hkv->hv", q, state) + skip[:, None] * v)
    return np.array(out).reshape(len(x), -1)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_mamba_2_is_its_definition_with_the_same_bits_in_every_way(data):
    groups, each = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    keys, values = data.draw(st.sampled_from([1, 16, 24, 70])), data.draw(st.sampled_from([16, 80]))
    shape, heads = (groups, groups * each, keys, values), groups * each
    count, length = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 20))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    width = heads * values + 2 * groups * keys + heads
    x = rng.normal(size=(count, length, width)).astype(np.float32)
    x[..., -heads:] *= data.draw(st.sampled_from([1, 40]))  # steps of all sizes
    a = -np.exp(rng.normal(size=heads)).astype(np.float32)
    weights = a, *rng.normal(size=(2, heads)).astype(np.float32)
    run = partial(scanned, x=x, shape=shape, weights=weights)
    first = run(TIERS[0], cuts=(length,))
    expected = np.array([scanned_by_definition(each, shape, *weights) for each in x])
    np.testing.assert_allclose(first, expected, rtol=1e-4, atol=2e-5 * abs(expected).max())
    cuts = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    for tier in TIERS:
        assert_same_bits(run(tier, cuts=cuts, threads=3), first)


# -- the states of a model -------------------------------------------------------------------------


@pytest.fixture(
    scope="module", params=[write_tiny_lfm2, write_tiny_qwen35, write_tiny_granite_hybrid]
)
def path(tmp_path_factory, request):
    name = request.param.__name__.removeprefix("write_tiny_")
    return request.param(tmp_path_factory.mktemp("states") / f"{name}.gguf")


@pytest.fixture(params=["cpu", "reference"])
def backend(path, request):
    with open_model(path) as file:
        shapes = {name: info.shape for name, info in file.tensors.items()}
        _, graph = build(file.metadata, shapes)
        if request.param == "cpu":
            return CpuBackend(graph, file, kv_blocks=BLOCKS, context=256, threads=2)
        weights = {name: file.dequantize_scaled(name) for name in file.tensors}
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
        np.testing.assert_allclose(ours, theirs, atol=1e-3)


def test_what_is_kept_of_a_text(backend, path):
    """Layers keep the last two of 64 inputs; or the last three, and four matrices."""
    kept = {
        "lfm2": ((0, 2, 4), "F32", 3 * 2 * 64 * 4),
        "qwen35": ((0, 2), "F32", 2 * (3 * 192 + 4 * 16 * 32) * 4),
        "granite_hybrid": ((0, 2), "F32", 2 * (3 * 224 + 4 * 24 * 32) * 4),
    }
    assert backend.kv.groups[0].layers == (1, 3)
    assert backend.kv.state == kept[path.stem]


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
    kept = backend.read_state(0).copy()
    keys = [piece.copy() for piece in backend.read_block(0)]
    run_text(backend, 0, TOKENS[50:90], [0, 1])
    assert backend.read_state(4) is None
    backend.write_state(4, kept)
    backend.write_block(4, keys)
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
            backend.read_state(slot)


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
