"""Luck in plain Python: the noise of a token as a pure function of (seed, position, token id).

This file imports nothing of cutaway, and nothing outside Python: others may copy it, under the
licence of cutaway (Apache 2.0). docs/luck.md specifies its results, and has test vectors. For many
tokens ``cutaway.sampling.luck`` computes the same faster.
"""

from collections.abc import Mapping
from math import frexp

_LN2_HI = 6.93147180369123816490e-01
_LN2_LO = 1.90821492927058770002e-10
_SQRT_HALF = 0.7071067811865476
_ODD = [1.0 / n for n in range(1, 24, 2)]


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return Philox4x32-10 (Salmon et al., SC 2011): 4 words of 32 bits from 4 words and a key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (
            (p1 >> 32) ^ c1 ^ k0, p1 & 0xFFFFFFFF, (p0 >> 32) ^ c3 ^ k1, p0 & 0xFFFFFFFF,
        )  # fmt: skip
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def uniform(seed: int, position: int, token_id: int) -> float:
    """Return a number in (0, 1): seed below 2**64, position and token id below 2**32."""
    words = philox((token_id // 4, position, 0, 0), (seed & 0xFFFFFFFF, seed >> 32))
    return (words[token_id % 4] + 0.5) * 2.0**-32


def log(x: float) -> float:
    """Return the natural logarithm of a positive normal number, with the same bits everywhere.

    It uses IEEE additions, products and quotients in float64, in one order.
    """
    m, e = frexp(x)
    if m < _SQRT_HALF:
        m, e = m * 2.0, e - 1
    s = (m - 1.0) / (m + 1.0)
    s2 = s * s
    y = _ODD[-1]
    for c in reversed(_ODD[:-1]):
        y = y * s2 + c
    return e * _LN2_HI + (e * _LN2_LO + 2.0 * s * y)


def gumbel(seed: int, position: int, token_id: int) -> float:
    """Return standard Gumbel noise: argmax(logit + noise) over tokens draws from their softmax."""
    return -log(-log(uniform(seed, position, token_id)))


def draw(logits: Mapping[int, float], seed: int, position: int) -> int:
    """Draw one of the surviving tokens, {token id: processed logit}; ties go to the lowest id.

    position: the position of the drawn token in the text, prompt included
    """
    return min(logits, key=lambda t: (-(logits[t] + gumbel(seed, position, t)), t))
