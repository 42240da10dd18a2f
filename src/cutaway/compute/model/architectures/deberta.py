"""DeBERTa, v2 and v3: BERT with biases of attention that depend on the distance and on q or k.

``files/huggingface/families/deberta.py`` reads their folders.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.model.architectures.bert import BERT, bert
from cutaway.compute.model.config import MAX_CONTEXT, Architecture, ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.metadata import MetadataReader
from cutaway.compute.model.positions import Bias
from cutaway.errors import FormatError


@dataclass(frozen=True, slots=True)
class Relative(Bias):
    """Maps a distance, query minus key, to one of 2 · span rows (He et al. 2020, arXiv 2006.03654).

    farthest: up to half of the span each distance has a row of its own; rows of larger distances
              follow the logarithm, up to this distance (v2, v3). 0: each distance up to the span
              has a row of its own
    """

    reads_keys = True
    span: int
    farthest: int = 0

    @property
    def per_head(self) -> int:
        """See ``Bias``."""
        return 2 * self.span

    def rows(self, reach: int) -> NDArray[np.int32]:
        """See ``Bias``."""
        distances = np.arange(-reach, reach + 1)
        buckets = self._buckets(distances) if self.farthest else distances
        return np.clip(buckets + self.span, 0, 2 * self.span - 1).astype(np.int32)

    def _buckets(self, distances: NDArray[np.int64]) -> NDArray[np.int64]:
        """Compute in float32, as in training: rounding decides where the end of a bucket falls."""
        middle = self.span // 2
        apart = np.maximum(abs(distances), middle).astype(np.float32)
        share = np.log(apart / np.float32(middle)) / np.log(
            np.float32((self.farthest - 1) / middle)
        )
        far = np.ceil(share * np.float32(middle - 1)).astype(np.int64) + middle
        return np.where(abs(distances) <= middle, distances, np.sign(distances) * far)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deberta(ModelConfig):
    """The config of DeBERTa; relative: maps distances to rows of a matrix."""

    relative: Relative


def _read_deberta(read: MetadataReader, c: ModelConfig) -> Deberta:
    span = read.size("attention.relative_buckets_count", largest=MAX_CONTEXT)
    farthest = read.size_or_zero("attention.relative_farthest")
    if farthest and farthest <= span // 2 + 1:
        raise FormatError(
            f"{read.prefix}.attention.relative_farthest is {farthest}, within the {span // 2} "
            "distances that have buckets of their own"
        )
    return c.as_kind(Deberta, relative=Relative(span, farthest))


def deberta(g: Graph, c: Deberta) -> Tensor:
    """Build BERT with biases by distance (He et al. 2020, arXiv 2006.03654)."""
    return bert(g, c, bias=c.relative)


ROWS: Mapping[str, Architecture] = {
    "deberta-v2": replace(BERT, build=deberta, extend=_read_deberta),
}
