"""A model of a few tokens, whose texts can be enumerated, with the interface of an engine."""

from itertools import product

import numpy as np

from cutaway.methods.causal import _look_up
from cutaway.sampling.luck import gumbel

ALLOWED = np.array([True, True, False, True, True])
"""Token 2 adds no text."""
TOKENS = np.flatnonzero(ALLOWED).tolist()


def row(text: tuple[int, ...]) -> np.ndarray:
    """Return the logits (1, 5) after a text: uneven, and a function of the whole text."""
    scores = np.random.default_rng([7, *text]).normal(size=(1, len(ALLOWED)))
    return (1.5 * scores).astype(np.float32)


class Table:
    """See ``cutaway.features.revise.rules.RevisionModel``."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, ...], np.ndarray] = {}

    def row(self, text):
        text = tuple(text)
        if text not in self._rows:
            self._rows[text] = row(text)
        return self._rows[text]

    def following(self, texts):
        yield from enumerate(map(self.row, texts))

    def score_tokens(self, texts, look=None):
        return [
            [
                x
                for i in range(text.first, len(text.text))
                for x in (look or _look_up)(self.row(text.text[:i]), [text.text[i]])
            ]
            for text in texts
        ]

    def draw_tokens(self, head, count, temperature, seed):
        ids = tuple(head)
        for _ in range(count):
            z = self.row(ids)[0][TOKENS] / np.float32(temperature)
            luck = gumbel(seed, len(ids), np.array(TOKENS))
            ids += (TOKENS[int(np.argmax(z.astype(np.float64) + luck))],)
        return ids[len(head) :]

    def logprob(self, text, prefix) -> float:
        """log p of all tokens that are not given, by definition."""
        total = 0.0
        for i in range(prefix, len(text)):
            z = self.row(text[:i])[0].astype(np.float64)
            total += z[text[i]] - np.log(np.exp(z).sum())
        return total

    def power(self, head, count, alpha) -> dict[tuple[int, ...], float]:
        """Return p^α, normalised, over all texts of ``count`` tokens that add text."""
        texts = [(*head, *values) for values in product(TOKENS, repeat=count)]
        weights = np.exp([alpha * self.logprob(text, len(head)) for text in texts])
        return dict(zip(texts, (weights / weights.sum()).tolist(), strict=True))
