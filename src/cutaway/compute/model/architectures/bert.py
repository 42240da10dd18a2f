"""BERT, architectures wired like it, and ModernBERT: in all of them tokens see the whole text.

``files/huggingface/families/bert.py`` reads their folders.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import log
from typing import ClassVar

import numpy as np

from cutaway.compute.model.architectures.llama import llama
from cutaway.compute.model.architectures.parts import (
    GELU,
    PLAIN,
    SEES_ALL,
    attention,
    embedding,
    experts,
    gated_mlp,
    plain_mlp,
)
from cutaway.compute.model.config import Architecture, ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.layers import windows_of
from cutaway.compute.model.metadata import MetadataReader
from cutaway.compute.model.mixture import Mixture
from cutaway.compute.model.positions import NO_BIAS, Alibi, Bias, Table

# -- biases of attention's scores by distance ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Buckets(Bias):
    """A learned number for each head and bucket of distances, as in T5 (arXiv 1910.10683).

    Half of the buckets are for each side. In each half, the first half of the buckets have a single
    distance each; the sizes of the others grow with the logarithm, up to the distance ``farthest``.
    """

    weight: ClassVar[str] = "position_bias"
    farthest: int = 128

    def table(self, reach: int, heads: int, weight: Table | None = None) -> Table:
        """See ``Bias``; weight: (buckets, heads)."""
        assert weight is not None
        assert weight.shape[1] == heads
        half = len(weight) // 2
        buckets = [
            self._bucket(abs(d), half) + (half if d > 0 else 0) for d in range(-reach, reach + 1)
        ]
        return np.ascontiguousarray(weight[buckets].T, np.float32)

    def _bucket(self, distance: int, count: int) -> int:
        exact = count // 2
        if distance < exact:
            return distance
        share = np.float32(log(distance / exact)) / np.float32(log(self.farthest / exact))
        return min(exact + int(share * (count - exact)), count - 1)


# -- graphs ----------------------------------------------------------------------------------------


_GATED = {"gelu": Graph.gelu_exact_mul, "gelu_tanh": Graph.gelu_mul, "silu": Graph.silu_mul}


def bert(g: Graph, c: ModelConfig, *, gated: bool = False, bias: Bias | None = None) -> Tensor:
    """Build BERT (Devlin et al. 2018, arXiv 1810.04805), and the head for masked tokens, if any.

    A norm follows each addition. In RoBERTa (arXiv 1907.11692) positions begin at a later row; the
    file's reader leaves the rows before out. DistilBERT (arXiv 1910.01108) has no token types.
    ELECTRA (arXiv 2003.10555) and ALBERT (arXiv 1909.11942) have narrower embeddings. Models with
    rotary positions (nomic, GTE, jina v3) have no learned ones.
    gated: whether MLPs are gated; bias: attention's biases by distance, or None
    Returns the logits, (L, vocab); without a head, the rows that it would read, (L, hidden).
    """
    x = embedding(g, c)  # (M, hidden), or narrower
    if g.has("token_types.weight"):
        x = g.add(x, g.embed_types("token_types"))
    if c.learned_positions:
        x = g.add(x, g.embed_positions("position_embd", c.context_length))
    x = g.layer_norm(x, "token_embd_norm", c.norm_eps)
    if g.has("embd_proj.weight"):
        x = g.linear(x, "embd_proj")
    rope = None if c.learned_positions or bias else c.rope
    for layer, p in enumerate(g.layers(c.layers)):
        x = g.add(x, attention(g, c, x, layer, rope, bias=bias or NO_BIAS))
        x = g.layer_norm(x, f"{p}attn_output_norm", c.norm_eps)
        x = g.add(x, _mlp(g, c, x, p, gated=gated))
        x = g.layer_norm(x, f"{p}layer_output_norm", c.norm_eps)  # (M, hidden)

    x = g.logit_rows(x)
    return x if g.has("cls.output.weight") else _masked_head(g, c, x, partial(_plain(c), g))


def mpnet(g: Graph, c: ModelConfig) -> Tensor:
    """Build MPNet (Song et al. 2020, arXiv 2004.09297): BERT with learned biases by distance."""
    return bert(g, c, bias=Buckets())


def jina_bert_v2(g: Graph, c: ModelConfig) -> Tensor:
    """Build BERT with ALiBi and gated MLPs (Günther et al. 2023, arXiv 2310.19923)."""
    return bert(g, c, gated=True, bias=Alibi())


def gated_bert(g: Graph, c: ModelConfig) -> Tensor:
    """BERT with rotary positions and gated MLPs: nomic (arXiv 2402.01613), GTE (2407.19669)."""
    return bert(g, c, gated=True)


def _plain(c: ModelConfig) -> Callable[[Graph, Tensor], Tensor]:
    return PLAIN.get(c.activation, Graph.gelu_exact)


def _mlp(g: Graph, c: ModelConfig, x: Tensor, p: str, *, gated: bool) -> Tensor:
    if g.has(f"{p}ffn_gate_inp.weight"):  # nomic v2 (arXiv 2502.07972)
        weight = f"{p}ffn_exps_out"
        mixture = experts(g, c, x, p)
        # A bias that is added after all experts is read as the row of the only token type.
        return g.add(mixture, g.embed_types(weight)) if g.has(f"{weight}.weight") else mixture
    if gated:
        return gated_mlp(g, x, p, partial(_GATED[c.activation], g))
    return plain_mlp(g, x, p, partial(_plain(c), g))


def modern_bert(g: Graph, c: ModelConfig) -> Tensor:
    """Build ModernBERT (Warner et al. 2024, arXiv 2412.13663).

    It has rotary positions, windows and gated MLPs, and a norm before each part of a layer. In the
    first layer attention reads the embedding, which is normed already. Norms have no biases, as a
    rule. Returns what ``bert`` returns.
    """
    gate = partial(_GATED[c.activation], g)
    x = _norm(g, c, embedding(g, c), "token_embd_norm")  # (M, hidden)
    for layer, p in enumerate(g.layers(c.layers)):
        h = _norm(g, c, x, f"{p}attn_norm") if layer else x
        rope = c.rope_local if c.windows[layer] else c.rope
        x = g.add(x, attention(g, c, h, layer, rope))
        x = g.add(x, gated_mlp(g, _norm(g, c, x, f"{p}ffn_norm"), p, gate))

    x = _norm(g, c, g.logit_rows(x), "output_norm")
    return x if g.has("cls.output.weight") else _masked_head(g, c, x, g.gelu_exact)


def eurobert(g: Graph, c: ModelConfig) -> Tensor:
    """Build Llama whose tokens see the whole text (Boizard et al. 2025, arXiv 2503.05500).

    Returns what ``bert`` returns.
    """
    logits = llama(g, c)
    return logits if g.has("output.weight") else g.cut_head()


def _norm(g: Graph, c: ModelConfig, x: Tensor, name: str) -> Tensor:
    """Add a norm, with a bias if the model's first norm has a bias: then all norms have biases."""
    return g.layer_norm(x, name, c.norm_eps, bias=g.has("token_embd_norm.bias"))


