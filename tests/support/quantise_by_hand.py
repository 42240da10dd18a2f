"""Q6_K by its definition, group by group in NumPy: the oracle of the native quantiser.

Source: `make_qx_quants` and `quantize_row_q6_K_ref` in `ggml-quants.c` of ggml.
"""

import numpy as np

from cutaway.files.weights import FORMATS

F = np.float32
Q6_K = FORMATS["Q6_K"]


def codes_of(x, factor):
    return np.clip(np.rint(x * factor), -32, 31).astype(F)


def weigh(x, codes):
    """Return the two sums that measure how well codes fit, added one after another."""
    along, square = F(0), F(0)
    for value, code in zip(x, codes, strict=True):
        w = value * value
        along, square = along + w * value * code, square + w * code * code
    return along, square


def best_scale(x):
    """Return (scale, codes) of 16 weights, by the factor (of 19) with the least weighted error."""
    extreme = x[np.argmax(np.abs(x))]
    if abs(extreme) < F(1e-15):
        return F(0), np.full(16, -32, F)
    codes = codes_of(x, F(-32) / extreme)
    along, square = weigh(x, codes)
    scale = along / square if square else F(0)
    best, best_codes = scale * along, codes
    for step in [*range(-9, 0), *range(1, 10)]:
        codes = codes_of(x, -(F(32) + F(0.1) * F(step)) / extreme)
        along, square = weigh(x, codes)
        if square > 0 and along * along > best * square:
            scale = along / square
            best, best_codes = scale * along, codes
    return scale, best_codes


def quant_block(x):
    """Return one quant block of 256 weights."""
    out = np.zeros(1, Q6_K.layout)
    groups = x.reshape(16, 16)
    scales, codes = zip(*map(best_scale, groups), strict=True)
    extreme = scales[np.argmax(np.abs(scales))]
    if abs(extreme) < F(1e-15):
        return out
    factor = F(-128) / extreme
    out["d"] = F(1) / factor
    small = np.minimum(127, np.rint(factor * np.array(scales, F)))
    out["scales"] = small.astype(np.int8)
    q = np.empty((16, 16), np.uint8)
    for g, group in enumerate(groups):
        d = F(out["d"][0]) * F(small[g])
        last = codes_of(group / d, F(1)) if d else codes[g]
        q[g] = (last + 32).astype(np.uint8)
    halves = q.reshape(2, 4, 32)
    out["ql"] = (halves[:, :2] & 15 | halves[:, 2:] << 4).reshape(2, 64)
    out["qh"] = sum(halves[:, i] >> 4 << 2 * i for i in range(4))
    return out


def q6_k(x):
    """Quantise float32 (n * 256,) to uint8 (n * 210,)."""
    with np.errstate(under="ignore"):
        return np.concatenate([quant_block(block) for block in x.reshape(-1, 256)]).view(np.uint8)
