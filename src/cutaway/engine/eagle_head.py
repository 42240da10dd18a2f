"""A draft head of EAGLE-3: it reads the model's residual stream at some depths, and writes a
vocabulary of its own."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.backends import Backend, Batch, Logits
from cutaway.engine.draft_head import DraftHead, Floats

_NOT_ITS_OWN = np.float32(-1e4)
"""The logit of tokens that the head does not guess: finite, and never the likeliest."""


class EagleTensors(NamedTuple):
    """What a head reads and writes.

    reads   the model's tensors that it is given, side by side
    own     its tensor that it is given of its own drafts, and how wide that is
    ids     of each of its tokens the model's, of ``tokens``; None: it guesses all of them
    """

    reads: tuple[str, ...]
    own: tuple[str, int]
    ids: NDArray[np.int64] | None
    tokens: int


class EagleHead(DraftHead):
    """See ``DraftHead``. name: by which a request names it, "eagle:PATH"."""

    kind = "eagle"

    def __init__(self, backend: Backend, cost: float, name: str, of: EagleTensors) -> None:
        super().__init__(backend, cost)
        self.name, self.reads, self._of = name, of.reads, of

    def _of_model(self, rows: Floats) -> Floats:
        return np.pad(rows, ((0, 0), (0, self._of.own[1])))

    def _of_itself(self, rows: Floats, like: Floats) -> Floats:
        return np.pad(rows, ((0, 0), (like.shape[1] - rows.shape[1], 0)))

    def _compute(self, batch: Batch) -> tuple[Logits, Floats]:
        logits, hidden = self.backend.run_whole(batch, (self._of.own[0],))
        if self._of.ids is None:
            return logits, hidden
        wide = np.full((len(logits), self._of.tokens), _NOT_ITS_OWN)
        wide[:, self._of.ids] = logits
        return wide, hidden
