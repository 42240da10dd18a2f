"""Llama, and architectures that are wired like it or only have their norms elsewhere.

``files/huggingface/families/llama.py`` reads their folders.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import numpy as np

from cutaway.compute.model.architectures.parts import (
    OutputGate,
    attention,
    embedding,
    feed_forward,
    head,
    plain_mlp,
)
from cutaway.compute.model.config import Architecture, ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.metadata import MetadataReader
from cutaway.compute.model.positions import Rope
from cutaway.errors import FormatError

SECOND_NORM = "post_attention_norm"
"""The name that some files have for the norm before the MLP."""
Mlp = Callable[[Graph, ModelConfig, Tensor, int], list[Tensor]]
"""Computes from a layer's normed input the terms that its MLP or experts add to the stream."""
Norm = Callable[[Graph, Tensor, str, float], Tensor]
"""Adds a norm of the stream, given the name of the norm's weights and its epsilon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWiring:
    """How a layer of a decoder differs from Llama's.

    norms: see ``attention``
    norm: adds a norm of the stream
    second_norm: the files' name for the norm before the MLP
    post_norm: adds the norms after attention and after the MLP; None: there are none
    mlp: adds the MLP, or experts
    has_sinks: whether each head has one more score than those of the tokens
    gate, has_sub_norm: see ``attention``
    is_parallel: whether attention and MLP read the same normed input, so that one norm is enough
    """

    norms: str = ""
    norm: Norm = Graph.rms_norm
    second_norm: str = "ffn_norm"
    post_norm: Norm | None = None
    mlp: Mlp = feed_forward
    has_sinks: bool = False
    gate: OutputGate | None = None
    has_sub_norm: bool = False
    is_parallel: bool = False


PLAIN_LLAMA = LayerWiring()
_POST_NORM_EPS = 1e-8  # Muse Glimmer's; files have no key for it


def llama(
    g: Graph, c: ModelConfig, wiring: LayerWiring = PLAIN_LLAMA,
    *, ropes: Sequence[Rope | None] | None = None, scale: float = 1.0,
) -> Tensor:  # fmt: skip
    """Build a pre-norm decoder with rotary positions, grouped heads and a gated MLP or experts.

    Touvron et al. 2023, arXiv 2302.13971; with experts Jiang et al. 2024, arXiv 2401.04088.
    ropes: the rope of each layer, None in it for a layer without positions; None: all have c.rope
    scale: the factor of the embedding
    Returns the logits, (L, vocab).
    """
    return add_layers(g, c, g.scale(embedding(g, c), scale), wiring, ropes=ropes)


def add_layers(
    g: Graph, c: ModelConfig, x: Tensor, wiring: LayerWiring,
    *, ropes: Sequence[Rope | None] | None = None,
) -> Tensor:  # fmt: skip
    """Add the layers, the last norm and the head: (M, hidden) -> (L, vocab). See ``llama``."""
    for layer, _ in enumerate(g.layers(c.layers)):
        x = llama_layer(g, c, x, layer, c.rope if ropes is None else ropes[layer], wiring=wiring)
    return head(g, c, wiring.norm(g, g.logit_rows(x), "output_norm", c.norm_eps))


def llama_layer(
    g: Graph, c: ModelConfig, x: Tensor, layer: int, rope: Rope | None,
    *, wiring: LayerWiring = PLAIN_LLAMA,
) -> Tensor:  # fmt: skip
    """Add a layer: (M, hidden) -> (M, hidden)."""
    w, p = wiring, f"blk.{layer}."
    h = w.norm(g, x, f"{p}attn_norm", c.norm_eps)
    a = attention(
        g, c, h, layer, rope, norms=w.norms, has_sinks=w.has_sinks, gate=w.gate,
        has_sub_norm=w.has_sub_norm,
    )  # fmt: skip
    if w.post_norm:
        a = w.post_norm(g, a, f"{p}post_attention_norm", c.norm_eps)
    x = g.add(x, g.scale(a, c.residual_scale))

    if not w.is_parallel:
        h = w.norm(g, x, f"{p}{w.second_norm}", c.norm_eps)
    terms = w.mlp(g, c, h, layer)
    if w.post_norm:
        terms = [w.post_norm(g, reduce(g.add, terms), f"{p}post_ffw_norm", c.norm_eps)]
    for term in terms:
        x = g.add(x, g.scale(term, c.residual_scale))
    return x


def qwen3(g: Graph, c: ModelConfig) -> Tensor:
    """Build Llama with a norm of each head's query and key (Yang et al. 2025, arXiv 2505.09388)."""
    return llama(g, c, LayerWiring(norms="head"))


