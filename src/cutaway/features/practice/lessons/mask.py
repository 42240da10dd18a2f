"""The causal mask: a later token changes, and no earlier row does, proven by their bits."""

import numpy as np
from numpy.typing import NDArray

from cutaway.features.practice.answers import COUNT, Numbers
from cutaway.features.practice.exercises import Exercise
from cutaway.features.practice.lessons.scene import Scene
from cutaway.features.practice.tables import numbered
from cutaway.sampling.observe import row_hash

_ROWS = 10  # of a table
_LEAST = 3  # tokens, so that one has another before and another after it
_DIGITS = 8  # of a hash


def lesson(scene: Scene) -> list[Exercise]:
    """How many rows change?"""
    scene.need("mask", _LEAST)
    ids = scene.ids
    first = max(len(ids) - _ROWS, 0)
    names, place = [scene.name(token) for token in ids[first:]], (len(ids) - first) // 2
    before = scene.logits(ids, first)
    other = _likeliest_but(before[place - 1], ids[first + place])
    after = scene.logits([*ids[: first + place], other, *ids[first + place + 1 :]], first)
    pairs = [(_shown(a), _shown(b)) for a, b in zip(before, after, strict=True)]
    changed = sum(a != b for a, b in pairs)
    becomes = [f"becomes {scene.name(other)}" if i == place else "" for i in range(len(names))]
    fates = [
        text if a != b else "the same bits" for text, (a, b) in zip(becomes, pairs, strict=True)
    ]
    return [
        Exercise(
            "mask",
            "Each token has a row of numbers: how likely each token of the vocabulary is to "
            f"follow. Here are the last {len(names)} tokens of the text; one of them is replaced. "
            "How many of their rows change?",
            numbered(names, {"": becomes}),
            Numbers((changed,), ("rows",), COUNT),
            "whose row can see the token that is replaced?",
            (
                numbered(
                    names,
                    {"row": [a for a, _ in pairs], "row after": [b for _, b in pairs], "": fates},
                ),
                "These are hashes of whole rows: where they are the same, no bit differs. A token "
                "sees itself and earlier tokens, and never later ones. That is the "
                "causal mask.",
                "So what was computed for a text holds whatever comes after it, and can be kept: "
                "keys and values are cached, and every token is computed once.",
            ),
        )
    ]


def _likeliest_but(row: NDArray[np.float32], token: int) -> int:
    others = row.copy()
    others[token] = -np.inf
    return int(others.argmax())


def _shown(row: NDArray[np.float32]) -> str:
    return f"{row_hash(row):016x}"[:_DIGITS]
