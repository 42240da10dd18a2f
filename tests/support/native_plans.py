"""Small native plans for the tests: one op that reads given numbers; batches of texts.

The first op of a plan is a look-up, so its table holds the rows that the op under test reads.
"""

import numpy as np

from cutaway.base import _native
from cutaway.compute import calls
from cutaway.compute.backends import Batch
from cutaway.compute.model.positions import Rope
from cutaway.engine.scheduled import lay_rows
from cutaway.files.weights import FORMATS
from support.random_llama import random_matrix

TIERS = tuple(_native.tiers().split(","))
FLOATS = ("F32", "F16", "BF16")
GROUPED_FLOATS = tuple(name for name in FORMATS if name.startswith(("FP8", "NF4")))
QUANTISED = tuple(name for name in FORMATS if name not in (*FLOATS, *GROUPED_FLOATS))
NO_WEIGHT = np.empty(0, np.float32)


def random_bytes(rng, name, rows, cols):
    """Return a matrix's bytes as in a file: random codes, ordinary finite scales."""
    return np.ascontiguousarray(random_matrix(rng, name, (rows, cols), 1.0)).view(np.uint8).ravel()


def pack(name, raw, rows, cols, threads=1):
    arena = _native.Arena(_native.packed_bytes(name, rows, cols))
    return arena.pack(_native.Pool(threads), name, raw, rows, cols)


def table(numbers):
    numbers = np.ascontiguousarray(numbers, np.float32)
    return pack("F32", numbers.view(np.uint8).ravel(), *numbers.shape)


def new_plan(tier, threads=1, kv_blocks=1, context=32, prefetch="", kv="f16"):
    return _native.Plan(_native.Pool(threads), tier, kv_blocks, context, prefetch, kv)


def add(plan, *more, matrices=()):
    """Add calls to a plan. matrices: those that the calls name by number."""
    plan.add(calls.plain(more), [*matrices])


def int32(values):
    return np.array(values, np.int32)


def make_plan_with_rows(rows, tier, threads=1, *, width=None, **options):
    """Return (plan, source, out): the plan looks up row i for token i, and returns the buffer out.

    rows (count, n), looked up into source; out: `width` numbers a row, else n
    """
    n = rows.shape[1]
    plan = new_plan(tier, threads, **options)
    source, out = 0, 1
    add(plan, calls.AddBuffer(n, False), calls.AddBuffer(width or n, False))
    add(
        plan,
        calls.EmbedRows(0, (source, 0), "token"),
        calls.SetOutput((out, 0)),
        matrices=[table(rows)],
    )
    return plan, source, out


def linear(tier, name, raw, rows, x, threads=1, finish="store"):
    """Return x (M, cols) times a matrix of `rows` rows in the format `name`: (M, rows)."""
    return run_apart(linear_plan(tier, name, raw, rows, x, threads, finish), len(x))


def linear_plan(tier, name, raw, rows, x, threads=1, finish="store", prefetch=""):
    """Return the plan that `linear` runs. A gate has the matrix twice."""
    cols = x.shape[1]
    plan, source, out = make_plan_with_rows(x, tier, threads, width=rows, prefetch=prefetch)
    act = quantise_if_needed(
        plan, name, (source, 0), cols, cols + 64
    )  # buffers are shared: the widest
    gate = () if finish == "store" else (finish,)
    places, parts = (
        calls.Places((source, 0), act),
        [calls.LinearPart(0, (out, 0))] * (2 if gate else 1),
    )
    matrix = pack(name, raw, rows, cols, threads)
    add(plan, calls.LinearCall(False, places, calls.Finish(gate=gate), parts), matrices=[matrix])
    return plan


def quantise_if_needed(plan, name, x, cols, width):
    """Return the buffer of x as quant blocks if matrices of this format read those; else -1."""
    if name not in QUANTISED:
        return -1
    to_blocks = calls.Normalise(False, x, cols, calls.Norm(), calls.Places(act=2))
    add(plan, calls.AddBuffer(width, True), to_blocks)
    return 2


