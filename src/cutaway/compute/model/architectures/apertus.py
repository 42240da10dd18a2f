"""Apertus: Qwen 3 with xIELU, an activation whose constants each layer has learned.

``files/huggingface/families/apertus.py`` reads its folders.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutaway.compute.model.architectures.llama import LayerWiring, llama
from cutaway.compute.model.architectures.parts import plain_mlp
from cutaway.compute.model.config import Architecture, ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.metadata import MetadataReader
from cutaway.errors import FormatError

_NEAR_ZERO = 1e-5


@dataclass(frozen=True, slots=True)
class Xielu:
    """xIELU: above·x² + linear·x where x is above 0, below·(e^x - 1 - x) + linear·x elsewhere.

    Huang & Schlag 2024, arXiv 2411.13010.
    """

    above: float
    below: float
    linear: float

    def apply(self, g: Graph, x: Tensor) -> Tensor:
        """Apply xIELU to each number: (M, n) -> (M, n)."""
        curved = g.add(g.scale(g.relu2(x), self.above), g.scale(g.elu_less_x(x), self.below))
        return g.add(curved, g.scale(x, self.linear))


def xielu_of(metadata: Mapping[str, Any], layers: int) -> tuple[Xielu, ...]:
    """Read each layer's xIELU.

    Files have two factors as they are before softplus: ``xielu.alpha_p`` and ``xielu.alpha_n``.
    """
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
    """Return one constant for each layer, (layers,); files may have one number for all layers."""
    value = metadata.get(key)
    try:
        constants = np.broadcast_to(np.asarray(value, np.float64), (layers,))
    except (TypeError, ValueError):
        constants = np.full(layers, np.nan)
    if value is None or not np.isfinite(constants).all():
        raise FormatError(f"metadata key {key} must be a number for each of {layers} layers")
    return constants


@dataclass(frozen=True, slots=True, kw_only=True)
class Apertus(ModelConfig):
    """The config of Apertus; xielu: the constants of the MLP's activation, by layer."""

    xielu: tuple[Xielu, ...]


def _read_apertus(read: MetadataReader, c: ModelConfig) -> Apertus:
    return c.as_kind(Apertus, xielu=xielu_of(read.metadata, c.layers))


def apertus(g: Graph, c: Apertus) -> Tensor:
    """Build Qwen 3 with xIELU in a plain MLP (Apertus 2025, arXiv 2509.14233)."""

    def mlp(g: Graph, _: ModelConfig, h: Tensor, layer: int) -> list[Tensor]:
        return [plain_mlp(g, h, f"blk.{layer}.", lambda x: c.xielu[layer].apply(g, x))]

    return llama(g, c, LayerWiring(norms="head", mlp=mlp))


ROWS: Mapping[str, Architecture] = {"apertus": Architecture(apertus, extend=_read_apertus)}
