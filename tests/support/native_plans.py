"""Small native plans for the tests: one matrix, or one attention, fed with numbers of our choice.

The first op of a plan is an embedding, so its table holds the rows that the op under test reads:
token i is row i. A result row is as long as that table has rows, hence the padding.
"""

import numpy as np

from cutaway.base import _native
from cutaway.compute.model.rope import Rope
from cutaway.files.weights import FORMATS
from support.random_llama import random_matrix

TIERS = tuple(_native.tiers().split(","))
QUANTISED = tuple(name for name in FORMATS if name not in ("F32", "F16", "BF16"))
FLOATS = ("F32", "F16", "BF16")
NOWHERE = (-1, 0)
NO_WEIGHT = np.empty(0, np.float32)


def random_bytes(rng, name, rows, cols):
    """A matrix's bytes as a file has them: random codes, ordinary finite scales."""
    return np.ascontiguousarray(random_matrix(rng, name, (rows, cols), 1.0)).view(np.uint8).ravel()


def pack(name, raw, rows, cols, threads=1):
    arena = _native.Arena(_native.packed_bytes(name, rows, cols))
    return arena.pack(_native.Pool(threads), name, raw, rows, cols)


def table(numbers):
    numbers = np.ascontiguousarray(numbers, np.float32)
    return pack("F32", numbers.view(np.uint8).ravel(), *numbers.shape)


def new_plan(tier, threads=1, kv_blocks=1, context=32, prefetch="", kv="f16"):
    return _native.Plan(_native.Pool(threads), tier, kv_blocks, context, prefetch, kv)


def int32(values):
    return np.array(values, np.int32)


def linear(tier, name, raw, rows, x, threads=1, finish="store"):
    """x (M, cols) times a matrix of `rows` rows in the format `name`: (M, rows)."""
    return run_apart(linear_plan(tier, name, raw, rows, x, threads, finish), len(x))[:, :rows]


def linear_plan(tier, name, raw, rows, x, threads=1, finish="store", prefetch=""):
    """Of which `run_apart` gives what `linear` does. A gate is that of the matrix with itself."""
    cols, count = x.shape[1], len(x)
    width = max(rows, count)
    fed = np.zeros((width, cols), np.float32)
    fed[:count] = x
    plan = new_plan(tier, threads, kv_blocks=1, context=32, prefetch=prefetch)
    source = plan.buffer(cols, False)
    act = -1 if name in FLOATS else plan.buffer(cols + 64, True)  # buffers are shared: the widest
    out = plan.buffer(width, False)
    plan.embed(table(fed), (source, 0))
    if act >= 0:
        plan.normalise(False, (source, 0), cols, None, _native.Places(act=act))
    weight = pack(name, raw, rows, cols, threads)
    gate = None if finish == "store" else finish
    no_bias: list[float] = []
    parts = [(weight, (out, 0), no_bias)] * (2 if gate else 1)
    plan.linear(False, _native.Places((source, 0), act), parts, gate=gate)
    plan.output((out, 0))
    return plan


def run_apart(plan, count, first=0):
    """Token first + i as row i, each a sequence of its own, all with logits."""
    every, zeros = np.arange(count, dtype=np.int32), np.zeros(count, np.int32)
    return plan.run(every + first, zeros, every, np.zeros((count, 1), np.int32), every).copy()


def turns(rope_dim, base):
    return Rope(dim=rope_dim, base=base).frequencies() if rope_dim else []


def attention(
    tier,
    qkv,
    shape,
    *,
    threads=1,
    tables,
    cuts,
    limits=None,
    kv="f16",
    stored=None,
    hidden_from=None,
):
    """qkv (sequences, T, width) through an attend op, `cuts` rows a call: (sequences, T, heads·d).

    All sequences go through every call side by side, sequence s in the blocks tables[s].
    limits (sequences, T): the last position that each row sees. hidden_from (sequences, T): as
    ``Batch.hidden_from``. stored: a list that gets the bytes of every KV block.
    """
    heads, kv_heads, d = shape["heads"], shape["kv_heads"], shape["head_dim"]
    count, length, width = qkv.shape
    plan = new_plan(tier, threads, kv_blocks=int(np.max(tables)) + 1, context=length, kv=kv)
    source = plan.buffer(width, False)
    out = plan.buffer(max(count * length, heads * d), False)
    rows = np.zeros((max(count * length, heads * d), width), np.float32)
    rows[: count * length] = qkv.reshape(-1, width)
    plan.embed(table(rows), (source, 0))
    plan.attend(
        (source, 0), (source, heads * d), (source, (heads + kv_heads) * d), (out, 0),
        _native.AttendShape(
            heads=heads, kv_heads=kv_heads, head_dim=d, scale=shape.get("scale", d**-0.5),
            softcap=shape.get("softcap", 0.0), window=shape.get("window", 0),
            reach=shape.get("reach", 0),
        ),
        _native.Rotation(
            turns(shape.get("rope_dim", 0), shape.get("base", 10000.0)),
            shape.get("rotate_half", False), shape.get("attention_factor", 1.0),
        ),
    )  # fmt: skip
    plan.output((out, 0))
    result = np.empty((count, length, heads * d), np.float32)
    hidden = None
    if hidden_from is not None:
        hidden = np.full((count, np.shape(tables)[1] * 32), np.inf, np.float32)
        hidden[:, :length] = hidden_from
    for start, stop in spans(length, cuts):
        part = np.arange(start, stop)
        tokens = int32([s * length + part for s in range(count)]).ravel()
        which = np.repeat(np.arange(count, dtype=np.int32), stop - start)
        every = np.arange(len(tokens), dtype=np.int32)
        seen = None if limits is None else int32(limits[:, start:stop]).ravel()
        logits = plan.run(
            tokens, int32(np.tile(part, count)), which, int32(tables), every, seen, hidden
        )
        result[:, start:stop] = logits[:, : heads * d].reshape(count, stop - start, -1)
    if stored is not None:
        stored += [plan.block_memory(block, True)[0].copy() for block in np.unique(tables)]
    return result


def spans(length, cuts):
    """(start, stop) of each call; the last of the cuts is repeated to the end."""
    start, i = 0, 0
    while start < length:
        stop = min(length, start + cuts[min(i, len(cuts) - 1)])
        yield start, stop
        start, i = stop, i + 1


def assert_same_bits(ours, theirs):
    np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))
