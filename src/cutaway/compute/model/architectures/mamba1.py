"""Mamba 1, in all layers or beside attention: Mamba, Falcon-Mamba, Jamba.

``files/huggingface/families/mamba1.py`` reads their folders.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from cutaway.compute.model.architectures.parts import attention, embedding, feed_forward, head
from cutaway.compute.model.config import Architecture, ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.metadata import MetadataReader
from cutaway.compute.model.mixture import Mixture
from cutaway.errors import FormatError


class Scan(NamedTuple):
    """The sizes of a layer of Mamba 1.

    width  how many numbers a token has
    rank   from how many numbers their steps are computed
    keys   how many numbers of state each has
    norm   the epsilon of norms of steps, keys and queries that have no weights; 0: no such norms
    """

    width: int
    rank: int
    keys: int
    norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WithScans(ModelConfig):
    """A model with layers of Mamba 1, and their sizes."""

    scan: Scan


def _read_scan(read: MetadataReader, c: ModelConfig) -> WithScans:
    width, rank = read.size("ssm.inner_size"), read.size("ssm.time_step_rank")
    is_normed = read.flag("ssm.dt_b_c_rms", False)
    eps = read.number("ssm.dt_b_c_rms_epsilon", 1e-6) if is_normed else 0.0
    return c.as_kind(WithScans, scan=Scan(width, rank, read.size("ssm.state_size"), eps))


def mamba(g: Graph, c: WithScans) -> Tensor:
    """Build Mamba (Gu & Dao 2023, arXiv 2312.00752) or Falcon-Mamba (arXiv 2410.05355)."""
    x = embedding(g, c)  # (M, hidden)
    for layer, p in enumerate(g.layers(c.layers)):
        x = g.add(x, _mamba1(g, c, g.rms_norm(x, f"{p}attn_norm", c.norm_eps), layer))
    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))


def jamba(g: Graph, c: WithScans) -> Tensor:
    """Build Jamba (Lieber et al. 2024, arXiv 2403.19887): Mamba 1, or attention without positions.

    An MLP or experts follow both.
    """
    x = embedding(g, c)  # (M, hidden)
    for layer, p in enumerate(g.layers(c.layers)):
        h = g.rms_norm(x, f"{p}attn_norm", c.norm_eps)
        mixer = _mamba1 if c.recurrent[layer] else _attention
        x = g.add(x, mixer(g, c, h, layer))
        for m in feed_forward(g, c, g.rms_norm(x, f"{p}ffn_norm", c.norm_eps), layer):
            x = g.add(x, m)  # (M, hidden)
    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))


def _attention(g: Graph, c: WithScans, h: Tensor, layer: int) -> Tensor:
    return attention(g, c, h, layer, None)


def _mamba1(g: Graph, c: WithScans, h: Tensor, layer: int) -> Tensor:
    """Add a convolution, the scan, and a gate: (M, hidden) -> (M, hidden)."""
    p, (width, rank, keys, _) = f"blk.{layer}.", c.scan
    if not g.has(bias := f"{p}ssm_dt.bias"):
        raise FormatError(f"the model file lacks the tensor {bias}")
    x, z = (g.linear(h, f"{p}ssm_in", rows) for rows in ((0, width), (width, 2 * width)))
    x = g.silu(g.conv(x, f"{p}ssm_conv1d", layer=layer))
    ends = (0, rank, rank + keys, rank + 2 * keys)
    dt, k, q = (
        _norm(g, c, g.linear(x, f"{p}ssm_x", (ends[i], ends[i + 1])), f"{p}ssm_{part}_norm")
        for i, part in enumerate(("dt", "b", "c"))
    )
    y = g.selective_scan(x, g.linear(dt, f"{p}ssm_dt"), k, q, p, layer=layer)
    return g.linear(g.silu_mul(z, y), f"{p}ssm_out")


def _norm(g: Graph, c: WithScans, x: Tensor, weight: str) -> Tensor:
    if g.has(f"{weight}.weight"):
        return g.rms_norm(x, weight, c.norm_eps)
    return g.rms_norm(x, "", c.scan.norm) if c.scan.norm else x


_MAMBA = Architecture(mamba, has_states=True, extend=_read_scan)

ROWS: Mapping[str, Architecture] = {
    "mamba": _MAMBA,  # and Falcon-Mamba
    "jamba": replace(_MAMBA, build=jamba, mixture=Mixture(used=1, normed=False)),
}
