"""Gemma: it scales embeddings; Gemma 2 and 3 also have norms after attention and MLP, and windows.

In Gemma 4 layers differ in their heads, and each layer may have its own embedding of a token.
``gemma3n.py`` builds Gemma 3n from parts of it.
``files/huggingface/families/gemma.py`` reads their folders.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from cutaway.compute.model.architectures.llama import LayerWiring, llama
from cutaway.compute.model.architectures.parts import (
    SEES_ALL,
    embedding,
    gated_mlp,
    head,
)
from cutaway.compute.model.config import Architecture, ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.layers import HEADS, KV_HEADS, head_dim, heads_by_layer
from cutaway.compute.model.metadata import MetadataReader
from cutaway.compute.model.mixture import Mixture
from cutaway.compute.model.ops.attention import Heads, Mask
from cutaway.errors import FormatError


def gemma(g: Graph, c: ModelConfig) -> Tensor:
    """Build Gemma (2024, arXiv 2403.08295): Llama with another gate. Returns logits, (L, vocab).

    In GGUF the 1 that Gemma adds to the weights of norms is added already.
    """
    return llama(g, c, LayerWiring(mlp=_mlp), scale=c.hidden**0.5)


def gemma2(g: Graph, c: ModelConfig, *, norms: str = "") -> Tensor:
    """Build Gemma 2 (Gemma Team 2024, arXiv 2408.00118). Returns the logits, (L, vocab).

    norms: see ``attention``
    """
    ropes = [c.rope_local if norms and window else c.rope for window in c.windows]
    wiring = LayerWiring(norms=norms, mlp=_mlp, post_norm=Graph.rms_norm)
    return llama(g, c, wiring, ropes=ropes, scale=c.hidden**0.5)


def vaultgemma(g: Graph, c: ModelConfig) -> Tensor:
    """Build Gemma 2 without the norms after attention and MLP (VaultGemma, arXiv 2510.15001)."""
    return llama(g, c, LayerWiring(mlp=_mlp), scale=c.hidden**0.5)


def _mlp(g: Graph, _: ModelConfig, h: Tensor, layer: int) -> list[Tensor]:
    return [gated_mlp(g, h, f"blk.{layer}.", g.gelu_mul)]


def gemma3(g: Graph, c: ModelConfig) -> Tensor:
    """Gemma 2 with a norm of each head's query and key (Gemma Team 2025, arXiv 2503.19786)."""
    return gemma2(g, c, norms="head")


def gemma_embedding(g: Graph, c: ModelConfig) -> Tensor:
    """Build Gemma 3 without a head, in which tokens see to both sides (arXiv 2509.20354)."""
    gemma3(g, c)
    return g.cut_head()


# -- Gemma 4: what only it has ---------------------------------------------------------------------


class OwnHeads(NamedTuple):
    """The key-value heads of one layer, where layers differ, and the layer that stores them.

    reads  the number of the layer whose keys and values it reads: its own, or an earlier layer's
    """

    kv_heads: int
    head_dim: int
    reads: int