def smollm3(g: Graph, c: ModelConfig) -> Tensor:
    """Llama without positions in every fourth layer (Yang et al. 2025, arXiv 2501.18795)."""
    return llama(g, c, ropes=[c.rope if (layer + 1) % 4 else None for layer in range(c.layers)])


def arcee(g: Graph, c: ModelConfig) -> Tensor:
    """Llama with a plain MLP (Arcee 2025, AFM 4.5B)."""
    return llama(g, c, LayerWiring(mlp=_relu2_mlp))


def _relu2_mlp(g: Graph, _: ModelConfig, h: Tensor, layer: int) -> list[Tensor]:
    return [plain_mlp(g, h, f"blk.{layer}.", g.relu2)]


def bitnet(g: Graph, c: ModelConfig) -> Tensor:
    """Build BitNet b1.58 (Wang et al. 2025, arXiv 2504.12285): a norm before each last matrix."""
    act = {"silu": g.silu, "relu2": g.relu2}[c.activation]

    def mlp(g: Graph, c: ModelConfig, h: Tensor, layer: int) -> list[Tensor]:
        p = f"blk.{layer}."
        inner = g.mul(act(g.linear(h, f"{p}ffn_gate")), g.linear(h, f"{p}ffn_up"))
        return [g.linear(g.rms_norm(inner, f"{p}ffn_sub_norm", c.norm_eps), f"{p}ffn_down")]

    return llama(g, c, LayerWiring(mlp=mlp, has_sub_norm=True))


def hunyuan(g: Graph, c: ModelConfig) -> Tensor:
    """Build Llama with a norm of each head's rotated query and rotated key (Hunyuan, dense)."""
    return llama(g, c, LayerWiring(norms="rotated head"))


def seed_oss(g: Graph, c: ModelConfig) -> Tensor:
    """Build Llama with biases, where GGUF names the norm before the MLP after attention."""
    return llama(g, c, LayerWiring(second_norm=SECOND_NORM))


def minicpm(g: Graph, c: ModelConfig) -> Tensor:
    """Build Llama with scales (Hu et al. 2024, arXiv 2404.06395), which early files do not have."""
    if c.embedding_scale == 1:
        raise FormatError("minicpm.embedding_scale is missing: convert the model again")
    return llama(g, c)


def olmo(g: Graph, c: ModelConfig) -> Tensor:
    """Build Llama with layer norms without weights (Groeneveld et al. 2024, arXiv 2402.00838)."""

    def norm(g: Graph, x: Tensor, _: str, eps: float) -> Tensor:
        return g.layer_norm(x, "", eps)

    return llama(g, c, LayerWiring(norm=norm))


def hyperclovax(g: Graph, c: ModelConfig) -> Tensor:
    """Build Granite, in some sizes with norms after attention and MLP too (HyperCLOVA X Think)."""
    has_post_norms = g.has("blk.0.post_attention_norm.weight")
    return llama(g, c, LayerWiring(post_norm=Graph.rms_norm if has_post_norms else None))


def nanochat(g: Graph, c: ModelConfig) -> Tensor:
    """Build nanochat (Karpathy 2025): no norm has weights, and one more comes before the layers.

    Heads are normed after rotation; a plain MLP has relu².
    """

    def norm(g: Graph, x: Tensor, _: str, eps: float) -> Tensor:
        return g.rms_norm(x, "", eps)

    wiring = LayerWiring(norms="rotated head, unweighted", norm=norm, mlp=_relu2_mlp)
    return add_layers(g, c, norm(g, embedding(g, c), "", c.norm_eps), wiring)


