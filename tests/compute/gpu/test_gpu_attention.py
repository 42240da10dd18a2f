"""Attention has the CPU's bits on a GPU: formats of keys and values, windows, sinks, limits."""

import numpy as np
import pytest

from cutaway.compute import calls
from cutaway.compute.backends import Batch
from cutaway.compute.model.positions import Rope
from support.gpu_plans import assert_same, run_both
from support.native_plans import table

HEADS, KV_HEADS, DIM = 4, 2, 20
WIDTH = (HEADS + 2 * KV_HEADS) * DIM
BACK = 37  # tokens back for which a query has a bias of its own
BLOCKS = np.array([[7, 3, 12, 1, 15, 4, 9, 2, 0, 5, 6, 8, 10, 11, 13, 14]], np.int32)


CUTS = (40, 1, 300, 1)


def attend(device, *, kv="f16", hidden=False, sinks=False, bias=False, of_rows=False, **shape):
    """Rows of one text, so many a step."""
    rng = np.random.default_rng(0)
    qkv = rng.standard_normal((512, WIDTH + HEADS * (1 + BACK))).astype(np.float32)
    width = qkv.shape[1]
    sizes = {"scale": DIM**-0.5, "softcap": 0.0, "window": 0, "reach": 0} | shape
    parts = (0, 0), (0, HEADS * DIM), (0, (HEADS + KV_HEADS) * DIM), (1, 0)
    numbers = rng.standard_normal(HEADS).astype(np.float32) if sinks else calls.NOTHING
    by_distance = rng.standard_normal(HEADS * (2 * (512 + 32) - 1)).astype(np.float32)
    rotation = calls.Rotation(Rope(dim=16, base=10000.0).frequencies(), True, 1.0)
    call = calls.AttendCall(
        parts, calls.AttendShape(HEADS, KV_HEADS, DIM, **sizes), rotation, numbers,
        by_distance if bias else calls.NOTHING,
        calls.RelativeBias((0, WIDTH), per_head=BACK) if of_rows else calls.RelativeBias(),
        (0, WIDTH + HEADS * BACK) if of_rows else calls.NOWHERE,
    )  # fmt: skip
    plan = [
        calls.AddBuffer(width, False), calls.AddBuffer(HEADS * DIM, False),
        calls.EmbedRows(0, (0, 0), "token"), call, calls.SetOutput((1, 0)),
    ]  # fmt: skip
    batches, start = [], 0
    for count in CUTS:
        positions = np.arange(start, start + count, dtype=np.int32)
        rows = np.arange(count, dtype=np.int32)
        hidden_from = None
        if hidden:
            hidden_from = np.full((1, 512), np.inf, np.float32)
            hidden_from[0, 5:60] = 200
        one = np.zeros(count, np.int32)
        batches.append(Batch(positions, positions, one, BLOCKS, rows, None, hidden_from))
        start += count
    assert_same(run_both(device, plan, [("F32", table(qkv))], batches, kv=kv))


@pytest.mark.parametrize(
    "kv",
    [
        "f16", "q8_0,q4_0", "q5_1,q8_0", "q4_0,q5_1",  # each once as keys and once as values
        *(pytest.param(kv, marks=pytest.mark.slow) for kv in ("q8_0", "q5_1", "q4_0")),
    ],
)  # fmt: skip
def test_formats_of_keys_and_values(device, kv):
    attend(device, kv=kv)


@pytest.mark.parametrize(
    "options",
    [
        {"window": 40}, {"window": 40, "chunked": True}, {"softcap": 30.0}, {"sinks": True},
        {"bias": True}, {"hidden": True}, {"of_rows": True},
    ],
    ids=str,
)  # fmt: skip
def test_what_rows_see(device, options):
    attend(device, **options)
