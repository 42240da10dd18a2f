"""BERT and those that are wired like it: encoders, whose tokens see the whole text."""

from cutaway.model.architectures.parts import attention, embedding, plain_mlp
from cutaway.model.config import ModelConfig
from cutaway.model.graph import Graph, Tensor


def bert(g: Graph, c: ModelConfig) -> Tensor:
    """Devlin et al. 2018, arXiv 1810.04805, with the head that predicts masked tokens, if any.

    A norm follows each addition. RoBERTa (arXiv 1907.11692) differs in its positions' first row,
    which a file's reader leaves out, DistilBERT (arXiv 1910.01108) in having no token types.
    Returns the logits, (L, vocab), or without a head the rows that it would read, (L, hidden).
    """
    x = embedding(g, c)  # (M, hidden)
    if g.has("token_types.weight"):
        x = g.add(x, g.embed_first("token_types"))  # one text is all of the first type
    x = g.add(x, g.embed_positions("position_embd", c.context_length))
    x = g.layer_norm(x, "token_embd_norm", c.norm_eps)
    for layer, p in enumerate(g.layers(c.layers)):
        x = g.add(x, attention(g, c, x, layer, rope=None))
        x = g.layer_norm(x, f"{p}attn_output_norm", c.norm_eps)
        x = g.add(x, plain_mlp(g, x, p, g.gelu_exact))
        x = g.layer_norm(x, f"{p}layer_output_norm", c.norm_eps)  # (M, hidden)

    x = g.logit_rows(x)
    return _masked_head(g, c, x) if g.has("cls.norm.weight") else x


def _masked_head(g: Graph, c: ModelConfig, x: Tensor) -> Tensor:
    """The tokens that may stand in the rows' places: (L, hidden) -> (L, vocab)."""
    h = g.gelu_exact(g.linear(x, "cls"))
    h = g.layer_norm(h, "cls.norm", c.norm_eps)
    return g.linear(h, "output" if g.has("output.weight") else "token_embd", bias="output")
