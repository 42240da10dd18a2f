"""BERT, those that are wired like it, and ModernBERT: their tokens see the whole text."""

from collections.abc import Callable
from functools import partial

from cutaway.compute.model.architectures.parts import (
    PLAIN,
    attention,
    embedding,
    gated_mlp,
    plain_mlp,
)
from cutaway.compute.model.config import ModelConfig
from cutaway.compute.model.graph import Graph, Tensor

_GATED = {"gelu": Graph.gelu_exact_mul, "gelu_tanh": Graph.gelu_mul, "silu": Graph.silu_mul}


def bert(g: Graph, c: ModelConfig) -> Tensor:
    """Devlin et al. 2018, arXiv 1810.04805, with the head that predicts masked tokens, if any.

    A norm follows each addition. RoBERTa (arXiv 1907.11692) differs in its positions' first row,
    which a file's reader leaves out, DistilBERT (arXiv 1910.01108) in having no token types.
    Returns the logits, (L, vocab), or without a head the rows that it would read, (L, hidden).
    """
    act = partial(PLAIN[c.activation], g)
    x = embedding(g, c)  # (M, hidden)
    if g.has("token_types.weight"):
        x = g.add(x, g.embed_first("token_types"))  # one text is all of the first type
    x = g.add(x, g.embed_positions("position_embd", c.context_length))
    x = g.layer_norm(x, "token_embd_norm", c.norm_eps)
    for layer, p in enumerate(g.layers(c.layers)):
        x = g.add(x, attention(g, c, x, layer, rope=None))
        x = g.layer_norm(x, f"{p}attn_output_norm", c.norm_eps)
        x = g.add(x, plain_mlp(g, x, p, act))
        x = g.layer_norm(x, f"{p}layer_output_norm", c.norm_eps)  # (M, hidden)

    return _masked_head(g, c, g.logit_rows(x), act)


def modern_bert(g: Graph, c: ModelConfig) -> Tensor:
    """Warner et al. 2024, arXiv 2412.13663: rotary positions, windows, gated MLPs, norms before.

    The first layer reads the embedding, which is normed already. Norms have no biases, as a rule.
    Returns as ``bert`` does.
    """
    gate = partial(_GATED[c.activation], g)
    x = _norm(g, c, embedding(g, c), "token_embd_norm")  # (M, hidden)
    for layer, p in enumerate(g.layers(c.layers)):
        h = _norm(g, c, x, f"{p}attn_norm") if layer else x
        rope = c.rope_local if c.windows[layer] else c.rope
        x = g.add(x, attention(g, c, h, layer, rope))
        x = g.add(x, gated_mlp(g, _norm(g, c, x, f"{p}ffn_norm"), p, gate))

    return _masked_head(g, c, _norm(g, c, g.logit_rows(x), "output_norm"), g.gelu_exact)


def _norm(g: Graph, c: ModelConfig, x: Tensor, name: str) -> Tensor:
    """With a bias where the model's norms have one: the first says so for all."""
    return g.layer_norm(x, name, c.norm_eps, bias=g.has("token_embd_norm.bias"))


def _masked_head(g: Graph, c: ModelConfig, x: Tensor, act: Callable[[Tensor], Tensor]) -> Tensor:
    """The tokens that may stand in the rows' places, (L, vocab); without a head: (L, hidden)."""
    if not g.has("cls.norm.weight"):
        return x
    h = _norm(g, c, act(g.linear(x, "cls")), "cls.norm")
    return g.linear(h, "output" if g.has("output.weight") else "token_embd", bias="output")
