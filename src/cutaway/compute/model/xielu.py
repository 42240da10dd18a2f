"""xIELU: the activation whose constants each layer has learned, read from a file's metadata."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutaway.compute.model.graph import Graph, Tensor
from cutaway.errors import FormatError

_NEAR_ZERO = 1e-5


@dataclass(frozen=True, slots=True)
class Xielu:
    """above·x² + linear·x above 0; below·(e^x - 1 - x) + linear·x below.

    Huang & Schlag 2024, arXiv 2411.13010.
    """

    above: float
    below: float
    linear: float

    def of(self, g: Graph, x: Tensor) -> Tensor:
        """Of each number: (M, n) -> (M, n)."""
        curved = g.add(g.scale(g.relu2(x), self.above), g.scale(g.elu_less_x(x), self.below))
        return g.add(curved, g.scale(x, self.linear))


def xielu_of(metadata: Mapping[str, Any], layers: int) -> tuple[Xielu, ...]:
    """Of each layer; empty where the file has none.

    Files hold what softplus is taken of, as ``xielu.alpha_p`` and ``xielu.alpha_n``.
    """
    if "xielu.alpha_p" not in metadata:
        return ()
    p, n, beta, eps = (
        _constants(metadata, f"xielu.{key}", layers)
        for key in ("alpha_p", "alpha_n", "beta", "eps")
    )
    if (abs(eps) > _NEAR_ZERO).any():
        raise FormatError(
            f"metadata key xielu.eps must be within {_NEAR_ZERO} of 0; no other is supported"
        )
    above, below = np.logaddexp(0, p), beta + np.logaddexp(0, n)  # softplus
    return tuple(map(Xielu, above.tolist(), below.tolist(), beta.tolist()))


def _constants(metadata: Mapping[str, Any], key: str, layers: int) -> np.ndarray[Any, Any]:
    """One a layer: (layers,); files also write one number for all."""
    value = metadata.get(key)
    try:
        found = np.broadcast_to(np.asarray(value, np.float64), (layers,))
    except (TypeError, ValueError):
        found = np.full(layers, np.nan)
    if value is None or not np.isfinite(found).all():
        raise FormatError(f"metadata key {key} must be a number for each of {layers} layers")
    return found