def _own_heads(read: MetadataReader, windows: Sequence[int]) -> tuple[OwnHeads, ...]:
    """Read each layer's heads; a key says how many layers at the end read an earlier layer's."""
    layers, heads = len(windows), read.size(HEADS)
    counts = heads_by_layer(read, KV_HEADS, layers, usual=heads)
    width = max(read.size("embedding_length") // heads, 1)
    full = head_dim(read, width)
    local = head_dim(read, full, "_swa")
    dims = [local if window else full for window in windows]
    first = layers - read.size_or_zero("attention.shared_kv_layers")
    last = {bool(windows[i]): i for i in range(first)}
    if any(bool(window) not in last for window in windows[max(first, 0) :]):
        raise FormatError(
            f"{read.prefix}.attention.shared_kv_layers leaves no layer whose keys could be read"
        )
    reads = [i if i < first else last[bool(windows[i])] for i in range(layers)]
    return tuple(OwnHeads(counts[i], dims[i], reads[i]) for i in range(layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4(ModelConfig):
    """The config of Gemma 4, whose ``head_dim`` is the largest width; own_heads: by layer."""

    own_heads: tuple[OwnHeads, ...]


def read_heads(read: MetadataReader, windows: Sequence[int]) -> Heads:
    """Read the heads of Gemma 4: as wide as the widest layer's."""
    layers = _own_heads(read, windows)
    widest = max(layer.head_dim for layer in layers)
    return Heads(read.size(HEADS), layers[-1].kv_heads, widest)


def read_gemma4(read: MetadataReader, c: ModelConfig) -> Gemma4:
    """Read what Gemma 4 has besides a usual config."""
    scale = read.or_zero("attention.scale") or 1.0
    return c.as_kind(Gemma4, own_heads=_own_heads(read, c.windows), attention_scale=scale)


def gemma4(g: Graph, c: Gemma4) -> Tensor:
    """Build Gemma 4 (2026): E2B, E4B, 12B, 26B-A4B, 31B. Returns the logits, (L, vocab)."""
    x = _layers(g, c, embed(g, c), source="per_layer_token_embd")
    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))


def embedding_gemma2(g: Graph, c: Gemma4) -> Tensor:
    """Build EmbeddingGemma 2 (2026), a Gemma 4 in which tokens see to both sides.

    Returns rows as wide as embeddings, (L, n), in place of logits.
    """
    x = _layers(g, c, embed(g, c), source="per_layer_model_proj")
    x = g.rms_norm(x, "output_norm", c.norm_eps)
    return g.logit_rows(g.linear(x, "output_proj"))


def embed(g: Graph, c: ModelConfig) -> Tensor:
    """Add the embedding: -> (M, hidden)."""
    return g.scale(embedding(g, c), c.hidden**0.5)


def _layers(
    g: Graph, c: Gemma4, x: Tensor, *, source: str, scale: str = "layer_output_scale"
) -> Tensor:
    """Add all layers: (M, hidden) -> (M, hidden).

    source: the matrix without which layers have no embeddings of their own
    scale: the name of the number by which each layer's output is multiplied
    """
    beside = embed_layers(g, c, x) if g.has(f"{source}.weight") else None
    for layer, p in enumerate(g.layers(c.layers)):
        h = g.rms_norm(x, f"{p}attn_norm", c.norm_eps)
        a = attention(g, c, h, layer)
        x = g.add(x, g.rms_norm(a, f"{p}post_attention_norm", c.norm_eps))
        m = _feed_forward(g, c, x, p)
        x = g.add(x, g.rms_norm(m, f"{p}post_ffw_norm", c.norm_eps))
        if beside is not None:
            n = beside.width // c.layers
            part = g.pick(beside, beside.width, layer * n, (layer + 1) * n)
            part = g.gelu_mul(g.linear(x, f"{p}inp_gate"), part)
            x = g.add(x, g.rms_norm(g.linear(part, f"{p}proj"), f"{p}post_norm", c.norm_eps))
        if g.has(f"{p}{scale}.weight"):
            x = g.scale_by(x, f"{p}{scale}")
    return x


def embed_layers(g: Graph, c: ModelConfig, x: Tensor) -> Tensor:
    """Return the layers' own embeddings, side by side: (M, layers·n).

    EmbeddingGemma 2 computes them from the model's embedding alone; Gemma 4 also has a table.
    """
    token, width = None, g.matrix("per_layer_model_proj")[0]
    n = max(width // c.layers, 1)
    if width != c.layers * n:
        raise FormatError(
            f"tensor per_layer_model_proj.weight has {width} rows, which is no whole number for "
            f"each of {c.layers} layers"
        )
    if g.has("per_layer_token_embd.weight"):
        token = g.scale(_embed_tokens(g, width), n**0.5)
    seen = g.scale(g.linear(x, "per_layer_model_proj"), c.hidden**-0.5)
    seen = g.rms_norm(seen, "per_layer_proj_norm", c.norm_eps, group=n)
    return seen if token is None else g.scale(g.add(seen, token), 2**-0.5)


def _embed_tokens(g: Graph, expected: int) -> Tensor:
    """Add the table of all layers' embeddings; FormatError unless rows have the expected width."""
    (rows, width), tokens = g.matrix("per_layer_token_embd"), g.matrix("token_embd")[0]
    if rows > tokens or width != expected:
        raise FormatError(
            f"tensor per_layer_token_embd.weight is {rows} by {width}, which is no row of "
            f"{expected} numbers for each of {tokens} tokens"
        )
    return g.embed_stored("per_layer_token_embd")


def attention(g: Graph, c: Gemma4, h: Tensor, layer: int, *, needs_values: bool = False) -> Tensor:
    """Attention with norms of queries, keys and values: (M, hidden) -> (M, hidden).

    If a layer has no matrix for values, its values are its keys before their norm.

    needs_values: whether a FormatError says instead that the matrix is missing
    """
    p, (kv_heads, n, reads) = f"blk.{layer}.", c.own_heads[layer]
    window = c.windows[layer]
    rope = c.rope_local if window else c.rope
    factors = None if window or not g.has("rope_freqs.weight") else "rope_freqs"
    q = g.rms_norm(g.linear(h, f"{p}attn_q"), f"{p}attn_q_norm", c.norm_eps, group=n)
    q = g.rope(q, rope, head_dim=n, factors=factors)
    scale = c.attention_scale
    if reads != layer:
        for unused in ("attn_k", "attn_v", "attn_k_norm"):  # some files have copies of them
            g.allow_unused(f"{p}{unused}.weight")
        a = g.attend_again(q, layer=layer, reads=reads, heads=c.heads, scale=scale)
        return g.linear(a, f"{p}attn_output")
    k = g.linear(h, f"{p}attn_k")
    has_values = needs_values or g.has(f"{p}attn_v.weight")
    v = g.linear(h, f"{p}attn_v") if has_values else k
    v = g.rms_norm(v, "", c.norm_eps, group=n)
    k = g.rope(
        g.rms_norm(k, f"{p}attn_k_norm", c.norm_eps, group=n), rope, head_dim=n, factors=factors
    )
    mask = Mask(reach=window) if c.attention == "bidirectional" else Mask(window)
    a = g.attend(
        q, k, v, layer=layer, heads=Heads(c.heads, kv_heads, n), scale=scale, mask=mask
    )  # fmt: skip
    return g.linear(a, f"{p}attn_output")


def _feed_forward(g: Graph, c: ModelConfig, x: Tensor, p: str) -> Tensor:
    """Add an MLP and, side by side with it, experts, both with own norms: (M, n) -> (M, n)."""
    m = gated_mlp(g, g.rms_norm(x, f"{p}ffn_norm", c.norm_eps), p, g.gelu_mul)
    if c.mixture is None:
        return m
    m = g.rms_norm(m, f"{p}post_ffw_norm_1", c.norm_eps)
    read = g.rms_norm(x, f"{p}ffn_gate_inp", c.norm_eps, ending="scale")
    scores = g.linear(g.scale(read, c.hidden**-0.5), f"{p}ffn_gate_inp")
    y = g.experts(g.rms_norm(x, f"{p}pre_ffw_norm_2", c.norm_eps), scores, p, c.mixture)
    return g.add(m, g.rms_norm(y, f"{p}post_ffw_norm_2", c.norm_eps))


# -- DiffusionGemma --------------------------------------------------------------------------------


_CONDITION = "self_cond_"


def diffusion_gemma(g: Graph, c: Gemma4) -> Tensor:
    """Build DiffusionGemma (2026), as it reads a prompt: Gemma 4. Returns the logits, (L, vocab).

    Its layers have two numbers that multiply their output: one for the prompt, one for a canvas.
    """
    for name in ("pre_norm", "gate", "up", "down"):
        g.allow_unused(f"{_CONDITION}{name}.weight")
    for i in range(c.layers):
        g.allow_unused(f"blk.{i}.layer_output_scale.weight")
    return _diffusion_gemma(g, c, embed(g, c), "enc_layer_output_scale")


def diffusion_gemma_canvas(g: Graph, c: Gemma4) -> Tensor:
    """Build DiffusionGemma, as it reads a block of a canvas. Returns the logits, (L, vocab).

    A row reads its token and the blend of what the last pass predicted, zeros in the first pass.
    """
    blend = g.scale(g.given_rows(c.hidden), c.hidden**0.5)
    x = embed(g, c)
    h = g.rms_norm(blend, f"{_CONDITION}pre_norm", c.norm_eps)
    gated = g.gelu_mul(g.linear(h, f"{_CONDITION}gate"), g.linear(h, f"{_CONDITION}up"))
    x = g.rms_norm(g.add(x, g.linear(gated, f"{_CONDITION}down")), "", c.norm_eps)
    return _diffusion_gemma(g, c, x, "layer_output_scale")


def _diffusion_gemma(g: Graph, c: Gemma4, x: Tensor, scale: str) -> Tensor:
    x = _layers(g, c, x, source="per_layer_token_embd", scale=scale)
    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))


