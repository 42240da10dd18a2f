"""The experts of a mixture for one row: which were chosen, their shares, and their outputs."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.backends import Inspectable
from cutaway.compute.model import Op

Floats = NDArray[np.float64]
_LITTLE = np.float32(1e-5)  # more than the exponentials here and there differ by


class Given(NamedTuple):
    """What one expert added, (hidden,): ``through`` times what its last matrix read, (inner,).

    unsure  (inner,): by how much the run's own numbers may differ from those, since a value between
            two 8-bit steps may be rounded to either
    """

    added: Floats
    through: Floats
    unsure: Floats


def chosen(scores: NDArray[Any], op: Op) -> tuple[NDArray[np.int64], Floats]:
    """The experts of a row's highest scores, ties to the lowest, and their shares."""
    share = np.exp(scores.astype(np.float64) - scores.max())
    share /= share.sum()
    ids = np.argsort(-scores, kind="stable")[: op.attrs["used"]]
    own = share[ids] / (share[ids].sum() if op.attrs["norm_topk_prob"] else 1)
    return ids, own


def given(backend: Inspectable, op: Op, x: NDArray[np.float32], expert: int, share: float) -> Given:
    """What one expert added for the row ``x`` (hidden,) that it read."""

    def matrix(role: str) -> Floats:
        name, rows = op.weights[role], inner if role != "down" else len(x)
        return backend.weight(name, expert * rows, (expert + 1) * rows).astype(np.float64)

    inner = backend.weight(op.weights["down"], 0, 1).shape[1]
    read = backend.as_read(op.weights["up"], x[None])[0].astype(np.float64)
    gate = matrix("gate") @ read
    with np.errstate(over="ignore"):
        middle = (gate / (1 + np.exp(-gate)) * (matrix("up") @ read)).astype(np.float32)
    last = backend.as_read(op.weights["down"], middle[None])[0].astype(np.float64)
    little = _LITTLE * np.where(np.arange(inner) % 2, 1, -1).astype(np.float32)
    others = backend.as_read(op.weights["down"], middle * np.stack([1 + little, 1 - little]))
    down = share * matrix("down")
    return Given(down @ last, down, np.abs(others - last).max(axis=0))
