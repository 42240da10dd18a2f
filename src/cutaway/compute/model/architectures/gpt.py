"""GPT-2, GPT-NeoX and their descendants: layer norms with biases, and usually a plain MLP.

``files/huggingface/families/gpt.py`` reads their folders.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from cutaway.compute.model.architectures.llama import LayerWiring, centred_heads, llama
from cutaway.compute.model.architectures.parts import (
    GELU,
    PLAIN,
    attention,
    embedding,
    head,
    plain_mlp,
)
from cutaway.compute.model.config import Architecture, ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.metadata import MetadataReader
from cutaway.compute.model.positions import NO_BIAS, Alibi, Bias


def gpt2(
    g: Graph, c: ModelConfig,
    *, bias: Bias = NO_BIAS, norms_embedding: bool = False, has_norm_biases: bool = True,
) -> Tensor:  # fmt: skip
    """Build GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners").

    Positions are learned vectors, which are added to the tokens', or a bias of attention.
    Returns the logits, (L, vocab).
    """

    def norm(x: Tensor, weight: str) -> Tensor:
        return g.layer_norm(x, weight, c.norm_eps, bias=has_norm_biases)

    act = partial(PLAIN[c.activation], g)
    x = embedding(g, c)  # (M, hidden)
    if c.learned_positions:
        x = g.add(x, g.embed_positions("position_embd", c.context_length))
    if norms_embedding:
        x = norm(x, "token_embd_norm")
    for layer, p in enumerate(g.layers(c.layers)):
        a = attention(g, c, norm(x, f"{p}attn_norm"), layer, rope=None, bias=bias)
        x = g.add(x, a)
        x = g.add(x, plain_mlp(g, norm(x, f"{p}ffn_norm"), p, act))

    return head(g, c, norm(g.logit_rows(x), "output_norm"))


def falcon(g: Graph, c: ModelConfig) -> Tensor:
    """Build Falcon (Almazrouei et al. 2023, arXiv 2311.16867): attention and MLP side by side.

    In 40B and 180B attention has a norm of its own.
    """
    x = embedding(g, c)  # (M, hidden)
    for layer, p in enumerate(g.layers(c.layers)):
        h = g.layer_norm(x, f"{p}attn_norm", c.norm_eps)
        has_two = g.has(f"{p}attn_norm_2.weight")
        first = g.layer_norm(x, f"{p}attn_norm_2", c.norm_eps) if has_two else h
        after = g.add(x, attention(g, c, first, layer, c.rope))
        x = g.add(after, plain_mlp(g, h, p, g.gelu_exact))

    return head(g, c, g.layer_norm(g.logit_rows(x), "output_norm", c.norm_eps))


@dataclass(frozen=True, slots=True, kw_only=True)
class GptNeox(ModelConfig):
    """The config of GPT-NeoX; is_parallel: whether attention and MLP read the same input."""

    is_parallel: bool


def _read_neox(read: MetadataReader, c: ModelConfig) -> GptNeox:
    return c.as_kind(GptNeox, is_parallel=read.flag("use_parallel_residual", False))


def gptneox(g: Graph, c: GptNeox) -> Tensor:
    """Build GPT-NeoX (Black et al. 2022, arXiv 2204.06745) or StarCoder 2.

    In most models attention and MLP read the same input. In StarCoder 2 (Lozhkov et al. 2024, arXiv
    2402.19173) the MLP follows attention.
    """
    act = partial(PLAIN[c.activation], g)
    x = embedding(g, c)  # (M, hidden)
    for layer, p in enumerate(g.layers(c.layers)):
        h = g.layer_norm(x, f"{p}attn_norm", c.norm_eps)
        after = g.add(x, attention(g, c, h, layer, c.rope))
        h = g.layer_norm(x if c.is_parallel else after, f"{p}ffn_norm", c.norm_eps)
        x = g.add(after, plain_mlp(g, h, p, act))

    return head(g, c, g.layer_norm(g.logit_rows(x), "output_norm", c.norm_eps))


def phi2(g: Graph, c: ModelConfig) -> Tensor:
    """Build Phi 1.5 and 2 (arXiv 2309.05463), or GPT-J: attention and MLP share a norm."""
    x = embedding(g, c)  # (M, hidden)
    for layer, p in enumerate(g.layers(c.layers)):
        h = g.layer_norm(x, f"{p}attn_norm", c.norm_eps)
        after = g.add(x, attention(g, c, h, layer, c.rope))
        x = g.add(after, plain_mlp(g, h, p, g.gelu))

    return head(g, c, g.layer_norm(g.logit_rows(x), "output_norm", c.norm_eps))


def stablelm(g: Graph, c: ModelConfig) -> Tensor:
    """Llama with layer norms (Bellagente et al. 2024, arXiv 2402.17834).

    12B has norms of each head's q and k, and attention and MLP side by side after one norm.
    """
    has_one = not g.has("blk.0.ffn_norm.weight")
    norms = centred_heads(g)
    return llama(g, c, LayerWiring(norms=norms, norm=Graph.layer_norm, is_parallel=has_one))


_GPT2 = Architecture(
    gpt2, layer_norm=True, learned_positions=True, activations={"gelu_tanh": "gelu_tanh"}
)
_NEOX = Architecture(gptneox, layer_norm=True, extend=_read_neox, activations={"relu2": "relu2"})

ROWS: Mapping[str, Architecture] = {
    "gpt2": _GPT2,
    "starcoder": _GPT2,  # with one head of keys and values
    "opt": replace(_GPT2, activations={"relu": "relu"}),
    "bloom": replace(  # Le Scao et al. 2022, arXiv 2211.05100
        _GPT2, build=partial(gpt2, bias=Alibi(), norms_embedding=True), learned_positions=False
    ),
    "mpt": Architecture(
        partial(gpt2, bias=Alibi(), has_norm_biases=False),
        layer_norm=True,
        activations={"gelu": "gelu"},
        must_be={"attention.max_alibi_bias": (8,)},
    ),
    "falcon": Architecture(falcon, layer_norm=True),
    "gptj": Architecture(phi2, layer_norm=True, interleaved_rope=True),
    "gptneox": replace(  # also of Pythia
        _NEOX, activations=GELU, defaults={"use_parallel_residual": True}
    ),
    "starcoder2": replace(_NEOX, activations={"gelu_pytorch_tanh": "gelu_tanh"}),
    "nemotron": _NEOX,
    "jais2": _NEOX,
    "phi2": Architecture(phi2, layer_norm=True),
    "stablelm": Architecture(stablelm, layer_norm=True),
}
