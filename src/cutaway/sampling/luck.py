"""Luck: random numbers as a pure function of (seed, absolute position, redraw, token id).

Luck is Gumbel noise from Philox4x32-10, a counter-based generator (Salmon et al., "Parallel random
numbers: as easy as 1, 2, 3", SC 2011). It has no state, so a token's luck stays the same when a
filter removes its neighbours, when the temperature changes or when the text is forked. Where a
position is drawn more than once, as for cells of a canvas, each redraw may have its own luck; the
first draw has number 0.
"""

import numpy as np
from numpy.typing import NDArray

from cutaway.sampling.fixed_math import Floats, log

Words = NDArray[np.uint64]  # 32-bit words, held in 64 bits so that products fit

_MASK = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
# The last counter word: the purpose of the number.
_TOKEN, _SAMPLE, _COIN, _TEXT, _TRIAL, _ORDER, _MASK_AGAIN, _NOISE = 0, 1, 2, 3, 4, 5, 6, 7


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> tuple[Words, ...]:
    """Return four 32-bit words for each counter; the four counter words broadcast together."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (
            (p1 >> _SHIFT) ^ c1 ^ np.uint64(k0),
            p1 & _MASK,
            (p0 >> _SHIFT) ^ c3 ^ np.uint64(k1),
            p0 & _MASK,
        )
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return c0, c1, c2, c3


def _split(number: int) -> tuple[int, int]:
    return number & 0xFFFFFFFF, number >> 32


def place_of(position: int, redraw: int) -> int:
    """Return a position and the number of its redraw as one number."""
    return position | redraw << 32


def uniform(seed: int, place: int, token_ids: NDArray[np.int64]) -> Floats:
    """Return numbers in (0, 1), one per token id, (n,).

    place: a position, or the result of ``place_of``. One Philox call serves four neighbouring ids:
    counter = (id // 4, position, redraw, 0), word id % 4, and u = (word + 1/2) / 2**32, which is
    never 0 and never 1.
    """
    ids = token_ids.astype(np.uint64)
    groups, group_of_id = np.unique(ids >> np.uint64(2), return_inverse=True)
    at, redraw = (np.full_like(groups, word) for word in _split(place))
    purpose = np.full_like(groups, _TOKEN)
    words = np.stack(philox((groups, at, redraw, purpose), _split(seed)))
    id_words: Words = words[ids & np.uint64(3), group_of_id]
    return (id_words.astype(np.float64) + 0.5) * 2.0**-32


def gumbel(seed: int, place: int, token_ids: NDArray[np.int64]) -> Floats:
    """Return standard Gumbel noise per token id, (n,): argmax(z + gumbel) draws from softmax(z)."""
    return -log(-log(uniform(seed, place, token_ids)))


def coin(seed: int, place: int) -> float:
    """Return a number in (0, 1) for a place, for a stage that acts at random."""
    return float(_uniform_at(seed, [place], _COIN)[0])


def order_luck(seed: int, places: list[int]) -> Floats:
    """Return numbers in (0, 1), one per place, that choose the cells of a canvas to reveal."""
    return _uniform_at(seed, places, _ORDER)


def mask_luck(seed: int, places: list[int]) -> Floats:
    """Return numbers in (0, 1), one per place, that choose the cells to mask again."""
    return _uniform_at(seed, places, _MASK_AGAIN)


def noise_tokens(seed: int, places: list[int], vocab: int) -> list[int]:
    """Return a random token for each place, as a canvas of noise has them: 0 … vocab - 1."""
    tokens: list[int] = (_words_at(seed, places, _NOISE) * np.uint64(vocab) >> _SHIFT).tolist()
    return tokens


def _uniform_at(seed: int, places: list[int], purpose: int) -> Floats:
    return (_words_at(seed, places, purpose).astype(np.float64) + 0.5) * 2.0**-32


def _words_at(seed: int, places: list[int], purpose: int) -> Words:
    at, redraw = (np.array(words, np.uint64) for words in zip(*map(_split, places), strict=True))
    zero = np.zeros_like(at)
    first, *_ = philox((zero, at, redraw, zero + np.uint64(purpose)), _split(seed))
    return first


def text_luck(seed: int, n: int) -> Floats:
    """Return standard Gumbel noise, one for each of n whole texts, (n,)."""
    place, zero = np.arange(n, dtype=np.uint64), np.zeros(n, np.uint64)
    first, *_ = philox((place, zero, zero, zero + np.uint64(_TEXT)), _split(seed))
    return -log(-log((first.astype(np.float64) + 0.5) * 2.0**-32))


def derive_seed(seed: int, n: int) -> int:
    """Return the seed of the n-th of n samples: for n = 0 the seed, else Philox of (n, seed)."""
    return _derive(seed, n, _SAMPLE) if n else seed


def trial_seed(seed: int, n: int) -> int:
    """Return the seed of the n-th trial of a revision: Philox of (n, seed)."""
    return _derive(seed, n, _TRIAL)


def _derive(seed: int, n: int, purpose: int) -> int:
    word = np.array([n], dtype=np.uint64)
    zero = np.zeros(1, dtype=np.uint64)
    low, high, *_ = philox((word, zero, zero, zero + np.uint64(purpose)), _split(seed))
    return int(low[0]) | int(high[0]) << 32
