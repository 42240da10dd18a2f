"""The logit lens: the head's prediction after each layer, and the token that the luck would draw.

The stream after each layer goes through the last norm, which divides by that stream's own size, and
then through the head (nostalgebraist 2020). The module also finds the tokens whose embeddings are
nearest to that of a token.
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
    """The lens before the first layer (-1) or after a layer: its likeliest token, and its draw."""

    layer: int
    token_id: int
    token: str
    probability: float
    rank: int
    drawn: int | None
    drawn_token: str | None


@dataclass(frozen=True)
class Lens:
    """A row for the stream before the first layer, then a row for the stream after each layer.

    ids, logprobs  (rows, top): the likeliest tokens, best first, under the row's plain logits
    rank           (rows,): the rank of the step's token; 1 is the likeliest
    drawn          (rows,): the tokens that the step's chain and luck would have drawn, -1 for an
                   error; None where the draw cannot be repeated
    """

    ids: Ids
    logprobs: NDArray[np.float64]
    rank: Ids
    drawn: Ids | None

    def rows(self, name: Name) -> list[LensRow]:
        """Return the rows before the first layer, and after each."""
        drawn_ids = [None] * len(self.rank) if self.drawn is None else self.drawn.tolist()
        return [
            LensRow(
                i - 1, int(ids[0]), name(int(ids[0])), float(np.exp(min(logprobs[0], 0.0))),
                int(rank), drawn_id, None if drawn_id is None or drawn_id < 0 else name(drawn_id),
            )
            for i, (ids, logprobs, rank, drawn_id) in enumerate(
                zip(self.ids, self.logprobs, self.rank, drawn_ids, strict=True)
            )
        ]  # fmt: skip

    @property
    def first(self) -> int | None:
        """The first row in which the step's token is the likeliest; None where it never is."""
        rows = np.flatnonzero(self.rank == 1)
        return int(rows[0]) if len(rows) else None

    @property
    def settled(self) -> int | None:
        """The first row from which the step's token stays the likeliest; None if none exists."""
        return find_settled(self.rank == 1)

    @property
    def draw_settled(self) -> int | None:
        """The first row from which every draw equals the last row's; None if draws are unknown."""
        return None if self.drawn is None else find_settled(self.drawn == self.drawn[-1])


def _best(row: NDArray[np.float32], top: int) -> Ids:
    """The ``top`` ids with the largest logits, best first; of equals, the lower id is first."""
    least = np.partition(row, len(row) - top)[len(row) - top]
    ids = np.flatnonzero(row >= least)
    return ids[np.argsort(-row[ids], kind="stable")][:top]


def find_settled(holds: NDArray[np.bool_]) -> int | None:
    """Find the first row from which a condition always holds; None where the last row fails it."""
    fails = np.flatnonzero(~holds)
    start = int(fails[-1]) + 1 if len(fails) else 0
    return start if start < len(holds) else None


def lens(logits: NDArray[np.float32], token_id: int, top: int, drawn_ids: list[int] | None) -> Lens:
    """Make the lens from logits (rows, vocab), the step's token and each row's draw."""
    peak = logits.max(axis=-1, keepdims=True)
    total = np.exp(logits - peak).sum(axis=-1, keepdims=True, dtype=np.float64)
    ids = np.array([_best(row, top) for row in logits])
    token_logits = logits[:, token_id : token_id + 1]
    above = (logits > token_logits).sum(axis=-1) + (logits[:, :token_id] == token_logits).sum(
        axis=-1
    )
    likeliest = (np.take_along_axis(logits, ids, axis=-1) - peak).astype(float) - np.log(total)
    return Lens(
        ids, likeliest, above + 1, None if drawn_ids is None else np.array(drawn_ids, np.int64)
    )


# -- nearest embeddings, by their cosine -----------------------------------------------------------


_AT_ONCE = 1 << 24  # numbers of the embedding table that are decoded at once
_TINY = 1e-30


@dataclass(frozen=True)
class Nearest:
    """The tokens whose embeddings are nearest to that of one token, which is left out.

    ids     (top,): the nearest first
    cosine  (top,): the cosine of the angle between the two embeddings; 1 for equal directions
    """

    ids: NDArray[np.int64]
    cosine: NDArray[np.float64]


def nearest(llm: LLM, token: int, top: int = 8) -> Nearest:
    """The tokens whose embeddings are nearest to a token's, by cosine.

    Of equal cosines, the lower id comes first. The whole embedding table is read. An embedding of
    zeros has the cosine 0. InputError where there is no such token, or ``top`` is too large.
    """
    vocab = llm.tokenizer.vocab_size
    token = check_int("token", token, 0, vocab - 1)
    top = check_int("top", top, 1, vocab - 1)
    table = next(op for op in llm.graph.ops if isinstance(op, EmbedTokens)).weights["weight"]
    weight = inspectable(llm.backend).weight
    embedding = weight(table, token, token + 1)[0]
    step = max(_AT_ONCE // len(embedding), 1)
    cosine = np.empty(vocab)
    for first in range(0, vocab, step):
        rows = weight(table, first, min(first + step, vocab))
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
        cosine[first : first + len(rows)] = (rows @ embedding) / np.maximum(norms, _TINY)
    cosine /= max(float(np.linalg.norm(embedding)), _TINY)
    cosine[token] = -np.inf
    ids = np.argsort(-cosine, kind="stable")[:top]
    return Nearest(ids, cosine[ids])