def muse_glimmer(g: Graph, c: ModelConfig) -> Tensor:
    """Build Muse Glimmer (Meta 2026): embeddings are normed, attention has a gate, parts have norms
    before and after them, and only layers with a window rotate. Files have logits' factor.
    """

    def post_norm(g: Graph, x: Tensor, weight: str, _: float) -> Tensor:
        return g.rms_norm(x, weight, _POST_NORM_EPS)

    wiring = LayerWiring(norms="head", post_norm=post_norm, gate=Graph.sigmoid_mul)
    ropes = [c.rope if window else None for window in c.windows]
    x = g.rms_norm(embedding(g, c), "", c.norm_eps)
    return add_layers(g, c, x, wiring, ropes=ropes)


# -- Granite with windows and sinks: each layer has a rope of its own, or none ---------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GraniteSwash(ModelConfig):
    """The config of Granite Swash; ropes: by layer, None for a layer without positions."""

    ropes: tuple[Rope | None, ...]


def _read_swash(read: MetadataReader, c: ModelConfig) -> GraniteSwash:
    bases = read.value("rope.layer_freq_base")
    if bases is None:
        return c.as_kind(GraniteSwash, ropes=(c.rope,) * c.layers)
    if not isinstance(bases, np.ndarray) or bases.shape != (c.layers,) or bases.dtype.kind != "f":
        raise FormatError(
            f"metadata key {read.prefix}.rope.layer_freq_base must be a number for each of "
            f"{c.layers} layers"
        )
    numbers: list[float] = bases.tolist()
    by_base: dict[float, Rope | None] = {n: replace(c.rope, base=n) for n in numbers}
    by_base |= {0.0: None, c.rope.base: c.rope}  # attention knows the model's own rope by identity
    ropes = [by_base[n] for n in numbers]
    return c.as_kind(GraniteSwash, ropes=tuple(ropes))


def granite_swash(g: Graph, c: GraniteSwash) -> Tensor:
    """Build Granite Swash (IBM 2026): Granite with windows, sinks, and some layers unrotated."""
    return llama(g, c, LayerWiring(has_sinks=True), ropes=c.ropes)


# -- OLMo 2 and 3, EXAONE 4: norms after attention and MLP only ------------------------------------


def olmo2(g: Graph, c: ModelConfig) -> Tensor:
    """Build OLMo 2 (arXiv 2501.00656), or 3 (arXiv 2512.13961), which has windows and two ropes."""
    ropes: list[Rope | None] = [c.rope_local if window else c.rope for window in c.windows]
    return norms_behind(g, c, ropes, norms="all")


def exaone4(g: Graph, c: ModelConfig) -> Tensor:
    """Build EXAONE 4 (2025, arXiv 2507.11407). If some layers have windows, only these rotate."""
    return norms_behind(g, c, windows_rotate(c), norms="head")


def windows_rotate(c: ModelConfig) -> list[Rope | None]:
    """Return the rope of each layer where only windows rotate; without windows all layers do."""
    is_local = any(c.windows)
    return [c.rope if window or not is_local else None for window in c.windows]


def norms_behind(g: Graph, c: ModelConfig, ropes: Sequence[Rope | None], *, norms: str) -> Tensor:
    """Wire norms after attention and MLP or experts alone; return logits, (L, vocab).

    ropes: by layer; norms: see ``attention``
    """
    x = embedding(g, c)  # (M, hidden)
    for layer, _ in enumerate(g.layers(c.layers)):
        x = layer_of_norms_behind(g, c, x, layer, ropes[layer], norms=norms)
    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))


def layer_of_norms_behind(
    g: Graph, c: ModelConfig, x: Tensor, layer: int, rope: Rope | None, *, norms: str
) -> Tensor:
    """Add a layer of ``norms_behind``: (M, hidden) -> (M, hidden)."""
    p = f"blk.{layer}."
    a = attention(g, c, x, layer, rope, norms=norms)
    x = g.add(x, g.rms_norm(a, f"{p}post_attention_norm", c.norm_eps))
    m = reduce(g.add, feed_forward(g, c, x, layer))
    return g.add(x, g.rms_norm(m, f"{p}post_ffw_norm", c.norm_eps))


# -- GLM 4: norms before and after attention and MLP, rope on a part of each head ------------------