_PATTERN = "attention.sliding_window_pattern"


_LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}


def _scale_27b(read: MetadataReader, c: ModelConfig) -> ModelConfig:
    """Scale scores of the 27B model by hidden / heads, not by the width of its heads."""
    if c.layers != _LAYERS_OF_27B[c.architecture] or read.or_zero("attention.scale"):
        return c
    return replace(c, attention_scale=(c.hidden / c.heads) ** -0.5)


ROWS: Mapping[str, Architecture] = {
    "gemma": Architecture(gemma),
    "gemma2": Architecture(
        gemma2, extend=_scale_27b,
        defaults={
            "attention.sliding_window": 4096, _PATTERN: 2, "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
    ),
    "vaultgemma": Architecture(vaultgemma),
    "gemma3": Architecture(gemma3, extend=_scale_27b, defaults={_PATTERN: 6}),
    "gemma4": Architecture(
        gemma4, heads=read_heads, extend=read_gemma4, mixture=Mixture(used=1, activation="gelu_mul")
    ),
    "embedding-gemma2": Architecture(
        embedding_gemma2, heads=read_heads, extend=read_gemma4, defaults=SEES_ALL
    ),
    "diffusion-gemma": Architecture(
        diffusion_gemma, canvas=diffusion_gemma_canvas, heads=read_heads, extend=read_gemma4,
        mixture=Mixture(used=1, activation="gelu_mul"),
        defaults={"canvas_length": 256},
    ),
    "gemma-embedding": Architecture(gemma_embedding, defaults={_PATTERN: 6} | SEES_ALL),
}  # fmt: skip
