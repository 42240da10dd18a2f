"""The logit lens: what the head predicts after each layer, and what the same luck would draw.

The stream after each layer goes through the last norm, which divides by that stream's own size, and
the head (nostalgebraist 2020). Beside it the tokens whose embeddings are nearest to one token's.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cutaway.api.llm import LLM
from cutaway.base.checks import check_int
from cutaway.compute.backends import inspectable
from cutaway.compute.model.ops.rows import EmbedTokens

Ids = NDArray[np.int64]
Name = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class LensRow:
    """The lens before the first layer (-1), or after one: its likeliest token, and its draw."""

    layer: int
    token_id: int
    token: str
    probability: float
    rank: int
    drawn: int | None
    drawn_token: str | None


@dataclass(frozen=True)
class Lens:
    """A row for the stream before the first layer, then one for it after each.

    ids, logprobs  (rows, top): the likeliest, best first, under the model's own logits
    rank           (rows,): of the token that came; 1 is the likeliest
    drawn          (rows,): what the step's chain and luck would have drawn; None where the chain
                   cannot be repeated
    """

    ids: Ids
    logprobs: NDArray[np.float64]
    rank: Ids
    drawn: Ids | None

    def rows(self, name: Name) -> list[LensRow]:
        """Before the first layer, and after each."""
        drawn = [None] * len(self.rank) if self.drawn is None else self.drawn.tolist()
        return [
            LensRow(
                i - 1, int(ids[0]), name(int(ids[0])), float(np.exp(min(logprobs[0], 0.0))),
                int(rank), own, None if own is None or own < 0 else name(own),
            )
            for i, (ids, logprobs, rank, own) in enumerate(
                zip(self.ids, self.logprobs, self.rank, drawn, strict=True)
            )
        ]  # fmt: skip

    @property
    def first(self) -> int | None:
        """The first row in which the token that came is the likeliest; None: in none."""
        found = np.flatnonzero(self.rank == 1)
        return int(found[0]) if len(found) else None

    @property
    def settled(self) -> int | None:
        """The first row from which on it stays the likeliest; None: it is not so in the last."""
        return settled_from(self.rank == 1)

    @property
    def draw_settled(self) -> int | None:
        """The first row from which on the same luck draws what it drew."""
        return None if self.drawn is None else settled_from(self.drawn == self.drawn[-1])


def _best(row: NDArray[np.float32], top: int) -> Ids:
    """The likeliest, best first; of equals the lower id."""
    least = np.partition(row, len(row) - top)[len(row) - top]
    found = np.flatnonzero(row >= least)
    return found[np.argsort(-row[found], kind="stable")][:top]


def settled_from(holds: NDArray[np.bool_]) -> int | None:
    """The first row from which on it holds; None where it does not in the last."""
    fails = np.flatnonzero(~holds)
    start = int(fails[-1]) + 1 if len(fails) else 0
    return start if start < len(holds) else None


def lens(logits: NDArray[np.float32], chosen: int, top: int, drawn: list[int] | None) -> Lens:
    """Of the rows' logits (rows, vocab)."""
    peak = logits.max(axis=-1, keepdims=True)
    total = np.exp(logits - peak).sum(axis=-1, keepdims=True, dtype=np.float64)
    ids = np.array([_best(row, top) for row in logits])
    mine = logits[:, chosen : chosen + 1]
    above = (logits > mine).sum(axis=-1) + (logits[:, :chosen] == mine).sum(axis=-1)
    likeliest = (np.take_along_axis(logits, ids, axis=-1) - peak).astype(float) - np.log(total)
    return Lens(ids, likeliest, above + 1, None if drawn is None else np.array(drawn, np.int64))


# -- nearest embeddings, by their cosine -----------------------------------------------------------


_AT_ONCE = 1 << 24  # numbers of the table decoded in one piece
_TINY = 1e-30


@dataclass(frozen=True)
class Nearest:
    """The nearest first, the token itself left out.

    ids     (top,)
    cosine  (top,): of the angle between the two embeddings, 1 where they point the same way
    """

    ids: NDArray[np.int64]
    cosine: NDArray[np.float64]


def nearest(llm: LLM, token: int, top: int = 8) -> Nearest:
    """The tokens whose embeddings are nearest to a token's, by cosine; of equals the lower id.

    Reads the whole table. A row of zeros, which points nowhere, has the cosine 0. InputError for
    no such token.
    """
    vocab = llm.tokenizer.vocab_size
    token = check_int("token", token, 0, vocab - 1)
    top = check_int("top", top, 1, vocab - 1)
    table = next(op for op in llm.graph.ops if isinstance(op, EmbedTokens)).weights["weight"]
    weight = inspectable(llm.backend).weight
    mine = weight(table, token, token + 1)[0]
    step = max(_AT_ONCE // len(mine), 1)
    cosine = np.empty(vocab)
    for first in range(0, vocab, step):
        rows = weight(table, first, min(first + step, vocab))
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
        cosine[first : first + len(rows)] = (rows @ mine) / np.maximum(norms, _TINY)
    cosine /= max(float(np.linalg.norm(mine)), _TINY)
    cosine[token] = -np.inf
    ids = np.argsort(-cosine, kind="stable")[:top]
    return Nearest(ids, cosine[ids])