def glm4(g: Graph, c: ModelConfig) -> Tensor:
    """Build GLM-4-0414. Returns the logits, (L, vocab)."""
    return llama(g, c, LayerWiring(post_norm=Graph.rms_norm))


# -- Cohere's Command: attention and MLP side by side, after one norm without a bias ---------------


def cohere(g: Graph, c: ModelConfig, *, rotates_all: bool = True) -> Tensor:
    """Build Command R. Returns the logits, (L, vocab).

    rotates_all: False: layers that see the whole text have no positions
    """
    ropes = [c.rope if rotates_all or window else None for window in c.windows]
    norms = centred_heads(g)  # in Command R+
    norm = partial(Graph.layer_norm, bias=False)
    return llama(g, c, LayerWiring(norms=norms, norm=norm, is_parallel=True), ropes=ropes)


def centred_heads(g: Graph) -> str:
    """Return the norms of heads, each less its mean, if the file has their weights."""
    return "centred head" if g.has("blk.0.attn_q_norm.weight") else ""


def cohere2(g: Graph, c: ModelConfig) -> Tensor:
    """Build Command A or R7B (Cohere 2025, arXiv 2504.00698): 3 of 4 layers have windows."""
    return cohere(g, c, rotates_all=False)


def _divide_logits(_read: MetadataReader, c: ModelConfig) -> ModelConfig:
    """Turn the factor of logits in Cohere's files into a divisor, which other files have."""
    return replace(c, logit_scale=1 / c.logit_scale)


_EVERY_FOURTH = {"attention.sliding_window_pattern": 4}
_LLAMA = Architecture(llama, interleaved_rope=True)
_COHERE = Architecture(cohere, layer_norm=True, interleaved_rope=True, extend=_divide_logits)

ROWS: Mapping[str, Architecture] = {
    "llama": _LLAMA,  # smollm 1 and 2, mistral, mixtral and many descendants
    "mistral3": _LLAMA,  # Mistral Small 3, Ministral 3
    "internlm2": _LLAMA,
    "chatglm": _LLAMA,  # GLM 4 9B of 2024
    "ernie4_5": _LLAMA,
    "minicpm": replace(_LLAMA, build=minicpm),
    "exaone": Architecture(llama),
    "seed_oss": Architecture(seed_oss),
    "hunyuan-dense": Architecture(hunyuan),
    "smollm3": replace(_LLAMA, build=smollm3),
    "qwen2": Architecture(  # and 2.5: it has biases; MiMo, which has a draft head
        llama, layer=lambda g, c, x, layer: llama_layer(g, c, x, layer, c.rope)
    ),
    "qwen3": Architecture(qwen3),
    # These models read pictures; with text alone, the three positions of a token are one.
    "qwen2vl": Architecture(llama),
    "qwen3vl": Architecture(qwen3),
    "qwen3vlmoe": Architecture(qwen3),
    "phi3": Architecture(llama),  # and 4: its matrices are fused
    "olmo": replace(_LLAMA, build=olmo, layer_norm=True),
    "cwm": Architecture(llama),  # Code World Model: some layers have windows
    "hyperclovax": Architecture(hyperclovax),
    "nanochat": Architecture(nanochat),
    "muse-glimmer": Architecture(
        muse_glimmer, interleaved_rope=True, extend=_divide_logits,
        defaults={"attention.sliding_window_pattern": 4},
    ),
    "granite-swash": Architecture(granite_swash, extend=_read_swash),  # experts in some sizes
    "arcee": replace(_LLAMA, build=arcee),
    "bitnet": Architecture(bitnet, activations={"silu": "silu", "relu2": "relu2"}),
    "olmo2": Architecture(olmo2, defaults=_EVERY_FOURTH | {"rope.freq_base_swa": 0}),  # and 3
    "exaone4": Architecture(exaone4, defaults=_EVERY_FOURTH),
    "glm4": replace(_LLAMA, build=glm4),
    "command-r": _COHERE,
    "cohere2": replace(_COHERE, build=cohere2, defaults=_EVERY_FOURTH),
    # Granite has scales; where the scaling of rope is not "finetuned", nothing is rotated.
    "granite": replace(_LLAMA, must_be={"rope.scaling.finetuned": (True,)}),
}  # fmt: skip
