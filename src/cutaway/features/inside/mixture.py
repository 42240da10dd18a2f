"""The experts of a mixture for one row: which were chosen, their shares, and their outputs."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.backends import Inspectable
from cutaway.compute.backends.reference.ops import activated
from cutaway.compute.model import Op
from cutaway.compute.model.mixture import Mixture

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


def chosen(backend: Inspectable, scores: NDArray[Any], op: Op) -> tuple[NDArray[np.int64], Floats]:
    """The experts of a row's scores, the best first, and their shares."""
    named = op.weights.get("choosing_bias")
    bias = None if named is None else backend.weight(named)
    (ids,), (shares,) = op.attrs["mixture"].choose(scores[None], bias)
    return ids, shares


def given(backend: Inspectable, op: Op, x: NDArray[np.float32], expert: int, share: float) -> Given:
    """What one expert added for the row ``x`` (hidden,) that it read."""
    mixture: Mixture = op.attrs["mixture"]
    before, after = (share, 1.0) if mixture.weighs_input else (1.0, share)

    def matrix(role: str) -> Floats:
        name, rows = op.weights[role], inner if role != "down" else len(x)
        return backend.weight(name, expert * rows, (expert + 1) * rows).astype(np.float64)

    def bias(role: str) -> Floats | float:
        named = op.weights.get(f"{role}_bias")
        return 0.0 if named is None else backend.weight(named)[expert].astype(np.float64)

    inner = backend.weight(op.weights["down"], 0, 1).shape[1]
    read = backend.as_read(op.weights["up"], x[None])[0].astype(np.float64)
    roles = [role for role in ("gate", "up") if role in op.weights]
    middle = activated(mixture, *(before * (matrix(role) @ read) + bias(role) for role in roles))
    middle = middle.astype(np.float32)
    last = backend.as_read(op.weights["down"], middle[None])[0].astype(np.float64)
    little = _LITTLE * np.where(np.arange(inner) % 2, 1, -1).astype(np.float32)
    others = backend.as_read(op.weights["down"], middle * np.stack([1 + little, 1 - little]))
    down = after * matrix("down")
    return Given(down @ last + after * bias("down"), down, np.abs(others - last).max(axis=0))
