"""What each op computes, in NumPy float32, like a textbook.

An op is a function of its ``Op``, the ``Run`` and its inputs, (M, width) each; so is its result.
Those that mix rows are in `attention`, or keep a state, token by token.
"""

from collections.abc import Callable, Mapping
from math import erf, pi, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.backends.reference.attention import attend, softcapped
from cutaway.compute.backends.reference.run import Array, Run, wanted_states
from cutaway.compute.model import Op, Tensor
from cutaway.compute.model.lora import loras
from cutaway.compute.model.mixture import Mixture
from cutaway.compute.model.positions import GrowingRope, Rope

# -- ops with a recurrent state --------------------------------------------------------------------


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


# -- ops of rows, each by itself; and the table of all ---------------------------------------------


def embed(op: Op, run: Run) -> Array:
    """The rows of the tokens; with adapters, + s B times A's row of each."""
    return _looked_up(op, run, run.batch.tokens)


def embed_stored(op: Op, run: Run) -> Array:
    """The rows of the tokens."""
    return embed(op, run)


def embed_positions(op: Op, run: Run) -> Array:
    """The rows of the positions."""
    return run.weight(op)[run.batch.positions]


def embed_types(op: Op, run: Run) -> Array:
    """The rows of the tokens' types; without any the first."""
    types = run.batch.types
    return _looked_up(op, run, np.zeros_like(run.batch.tokens) if types is None else types)


def _looked_up(op: Op, run: Run, rows: NDArray[np.int32]) -> Array:
    y: Array = run.weight(op)[rows]
    for lora in loras(op):
        inner: Array = run.weights[lora.a][rows] * np.float32(lora.scale)
        y = y + inner @ run.weights[lora.b].T  # (M, rank) (rank, hidden)
    return y


