"""Graphs of models that denoise a canvas, and read in each pass what the last pass predicted.

*Self-conditioning* (Chen et al. 2022, arXiv 2208.04202): a pass over a block reads, for each cell,
the tokens' embeddings weighted by the probabilities that the last pass gave them: a blend. So such
a model is three graphs with the same weights, keys and values: the model's own reads tokens from
left to right, one computes the rows of a block, and one makes blends. The last multiplies by the
embedding the other way round, as a matrix of its own.
"""

from collections.abc import Mapping
from typing import NamedTuple

from cutaway.compute.model.architectures import architecture_of
from cutaway.compute.model.config import ModelConfig
from cutaway.compute.model.graph import Graph

TRANSPOSED = "token_embd_transposed"
"""The name of the embedding's transpose, (hidden, vocab), which no file has."""


class CanvasGraphs(NamedTuple):
    """The graphs of a canvas.

    rows   a block's rows: their tokens and their blends -> logits
    blend  distributions of tokens, (rows, vocab) -> blends, (rows, hidden)
    """

    rows: Graph
    blend: Graph


def build_canvas(shapes: Mapping[str, tuple[int, ...]], config: ModelConfig) -> CanvasGraphs:
    """Build the graphs of a canvas, for a model that reads blends.

    FormatError if a tensor is missing, or does not fit.
    """
    build = architecture_of(config.architecture).canvas
    assert build is not None
    rows = Graph(shapes)
    build(rows, config)
    vocab, hidden = shapes["token_embd.weight"]
    blend = Graph({f"{TRANSPOSED}.weight": (hidden, vocab)})
    blend.linear(blend.logit_rows(blend.given_rows(vocab)), TRANSPOSED)
    return CanvasGraphs(rows, blend)