def _masked_head(g: Graph, c: ModelConfig, x: Tensor, act: Callable[[Tensor], Tensor]) -> Tensor:
    """Add the head that predicts masked tokens, (L, vocab); without one, return x, (L, hidden)."""
    if not g.has("cls.norm.weight"):
        return x
    h = _norm(g, c, act(g.linear(x, "cls")), "cls.norm")
    return g.linear(h, "output" if g.has("output.weight") else "token_embd", bias="output")


def _see_first(read: MetadataReader, c: ModelConfig) -> ModelConfig:
    """Let the first layer of each period, not the last one, see the whole text."""
    return replace(c, windows=windows_of(read, c.layers, c.attention, full_first=True))


BERT = Architecture(bert, layer_norm=True, defaults=SEES_ALL, activations=GELU)

ROWS: Mapping[str, Architecture] = {
    "bert": replace(BERT, learned_positions=True),  # and roberta, distilbert
    "mpnet": replace(BERT, build=mpnet, learned_positions=True),
    "jina-bert-v2": replace(
        BERT, build=jina_bert_v2, must_be={"attention.max_alibi_bias": (8,)}
    ),
    "jina-bert-v3": BERT,
    "nomic-bert": replace(BERT, build=gated_bert, activations={"silu": "silu"}),
    "nomic-bert-moe": replace(
        BERT, mixture=Mixture(used=1, normed=False, activation="gelu_exact")
    ),
    "gte": replace(BERT, build=gated_bert),
    "eurobert": Architecture(eurobert, defaults=SEES_ALL),
    "modern-bert": replace(
        BERT, build=modern_bert, activations=GELU | {"silu": "silu"}, extend=_see_first,
        defaults=SEES_ALL | {"attention.sliding_window_pattern": 3},
    ),
}  # fmt: skip
