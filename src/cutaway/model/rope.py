"""Rotary positions: how far each pair of neighbours turns from one position to the next.

Su et al. 2021, arXiv 2104.09864. Knows the formula and how models stretch it to longer texts.
Refuses to know what is turned.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from cutaway.errors import FormatError


def frequencies(attrs: Mapping[str, Any], factors: Sequence[float] | None = None) -> list[float]:
    """Radians a position of the pairs (2i, 2i + 1), i = 0 … rope_dim / 2 - 1.

    attrs    of a rope op: base^(-2i / rope_dim), divided by ``stretch`` (linear scaling; Chen et
             al. 2023, arXiv 2306.15595)
    factors  the model's own divisor of each pair, as llama 3.1 has them
    """
    n, base, stretch = attrs["rope_dim"], attrs["base"], attrs["stretch"]
    plain = [base ** (-2.0 * i / n) for i in range(n // 2)]
    if factors is not None:
        if not all(0 < factor < inf for factor in factors):
            raise FormatError("the model's rope factors must be positive numbers: convert it again")
        plain = [f / float(factor) for f, factor in zip(plain, factors, strict=True)]
    return [f / stretch for f in plain] if stretch != 1 else plain
