"""DeBERTa, v2 and v3: BERT in which queries and keys say what they make of a distance.

What their folders say is in ``files/huggingface/families/deberta.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cutaway.compute.model.architectures.bert import BERT, bert
from cutaway.compute.model.config import MAX_CONTEXT, Architecture, ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.metadata import MetadataReader
from cutaway.compute.model.positions import Relative
from cutaway.errors import FormatError


@dataclass(frozen=True, slots=True, kw_only=True)
class Deberta(ModelConfig):
    """relative: how distances have rows of a matrix."""

    relative: Relative


def _read_deberta(read: MetadataReader, c: ModelConfig) -> Deberta:
    span = read.size("attention.relative_buckets_count", most=MAX_CONTEXT)
    farthest = read.size_or_zero("attention.relative_farthest")
    if farthest and farthest <= span // 2 + 1:
        raise FormatError(
            f"{read.prefix}.attention.relative_farthest is {farthest}, within the {span // 2} "
            "distances that have buckets of their own"
        )
    return c.as_kind(Deberta, relative=Relative(span, farthest))


def deberta(g: Graph, c: Deberta) -> Tensor:
    """Build BERT with distances (He et al. 2020, arXiv 2006.03654)."""
    return bert(g, c, bias=c.relative)


ROWS: Mapping[str, Architecture] = {
    "deberta-v2": replace(BERT, build=deberta, extend=_read_deberta),
}
