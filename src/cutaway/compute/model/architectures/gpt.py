"""GPT-2 and GPT-NeoX: layer norms with biases and a plain MLP."""

from functools import partial

from cutaway.compute.model.architectures.parts import PLAIN, attention, embedding, head, plain_mlp
from cutaway.compute.model.config import ModelConfig
from cutaway.compute.model.graph import Graph, Tensor


def gpt2(g: Graph, c: ModelConfig) -> Tensor:
    """Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".

    Positions are learned vectors, added to the tokens'. Returns the logits, (L, vocab).
    """
    x = embedding(g, c)  # (M, hidden)
    x = g.add(x, g.embed_positions("position_embd", c.context_length))
    for layer, p in enumerate(g.layers(c.layers)):
        h = g.layer_norm(x, f"{p}attn_norm", c.norm_eps)
        x = g.add(x, attention(g, c, h, layer, rope=None))
        h = g.layer_norm(x, f"{p}ffn_norm", c.norm_eps)
        x = g.add(x, plain_mlp(g, h, p, g.gelu))

    return head(g, c, g.layer_norm(g.logit_rows(x), "output_norm", c.norm_eps))


def gptneox(g: Graph, c: ModelConfig) -> Tensor:
    """Black et al. 2022, arXiv 2204.06745: attention and MLP side by side in most models."""
    act = partial(PLAIN[c.activation], g)
    x = embedding(g, c)  # (M, hidden)
    for layer, p in enumerate(g.layers(c.layers)):
        h = g.layer_norm(x, f"{p}attn_norm", c.norm_eps)
        after = g.add(x, attention(g, c, h, layer, c.rope))
        h = g.layer_norm(x if c.is_parallel else after, f"{p}ffn_norm", c.norm_eps)
        x = g.add(after, plain_mlp(g, h, p, act))

    return head(g, c, g.layer_norm(g.logit_rows(x), "output_norm", c.norm_eps))