def run_apart(plan, count, first=0):
    """Run token first + i as row i, each in a sequence of its own; return all outputs."""
    rows, zeros = np.arange(count, dtype=np.int32), np.zeros(count, np.int32)
    tables = np.zeros((count, 1), np.int32)
    return plan.run(Batch(rows + first, zeros, rows, tables, rows)).copy()


def attention(
    tier, qkv, shape, *, tables, cuts, threads=1, limits=None, kv="f16", stored=None,
    hidden_from=None,
):  # fmt: skip
    """Run qkv (sequences, T, width) through an attend op, `cuts` rows a call.

    Return (sequences, T, heads·d). Every call has all sequences, sequence s in blocks tables[s].
    limits, hidden_from (sequences, T): see `Batch`
    stored: a list that gets the bytes of every KV block
    """
    count, length, width = qkv.shape
    options = {"kv_blocks": int(np.max(tables)) + 1, "context": length, "kv": kv}
    n = shape["heads"] * (shape.get("value_dim") or shape["head_dim"])
    plan, source, out = make_plan_with_rows(
        qkv.reshape(-1, width), tier, threads, width=n, **options
    )
    add_attend(plan, source, out, shape)
    result, hidden = np.empty((count, length, n), np.float32), None
    if hidden_from is not None:
        hidden = np.full((count, np.shape(tables)[1] * 32), np.inf, np.float32)
        hidden[:, :length] = hidden_from
    for start, stop in spans(length, cuts):
        part = np.arange(start, stop)
        tokens = int32([s * length + part for s in range(count)]).ravel()
        sequence_ids = np.repeat(np.arange(count, dtype=np.int32), stop - start)
        seen = None if limits is None else int32(limits[:, start:stop]).ravel()
        logit_rows = np.arange(len(tokens), dtype=np.int32)
        places, blocks = int32(np.tile(part, count)), int32(tables)
        logits = plan.run(Batch(tokens, places, sequence_ids, blocks, logit_rows, seen, hidden))
        result[:, start:stop] = logits.reshape(count, stop - start, -1)
    if stored is not None:
        stored += [plan.block_memory(block, True)[0].copy() for block in np.unique(tables)]
    return result


def add_attend(plan, source, out, shape):
    """Add attention of queries, keys and values that are side by side in the buffer source."""
    more = {"rope_dim": 0, "rotate_half": False, "attention_factor": 1.0} | shape
    heads, kv_heads, d, dim = (more[key] for key in ("heads", "kv_heads", "head_dim", "rope_dim"))
    sizes = {"scale": d**-0.5, "softcap": 0.0, "window": 0, "reach": 0, "heads": heads}
    sizes |= {"kv_heads": kv_heads, "head_dim": d}
    sizes |= {"chunked": False, "value_first": 0, "value_dim": 0}
    frequencies = Rope(dim=dim, base=10000.0).frequencies() if dim else []
    views = (source, 0), (source, heads * d), (source, (heads + kv_heads) * d), (out, 0)
    sizes = {key: more.get(key, value) for key, value in sizes.items()}
    rotation = calls.Rotation(frequencies, more["rotate_half"], more["attention_factor"])
    sinks, bias = (more.get(key, NO_WEIGHT) for key in ("sinks", "bias"))
    add(plan, calls.AttendCall(views, calls.AttendShape(**sizes), rotation, sinks, bias))


def spans(length, cuts):
    """Yield (start, stop) of each call; the last of the cuts repeats to the end."""
    start, i = 0, 0
    while start < length:
        stop = min(length, start + cuts[min(i, len(cuts) - 1)])
        yield start, stop
        start, i = stop, i + 1


# -- batches for a backend -------------------------------------------------------------------------


def batch_of(parts, limits=None):
    """Return a batch of texts, each (first position, tokens, blocks), with logits of all rows."""
    rows = lay_rows(parts)
    logit_rows = np.arange(len(rows[0]), dtype=np.int32)
    return Batch(*rows, logit_rows, None if limits is None else int32(limits))


def run_text(backend, start, tokens, blocks):
    """Return the logits of every token of one text, whose first position is ``start``."""
    return backend.run(batch_of([(start, tokens, [*blocks])])).copy()


def assert_same_bits(actual, expected):
    np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))
