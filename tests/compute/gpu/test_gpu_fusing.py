"""What a kernel computes beside its own call has the bits of the calls apart."""

import numpy as np
import pytest

from cutaway.compute import calls
from cutaway.compute.backends import Batch
from cutaway.compute.backends.gpu.launches import StepSize, launches
from cutaway.compute.model.positions import Rope
from support.gpu_plans import assert_same, make_runner, rows_apart, run_both
from support.native_plans import pack, random_bytes, table

WIDTH = 256


@pytest.mark.parametrize("format", ["Q4_1", "Q6_K"])
def test_a_gate_quantises_what_the_next_matrix_reads(device, format):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, WIDTH)).astype(np.float32)
    gate, up, down = (
        (format, pack(format, random_bytes(rng, format, WIDTH, WIDTH), WIDTH, WIDTH))
        for _ in range(3)
    )
    blocks = calls.Normalise(False, (0, 0), WIDTH, calls.Norm(), calls.Places(act=2))
    gated = [calls.LinearPart(1, (1, 0)), calls.LinearPart(2, (1, 0))]
    places = calls.Places(act=2)
    plan = [
        calls.AddBuffer(WIDTH, False), calls.AddBuffer(WIDTH, False), calls.AddBuffer(WIDTH, True),
        calls.EmbedRows(0, (0, 0), "token"), blocks,
        calls.LinearCall(False, places, calls.Finish(gate=("silu_mul",)), gated),
        blocks._replace(x=(1, 0)),
        calls.LinearCall(False, places, calls.Finish(adds=True), [calls.LinearPart(3, (0, 0))]),
        blocks,
        calls.LinearCall(False, places, calls.Finish(), [calls.LinearPart(1, (1, 0))]),
        calls.SetOutput((1, 0)),
    ]  # fmt: skip
    matrices = [("F32", table(x)), gate, up, down]
    assert_same(run_both(device, plan, matrices, [rows_apart(n) for n in (1, 2, 3, 6, 40)]))
    program = make_runner(device, plan, matrices).program
    names = [launch.dispatch.kernel.name for launch in launches(program, StepSize(1, 1))]
    assert names.count("normalise") == 2  # the first, and that of a sum, which no kernel has whole


@pytest.mark.parametrize("normed", [False, True])
def test_rows_of_several_texts_attend_in_tiles_of_their_own(device, normed):
    """And heads of queries and keys are normed by what rotates and stores them."""
    heads, kv_heads, dim = 6, 2, 32
    width = (heads + 2 * kv_heads) * dim
    rng = np.random.default_rng(0)
    qkv = rng.standard_normal((64, width)).astype(np.float32)
    weights = rng.standard_normal((2, dim)).astype(np.float32)
    views = [(0, 0), (0, heads * dim), (0, (heads + kv_heads) * dim), (1, 0)]
    norms = [
        calls.Normalise(
            False, views[i], count * dim, calls.Norm(weights[i], eps=1e-6, group=dim),
            calls.Places((2 + i, 0)),
        )
        for i, count in enumerate((heads, kv_heads))
    ]  # fmt: skip
    if normed:
        views[:2] = (2, 0), (3, 0)
    call = calls.AttendCall(
        tuple(views),
        calls.AttendShape(heads, kv_heads, dim, scale=dim**-0.5, softcap=0.0, window=0, reach=0),
        calls.Rotation(Rope(dim=dim, base=10000.0).frequencies(), True, 1.0),
    )
    plan = [
        calls.AddBuffer(width, False), *[calls.AddBuffer(heads * dim, False)] * 3,
        calls.EmbedRows(0, (0, 0), "token"), *(norms if normed else []), call,
        calls.SetOutput((1, 0)),
    ]  # fmt: skip
    counts = (20, 1, 13)
    rows = np.arange(sum(counts), dtype=np.int32)
    batch = Batch(
        rows, np.concatenate([np.arange(n, dtype=np.int32) for n in counts]),
        np.repeat(np.arange(3, dtype=np.int32), counts), np.array([[5], [2], [9]], np.int32), rows,
    )  # fmt: skip
    assert_same(run_both(device, plan, [("F32", table(qkv))], [batch]))
    program = make_runner(device, plan, [("F32", table(qkv))]).program
    names = [launch.dispatch.kernel.name for launch in launches(program, StepSize(1, 1))]
    assert names == ["embed_float", "store", "attend"]


def test_commands_of_the_next_step_are_encoded_while_one_runs(device, monkeypatch):
    x = np.random.default_rng(0).standard_normal((40, WIDTH)).astype(np.float32)
    plan = [
        calls.AddBuffer(WIDTH, False), calls.EmbedRows(0, (0, 0), "token"), calls.SetOutput((0, 0))
    ]  # fmt: skip
    runner = make_runner(device, plan, [("F32", table(x))])
    encoded = list[int]()
    encode = runner._encode
    monkeypatch.setattr(
        runner, "_encode", lambda size: (encoded.append(size.rows), encode(size))[1]
    )
    for rows, ahead in ((1, [1]), (1, [1, 1]), (1, [1]), (3, [3]), (1, [1]), (40, [40])):
        batch = rows_apart(rows)
        tokens = (batch.tokens + len(encoded)) % 40
        assert runner.run(batch._replace(tokens=tokens)).tobytes() == x[tokens].tobytes()
        assert encoded == ahead
        encoded.clear()