def rms_norm(op: Op, run: Run, x: Array) -> Array:
    """x / sqrt(mean(x²) + eps) · w, each group of numbers by itself."""
    group = op.attrs["group"]
    groups = x.reshape(len(x), x.shape[1] // group, group)  # M may be 0
    mean_square = np.mean(groups * groups, axis=-1, keepdims=True)  # (M, groups, 1)
    normed = groups / np.sqrt(mean_square + np.float32(op.attrs["eps"]))
    weighted: Array = normed * run.weight(op) if op.weights else normed
    return weighted.reshape(x.shape)


def layer_norm(op: Op, run: Run, x: Array) -> Array:
    """(x - mean(x)) / sqrt(variance(x) + eps) · w + b."""
    centred = x - np.mean(x, axis=-1, keepdims=True)
    variance = np.mean(centred * centred, axis=-1, keepdims=True)  # (M, 1)
    normed: Array = centred / np.sqrt(variance + np.float32(op.attrs["eps"]))
    weighted: Array = normed * run.weight(op)
    return weighted + run.weight(op, "bias") if "bias" in op.weights else weighted


def linear(op: Op, run: Run, x: Array) -> Array:
    """W x + b, of some of W's rows; with adapters, + s B A x of each."""
    rows = slice(*op.attrs["rows"])
    read = x[:, run.weight(op, "order").astype(int)] if "order" in op.weights else x
    matrix = np.atleast_2d(run.weight(op))
    y: Array = read @ matrix[rows].T  # (M, in) (in, out) -> (M, out)
    if "bias" in op.weights:
        y = y + run.weight(op, "bias")[rows]
    for lora in loras(op):
        inner: Array = x @ run.weights[lora.a].T * np.float32(lora.scale)
        y = y + inner @ run.weights[lora.b][rows].T  # (M, rank) (rank, out)
    return y


def heads_linear(op: Op, run: Run, x: Array) -> Array:
    """Each head's numbers times its own matrix."""
    matrices = run.weight(op)  # (heads, out, in)
    heads, _, inner = matrices.shape
    y: Array = np.einsum("mhi,hoi->mho", x.reshape(len(x), heads, inner), matrices)
    return y.reshape(len(x), op.out.width)


def rope(op: Op, run: Run, x: Array) -> Array:
    """Pairs of each head's numbers, turned by angles that grow with the position."""
    by, factors = op.attrs["rope"], op.weights.get("factors")
    own = None if factors is None else run.weights[factors].tolist()
    frequency = np.array(by.frequencies(own))  # (n/2,)
    angle = run.batch.positions[:, None, None] * frequency  # (M, 1, n/2)
    factor = by.attention_factor * _grown(by, run.batch.positions)[:, None, None]
    cos = (factor * np.cos(angle)).astype(np.float32)
    sin = (factor * np.sin(angle)).astype(np.float32)
    out = x.reshape(len(x), -1, op.attrs["head_dim"]).copy()  # (M, heads, head_dim)
    n, half = by.dim, by.dim // 2
    halves, neighbours = (slice(half), slice(half, n)), (slice(0, n, 2), slice(1, n, 2))
    pair = halves if by.rotate_half else neighbours
    first, second = (out[..., part].copy() for part in pair)  # (M, heads, n/2)
    out[..., pair[0]] = first * cos - second * sin
    out[..., pair[1]] = first * sin + second * cos
    return out.reshape(x.shape)


def _grown(rope: Rope, positions: NDArray[np.int32]) -> NDArray[np.float64]:
    """By how much rotated numbers grow at each position, (M,)."""
    if not isinstance(rope, GrowingRope):
        return np.ones(len(positions))
    periods = (positions + rope.offset) // rope.period
    grown: NDArray[np.float64] = 1 + rope.growth * np.log1p(periods)
    return grown


def pick(op: Op, _: Run, x: Array) -> Array:
    """Some numbers of each group of those that lie side by side."""
    size = op.attrs["group"]
    groups = x.reshape(len(x), x.shape[1] // size, size)  # M may be 0
    return groups[..., op.attrs["first"] : op.attrs["last"]].reshape(len(x), op.out.width)


def join(op: Op, _: Run, a: Array, b: Array) -> Array:
    """The numbers of each group of a, then those of b."""
    n = op.attrs["groups"]
    parts = [x.reshape(len(x), n, x.shape[1] // n) for x in (a, b)]
    return np.concatenate(parts, axis=-1).reshape(len(a), op.out.width)


def silu(_: Op, __: Run, x: Array) -> Array:
    """x · sigmoid(x)."""
    return _silu(x)


def silu_mul(_: Op, __: Run, gate: Array, up: Array) -> Array:
    """silu(gate) · up."""
    return _silu(gate) * up


def gelu_mul(op: Op, run: Run, gate: Array, up: Array) -> Array:
    """gelu(gate) · up, by tanh."""
    return gelu(op, run, gate) * up


def gelu_exact_mul(op: Op, run: Run, gate: Array, up: Array) -> Array:
    """gelu(gate) · up, by the normal distribution."""
    return gelu_exact(op, run, gate) * up


def gelu(_: Op, __: Run, x: Array) -> Array:
    """x times about the chance that a normal number is below it, by tanh."""
    inner = np.float32(sqrt(2 / pi)) * (x + np.float32(0.044715) * x * x * x)
    y: Array = np.float32(0.5) * x * (1 + np.tanh(inner))
    return y


def gelu_exact(_: Op, __: Run, x: Array) -> Array:
    """x times the chance that a normal number is below it."""
    normal: Array = 0.5 * (1 + _erf(x * np.float32(sqrt(0.5)))).astype(np.float32)
    return x * normal


def clamped_swiglu(op: Op, _: Run, gate: Array, up: Array) -> Array:
    """gate · sigmoid(1.702 gate) · (up + 1), both within a limit."""
    limit = np.float32(op.attrs["limit"])
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return _times_sigmoid(gate, np.float32(1.702) * gate) * (up + 1)


def sigmoid_mul(_: Op, __: Run, gate: Array, x: Array) -> Array:
    """sigmoid(gate) · x."""
    return _times_sigmoid(x, gate)


def relu(_: Op, __: Run, x: Array) -> Array:
    """Where it is above 0, else 0."""
    return np.maximum(x, 0)


def relu2(_: Op, __: Run, x: Array) -> Array:
    """Squared where it is above 0, else 0."""
    return np.maximum(x, 0) ** 2


def elu_less_x(_: Op, __: Run, x: Array) -> Array:
    """e^x - 1 - x below 0, else 0."""
    below = np.minimum(x, 0)
    y: Array = np.expm1(below) - below
    return y


def experts(op: Op, run: Run, x: Array, scores: Array) -> Array:
    """The sum of the MLPs that a row's scores choose, each times its weight."""
    mixture: Mixture = op.attrs["mixture"]
    bias = run.weight(op, "choosing_bias") if "choosing_bias" in op.weights else None
    chosen, weights = mixture.choose(scores, bias)  # (M, used)
    before, after = weights.astype(np.float32), np.ones(weights.shape, np.float32)
    if not mixture.weighs_input:
        before, after = after, before
    out, roles = np.zeros_like(x), [role for role in ("gate", "up") if role in op.weights]
    inner = np.empty((*chosen.shape, run.weight(op, "up").shape[1]), np.float32)
    for row, rank in np.ndindex(chosen.shape):
        e = int(chosen[row, rank])
        read = (_of_expert(op, run, role, e, before[row, rank] * x[row]) for role in roles)
        inner[row, rank] = activated(mixture, *read)
        out[row] += after[row, rank] * _of_expert(op, run, "down", e, inner[row, rank])
    run.note(f"{op.out.name}.inner", inner.reshape(len(x), -1))
    return out


def activated(mixture: Mixture, *read: NDArray[Any]) -> NDArray[Any]:
    """What an expert's last matrix reads, of what its first ones give: gate and up, or up alone."""
    kind = Op(mixture.activation, Tensor("", read[0].shape[-1]), attrs={"limit": mixture.limit})
    y: NDArray[Any] = OPS[mixture.activation](kind, None, *read)
    return y


def _of_expert(op: Op, run: Run, role: str, expert: int, x: Array) -> Array:
    y: Array = run.weight(op, role)[expert] @ x
    return y + run.weight(op, f"{role}_bias")[expert] if f"{role}_bias" in op.weights else y


def add(_: Op, __: Run, a: Array, b: Array) -> Array:
    """a + b."""
    return a + b


def mul(_: Op, __: Run, a: Array, b: Array) -> Array:
    """a · b."""
    return a * b


def scale(op: Op, _: Run, x: Array) -> Array:
    """factor · x."""
    return x * np.float32(op.attrs["factor"])


def scale_by(op: Op, run: Run, x: Array) -> Array:
    """x times the one number of a tensor."""
    return x * run.weight(op, "factor")


def softcap(op: Op, _: Run, x: Array) -> Array:
    """cap · tanh(x / cap)."""
    return softcapped(x, op.attrs["cap"])


def logit_rows(_: Op, run: Run, x: Array) -> Array:
    """The rows whose logits are wanted."""
    return x[run.batch.logit_rows]


OPS: Mapping[str, Callable[..., Array]] = {
    op.__name__: op
    for op in (
        embed, embed_stored, embed_positions, embed_types, rms_norm, layer_norm, linear,
        heads_linear, rope, attend, conv, delta_net, mamba2, pick, join, silu_mul, gelu_mul,
        gelu_exact_mul, clamped_swiglu, sigmoid_mul, silu, gelu, gelu_exact, relu, relu2,
        elu_less_x, experts, add, mul, scale, scale_by, softcap, logit_rows,
    )
}  # fmt: skip


_erf = np.frompyfunc(erf, 1, 1)  # NumPy has none


def _silu(x: Array) -> Array:
    return _times_sigmoid(x, x)


def _times_sigmoid(x: Array, a: Array) -> Array:
    # For a below -88 exp overflows to infinity, and x / infinity is the right 0.
    with np.errstate(over="ignore"):
        y: Array = x / (1 + np.exp(-a))
    return y
