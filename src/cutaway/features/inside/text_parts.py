"""A text in parts: its tokens, words, lines or sentences, each of whole tokens.

A token belongs to the part of its first byte. One without bytes, such as a control token, is a part
of its own, and the text is divided there.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, groupby

BY = ("token", "word", "line", "sentence")

# Ideographs, kana, and their signs.
_ALONE = "\u3001-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_CLOSING = "[\"'”’»)\\]』」）]*"
_PARTS = {
    # With the spaces before it; a line break is a word of its own.
    "word": re.compile(rf"[^\S\n]*(?:[{_ALONE}]|[^\s{_ALONE}]+)|\s*\n|\s+"),
    "line": re.compile(r"[^\n]*\n|[^\n]+"),
    # To . ! ? … before white space, to 。！？, or to an empty line.
    "sentence": re.compile(
        rf"\s*(?=\S).*?(?:[.!?…]+{_CLOSING}(?=\s)|[。！？]+{_CLOSING}|(?=\s*\n\s*\n)|\Z)|\s+",
        re.DOTALL,
    ),
}


def text_parts(pieces: Sequence[bytes], by: str) -> list[range]:
    """The positions of each part of a text, in order, from its tokens' bytes; by: one of ``BY``."""
    if by == "token":
        return [range(i, i + 1) for i in range(len(pieces))]
    found: list[range] = []
    for empty, run in groupby(range(len(pieces)), lambda i: not pieces[i]):
        places = list(run)
        if empty:
            found += [range(i, i + 1) for i in places]
        else:
            found += _of_run(pieces, range(places[0], places[-1] + 1), _PARTS[by])
    return found


def _of_run(pieces: Sequence[bytes], run: range, part: re.Pattern[str]) -> list[range]:
    """The parts of a run of tokens that all have bytes."""
    data = b"".join(pieces[i] for i in run)
    text = data.decode(errors="surrogateescape")  # what is no character stays a byte each
    sizes = accumulate((len(c.encode(errors="surrogateescape")) for c in text), initial=0)
    byte_of = list(sizes)
    starts = [byte_of[match.start()] for match in part.finditer(text)]
    firsts = accumulate((len(pieces[i]) for i in run), initial=0)
    of_token = [(bisect_right(starts, first), i) for first, i in zip(firsts, run, strict=False)]
    grouped = ([i for _, i in same] for _, same in groupby(of_token, lambda pair: pair[0]))
    return [range(places[0], places[-1] + 1) for places in grouped]
