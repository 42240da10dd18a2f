"""What the ops with a recurrent state compute, token by token, in NumPy float32."""

from math import sqrt

import numpy as np

from cutaway.compute.backends.reference.run import Array, Run
from cutaway.compute.backends.reference.states import wanted_states
from cutaway.compute.model import Op


def conv(op: Op, run: Run, x: Array) -> Array:
    """The weighted sum of each number in the last rows of the text, its own row the last."""
    weight, bias = run.weight(op).T, run.weight(op, "bias") if "bias" in op.weights else 0
    taps, out = len(weight), np.empty_like(x)
    for rows, before in run.states.begin(op, run.batch):
        seen = np.concatenate([before, x[rows]])  # (taps - 1 + R, n)
        for row, slot in wanted_states(run.batch, rows).items():
            run.states.store(op, slot, seen[row + 1 : row + taps])
        count = rows.stop - rows.start
        out[rows] = bias + sum(w * seen[i : i + count] for i, w in enumerate(weight))
    return out


def delta_net(op: Op, run: Run, x: Array, a: Array, b: Array) -> Array:
    """Each token turns each head's state S (keys, values), and reads it."""
    (heads, n, values), k_heads = op.attrs["state"], op.attrs["k_heads"]
    split, each = k_heads * n, np.arange(heads)
    share = each // (heads // k_heads) if op.attrs["grouped"] else each % k_heads
    parts = x[:, :split], x[:, split : 2 * split]
    q, k = (_unit(part.reshape(len(x), k_heads, n))[:, share] for part in parts)
    q, v = q / np.float32(sqrt(n)), x[:, 2 * split :].reshape(len(x), heads, values)
    keep = np.exp(run.weight(op, "a") * np.logaddexp(0, a + run.weight(op, "dt"), dtype=np.float32))
    learn, out = 1 / (1 + np.exp(-b)), np.empty((len(x), heads, values), np.float32)
    for rows, before in run.states.begin(op, run.batch):
        state, wanted = before, wanted_states(run.batch, rows)  # (heads, keys, values)
        for i, row in enumerate(range(rows.start, rows.stop)):
            state = state * keep[row, :, None, None]
            change = learn[row, :, None] * (v[row] - np.einsum("hk,hkv->hv", k[row], state))
            state = state + k[row, :, :, None] * change[:, None]
            out[row] = np.einsum("hk,hkv->hv", q[row], state)
            if i in wanted:
                run.states.store(op, wanted[i], state)
    return out.reshape(len(x), -1)


def mamba2(op: Op, run: Run, x: Array, dt: Array) -> Array:
    """Each token turns each head's state S (keys, values), and reads it."""
    (heads, n, values), k_heads = op.attrs["state"], op.attrs["k_heads"]
    a, skip = run.weight(op, "a")[:, 0], run.weight(op, "d")
    v, k, q = np.split(x, [heads * values, heads * values + k_heads * n], axis=1)
    v = v.reshape(len(x), heads, values)
    share = np.arange(heads) // (heads // k_heads)
    k, q = (part.reshape(len(x), k_heads, n)[:, share] for part in (k, q))
    step = np.logaddexp(0, dt + run.weight(op, "dt"), dtype=np.float32)  # (M, heads)
    keep, out = np.exp(a * step), np.empty((len(x), heads, values), np.float32)
    for rows, before in run.states.begin(op, run.batch):
        state, wanted = before, wanted_states(run.batch, rows)  # (heads, keys, values)
        for i, row in enumerate(range(rows.start, rows.stop)):
            added = v[row] * step[row, :, None]
            state = state * keep[row, :, None, None] + k[row, :, :, None] * added[:, None]
            out[row] = np.einsum("hk,hkv->hv", q[row], state) + skip * v[row]
            if i in wanted:
                run.states.store(op, wanted[i], state)
    return out.reshape(len(x), -1)


def _unit(x: Array) -> Array:
    """Of length 1."""
    unit: Array = x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + np.float32(1e-6))
    return unit
