"""RWKV-7: no attention; each token is mixed with the one before, and changes a state.

``files/huggingface/families/rwkv.py`` reads its folders.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp

from cutaway.compute.model.architectures.parts import embedding, head
from cutaway.compute.model.config import Architecture, ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.metadata import MetadataReader
from cutaway.errors import FormatError


@dataclass(frozen=True, slots=True, kw_only=True)
class Rwkv(ModelConfig):
    """The config of RWKV; head_size: how many numbers a head has; head_eps: of heads' norms."""

    head_size: int
    head_eps: float


def _read_rwkv(read: MetadataReader, c: ModelConfig) -> Rwkv:
    size = read.size("wkv.head_size")
    if c.hidden % size:
        raise FormatError(
            f"{c.hidden} numbers are no heads of {size} ({read.prefix}.wkv.head_size)"
        )
    return c.as_kind(Rwkv, head_size=size, head_eps=read.number("attention.group_norm_epsilon"))


_DECAY = exp(-0.5)  # the factor in a state's decay: a state keeps at least e^-_DECAY
_TINY = 1e-30  # an epsilon that changes no number


def rwkv7(g: Graph, c: Rwkv) -> Tensor:
    """Build RWKV-7 (Peng et al. 2025, arXiv 2503.14456)."""
    x = g.layer_norm(embedding(g, c), "token_embd_norm", c.norm_eps)  # (M, hidden)
    first: Tensor | None = None
    for layer, p in enumerate(g.layers(c.layers)):
        h = g.layer_norm(x, f"{p}attn_norm", c.norm_eps)
        mixed, first = _time_mix(g, c, h, layer, first)
        x = g.add(x, mixed)
        h = g.layer_norm(x, f"{p}attn_norm_2", c.norm_eps)
        k = g.linear(g.token_shift(h, f"{p}channel_mix_lerp_k", layer=layer), f"{p}channel_mix_key")
        x = g.add(x, g.linear(g.relu2(k), f"{p}channel_mix_value"))
    return head(g, c, g.layer_norm(g.logit_rows(x), "output_norm", c.norm_eps))


def _time_mix(
    g: Graph, c: Rwkv, h: Tensor, layer: int, first: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Add what stands for attention; first: the first layer's values, which are returned, too."""
    p, n = f"blk.{layer}.time_mix_", c.head_size
    xr, xw, xk, xv, xa, xg = (
        g.token_shift(h, f"{p}lerp_fused", layer=layer, row=row) for row in range(6)
    )
    r, k, v = g.linear(xr, f"{p}receptance"), g.linear(xk, f"{p}key"), g.linear(xv, f"{p}value")
    keep = g.decay(_narrow(g, g.softcap(g.linear(xw, f"{p}w1"), 1.0), f"{p}w"), _DECAY)
    if first is None:
        first = v
        for i in range(3):  # some files have matrices that this layer does not read
            g.allow_unused(f"{p}v{i}.weight")
    else:
        v = _lerp(g, v, first, _narrow(g, g.linear(xv, f"{p}v1"), f"{p}v"))
    learn = _narrow(g, g.linear(xa, f"{p}a1"), f"{p}a")
    removed = g.rms_norm(g.weigh(k, f"{p}k_k"), "", _TINY, group=n)
    removed = g.scale(removed, n**-0.5)  # of length 1
    learned = g.weigh(k, f"{p}k_a")
    k = g.add(k, g.add(g.sigmoid_mul(learn, learned), g.scale(learned, -1)))
    y = g.wkv7(v, r, keep, k, removed, g.sigmoid_mul(learn, removed), layer=layer, size=n)
    y = g.layer_norm(y, f"{p}ln", c.head_eps, group=n)
    y = g.own_value(g.weigh(r, f"{p}r_k"), k, v, y, size=n)
    gate = g.linear(g.sigmoid(g.linear(xg, f"{p}g1")), f"{p}g2")
    return g.linear(g.mul(gate, y), f"{p}output"), first


def _narrow(g: Graph, inner: Tensor, p: str) -> Tensor:
    """Add the second of two narrow matrices, and a bias, which files call the zeroth."""
    if not g.has(bias := f"{p}0.weight"):
        raise FormatError(f"the model file lacks the tensor {bias}")
    return g.linear(inner, f"{p}2", bias=f"{p}0", ending="weight")


def _lerp(g: Graph, a: Tensor, b: Tensor, gate: Tensor) -> Tensor:
    """Add a + (b - a) · sigmoid(gate)."""
    return g.add(a, g.sigmoid_mul(gate, g.add(b, g.scale(a, -1))))


ROWS: Mapping[str, Architecture] = {
    "rwkv7": Architecture(
        rwkv7, layer_norm=True, has_states=True, extend=_read_rwkv,
        defaults={"attention.group_norm_epsilon": 64e-5},
        must_be={"token_shift_count": (2,)},
    ),
}  # fmt: skip
