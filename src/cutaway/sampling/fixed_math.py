"""exp, log, sums and cosines whose bits are the same on every machine.

Each uses only IEEE additions, multiplications and divisions in float64, which NumPy never fuses. So
the draw does not depend on the libm or SIMD path that NumPy picked. exp is within 2 ulp of the true
value, log within 3.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LANES = 16
_LOG2E = 1.4426950408889634
_LN2_HI = 6.93147180369123816490e-01  # the split of fdlibm's e_exp.c: hi has 32 trailing zeros
_LN2_LO = 1.90821492927058770002e-10
_EXP = [1.0]  # 1/n!, n = 0..13: |r| <= ln2/2 leaves 0.35**14 / 14! = 5e-18
for _n in range(1, 14):
    _EXP.append(_EXP[-1] / _n)
_ATANH = [1.0 / n for n in range(1, 24, 2)]  # |s| <= 0.172 leaves 0.03**12 / 25 = 2e-20


def exp(x: Floats) -> Floats:
    """Return e**x for x <= 0, clamped at -700, in the same shape."""
    x = np.maximum(x, -700.0)
    k = np.rint(x * _LOG2E)
    r = (x - k * _LN2_HI) - k * _LN2_LO
    y = np.full_like(r, _EXP[-1])
    for c in reversed(_EXP[:-1]):
        y = y * r + c
    return np.ldexp(y, k.astype(np.int32))


def log(x: Floats) -> Floats:
    """Return the natural logarithm of positive normal numbers, in the same shape."""
    m, e = np.frexp(x)
    low = m < 0.7071067811865476  # bring the mantissa to [sqrt(1/2), sqrt(2))
    m = np.where(low, m * 2.0, m)
    k = e - low
    s = (m - 1.0) / (m + 1.0)
    s2 = s * s
    y = np.full_like(s, _ATANH[-1])
    for c in reversed(_ATANH[:-1]):
        y = y * s2 + c
    return k * _LN2_HI + (k * _LN2_LO + 2.0 * s * y)


def scalar_log(x: float) -> float:
    """Return the natural logarithm of one positive normal number."""
    return float(log(np.array([x]))[0])


def ordered_sum(x: Floats) -> float:
    """Return the sum of a vector in one fixed order: 16 interleaved lanes, then a halving tree."""
    rows = np.zeros((-(-len(x) // LANES), LANES))
    rows.reshape(-1)[: len(x)] = x
    lanes = np.add.reduce(rows, axis=0)  # row after row: each lane adds in order
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return float(lanes[0])


def dots(a: NDArray[Any], b: NDArray[Any]) -> Floats:
    """Return dot products along the last axis, whose numbers are added in order.

    The other axes broadcast: (n, 1, width) and (m, width) give (n, m).
    """
    first, second = (np.ascontiguousarray(np.moveaxis(x, -1, 0), np.float64) for x in (a, b))
    total = np.zeros(np.broadcast_shapes(a.shape[:-1], b.shape[:-1]))
    for x, y in zip(first, second, strict=True):
        total += x * y
    return total


def cosine(a: NDArray[Any], b: NDArray[Any]) -> Floats:
    """Return cosines of vectors, by ``dots``; 0 if a vector has length 0."""
    squares = dots(a, a) * dots(b, b)
    return np.divide(dots(a, b), np.sqrt(np.where(squares > 0, squares, 1)))


def log_sum_exp(x: Floats) -> float:
    """Return log Σ exp(x); minus infinity if x is empty."""
    top = float(x.max(initial=-np.inf))
    if top == -np.inf:
        return top
    return top + scalar_log(ordered_sum(exp(x - top)))


def entropy(x: Floats) -> float:
    """Return -Σ p log p in nats, where p is the softmax of finite x."""
    depth = x.max() - x
    weights = exp(-depth)
    total = ordered_sum(weights)
    return scalar_log(total) + ordered_sum(weights * depth) / total
