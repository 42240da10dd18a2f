"""The backends of a model that denoises a canvas with self-conditioning; see ``model.canvases``."""

from dataclasses import dataclass

import numpy as np

from cutaway.compute.backends.base import Backend, Batch, Logits


@dataclass(frozen=True)
class CanvasBackends:
    """What computes a canvas, on the weights, keys and values of the model's own backend.

    rows   computes a block's rows, which read blends besides their tokens
    blends  makes blends
    """

    rows: Backend
    blends: Backend

    def blend(self, chances: Logits) -> Logits:
        """Return the mean embedding of each distribution: (rows, vocab) -> (rows, hidden).

        The next call may overwrite the result.
        """
        rows = np.arange(len(chances), dtype=np.int32)
        tables = np.zeros((len(rows), 1), np.int32)
        return self.blends.run(Batch(0 * rows, 0 * rows, rows, tables, rows, given=chances))
