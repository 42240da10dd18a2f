"""Draft heads: a block behind the model's own that guesses the token after the next.

Multi-token prediction (Gloeckle et al. 2024, arXiv 2404.19737), as DeepSeek-V3 has it (arXiv
2412.19437, section 2.2): what the model's head read at one position, and the embedding of the token
that came next, go through one more layer. GGUF calls these blocks nextn.
"""

from collections.abc import Callable
from dataclasses import replace

from cutaway.compute.model.architectures.parts import embedding, head
from cutaway.compute.model.config import ModelConfig
from cutaway.compute.model.graph import Graph, Tensor

Layer = Callable[[Graph, ModelConfig, Tensor, int], Tensor]
"""One layer of an architecture, by its number: (M, hidden) -> (M, hidden)."""


def draft_head(g: Graph, c: ModelConfig, layer: Layer) -> Tensor:
    """The first of the blocks behind the model. Returns the logits, (L, vocab).

    Given are the hidden states that the model's head read of the tokens before, or this head of
    its own drafts: behind the last norm, as vLLM and llama.cpp have it.
    """
    c = replace(c, windows=(*c.windows, 0), recurrent=(*c.recurrent, False))
    p = next(g.layers(1, first=c.layers))
    n, norm = f"{p}nextn.", "output_norm"
    hidden = g.given(c.hidden)  # (M, hidden), of the tokens before
    own = f"{n}embed_tokens"
    x = embedding(g, c, own if g.has(f"{own}.weight") else "token_embd")
    x, hidden = g.rms_norm(x, f"{n}enorm", c.norm_eps), g.rms_norm(hidden, f"{n}hnorm", c.norm_eps)
    x = layer(g, c, g.linear(g.join(x, hidden, 1), f"{n}eh_proj"), c.layers)

    if g.has(f"{n}shared_head_norm.weight"):
        norm = f"{n}shared_head_norm"
    own = f"{n}shared_head_head"
    x = g.rms_norm(g.logit_rows(x), norm, c.norm_eps)
    return head(g, c, x, own if g.has(f"{own}.weight") else "")
