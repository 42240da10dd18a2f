"""Lines in many scripts, made from a seed, as input of normalisers and Unigram tokenizers."""

from collections.abc import Iterator

import numpy as np

_SCRIPTS = (
    (0x61, 0x7B), (0x41, 0x5B), (0xC0, 0x180), (0x391, 0x3CA), (0x410, 0x450), (0x531, 0x557),
    (0x5D0, 0x5EB), (0x621, 0x64B), (0x905, 0x94E), (0x985, 0x9B3), (0xB85, 0xBBA), (0xE01, 0xE4F),
    (0x10D0, 0x10F1), (0x1200, 0x1250), (0x1780, 0x17D3), (0x3041, 0x3097), (0x30A1, 0x30FB),
    (0x4E00, 0x4F80), (0xAC00, 0xAE00), (0x1F600, 0x1F650),
)  # fmt: skip
_ODD = (
    *("\u3000", "\u00a0", "\u200b", "\u200d", "\t", "\u0301", "\u0308", "\u1f1f", "ﬁ", "Ⅷ", "①"),
    *("\uff46\uff55\uff4c\uff4c", "㍿"),
    *("½", "…", "™", "℃", "\u00ad", "\ufeff", "\x00", "\x7f", "▁", "'", "``", "''"),
    *("\U0001f1eb\U0001f1f7", "\U0001f468\u200d\U0001f469", "ﷺ", "각", "12,345.67", "e\u0301"),
)  # fmt: skip


def lines(count: int, seed: int = 0) -> Iterator[str]:
    """Yield lines of up to twelve words, each of one script's letters or of odd characters."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield "".join(_word(rng) + _gap(rng) for _ in range(rng.integers(1, 13)))


def _word(rng: np.random.Generator) -> str:
    if rng.random() < 0.12:
        return str(_ODD[rng.integers(len(_ODD))])
    first, last = _SCRIPTS[rng.integers(len(_SCRIPTS))]
    # The first letters of a script are frequent, so that some pieces are long.
    codes = first + (rng.random(rng.integers(1, 9)) ** 2 * (last - first)).astype(int)
    return "".join(map(chr, codes.tolist()))


def _gap(rng: np.random.Generator) -> str:
    return (" ", " ", " ", "  ", "", ", ", ". ")[rng.integers(7)]
