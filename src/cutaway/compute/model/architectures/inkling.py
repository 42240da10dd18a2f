"""Inkling 2: layers that read the sums of layers, not one stream, and may run again.

``files/huggingface/families/inkling.py`` reads its folders.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

from cutaway.compute.model.architectures.parts import embedding, experts, head
from cutaway.compute.model.config import MOST_DEPTH, Architecture, ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.metadata import MetadataReader
from cutaway.compute.model.mixture import Mixture
from cutaway.compute.model.ops.attention import Heads, Mask
from cutaway.compute.model.positions import GrowingRope, LooksBack, check_dim
from cutaway.errors import FormatError

_EPS = 1e-6  # of the norms of what is mixed
_MOST_SUMS = 8192  # that all layers read together; each takes some 14 ops


class Clips(NamedTuple):
    """The greatest lengths of a head's numbers: of queries and keys, and of relative states."""

    heads: float
    relative: float


class LoopedLayers(NamedTuple):
    """Layers first … last - 1 run several times, in passes; with one pass, there are none such."""

    first: int
    last: int
    passes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inkling(ModelConfig):
    """The config of Inkling 2.

    block           how many layers are summed before a new sum begins
    growth, period  by these queries grow with their positions; see ``GrowingRope``
    """

    loop: LoopedLayers
    block: int
    clips: Clips
    growth: float
    period: int


def _read_inkling(read: MetadataReader, c: ModelConfig) -> Inkling:
    block, loop = read.size("attention.residual_block_size"), _read_loop(read, c.layers)
    first, last, passes = loop
    if passes > 1 and (not first < last or first % block or last % block):
        raise FormatError(
            f"{read.prefix}.loop: {passes} passes over layers {first} to {last - 1} are not "
            f"supported, only over whole blocks of {block} after the first"
        )
    _check_size(read.prefix, c.layers + (passes - 1) * (last - first), -(-c.layers // block) + 1)
    clips = (read.number(f"attention.{name}_clip") for name in ("head", "relative"))
    return c.as_kind(
        Inkling, loop=loop, block=block, clips=Clips(*clips),
        growth=read.or_zero("attention.query_growth"),
        period=read.size("attention.query_growth_floor"),
    )  # fmt: skip


def _read_loop(read: MetadataReader, layers: int) -> LoopedLayers:
    passes = read.size("loop.passes")
    if passes == 1:
        return LoopedLayers(layers, layers, passes)
    first, last = (read.size(f"loop.{name}", largest=layers) for name in ("first", "last"))
    return LoopedLayers(first, last, passes)


def _check_size(prefix: str, depth: int, sums: int) -> None:
    """Refuse a model for which a small file would make too large a graph."""
    if depth > MOST_DEPTH:
        raise FormatError(
            f"{prefix}.loop.passes makes the model {depth} layers deep; up to {MOST_DEPTH} "
            "are supported"
        )
    if depth * sums > _MOST_SUMS:
        raise FormatError(
            f"{prefix}.block_count, attention.residual_block_size and loop.passes make {depth} "
            f"layers read up to {sums} sums each; up to {_MOST_SUMS} sums in all are supported"
        )


class _Streams(NamedTuple):
    """What a layer reads.

    blocks  the normed sums of blocks of layers so far; the embedding is the first
    x       the sum of the block that has not ended
    """

    blocks: tuple[Tensor, ...]
    x: Tensor


def inkling(g: Graph, c: Inkling) -> Tensor:
    """Build Inkling 2 (Thinking Machines 2026). Returns the logits, (L, vocab)."""
    first, last, passes = c.loop
    x = g.rms_norm(embedding(g, c), "token_embd_norm", c.norm_eps)  # (M, hidden)
    streams = _run_layers(g, c, _Streams((), x), 0, first)
    before, streams = streams, _run_layers(g, c, streams, first, last)
    for again in range(1, passes):
        earlier = [*streams.blocks[len(before.blocks) + 1 :], g.rms_norm(streams.x, "", _EPS)]
        streams = _run_layers(
            g, c, before, first, last, depth=first + again * (last - first), earlier=earlier
        )
    streams = _run_layers(g, c, streams, last, c.layers, depth=last + (passes - 1) * (last - first))
    [x] = _mix(g, [*streams.blocks, g.rms_norm(streams.x, "", _EPS)], "output_mix", 1)
    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))


def _run_layers(
    g: Graph, c: Inkling, streams: _Streams, first: int, last: int,
    *, depth: int | None = None, earlier: Sequence[Tensor] = (),
) -> _Streams:  # fmt: skip
    """Run layers first … last - 1; earlier: what they made in the pass before, for messages."""
    for layer, p in enumerate(g.layers(last - first, first, depth=depth), first):
        messages = _mix(g, earlier, f"{p}loop_mix", 4) if earlier else []
        streams = _layer(g, c, streams, layer, messages)
    return streams


def _layer(
    g: Graph, c: Inkling, streams: _Streams, layer: int, messages: Sequence[Tensor]
) -> _Streams:
    """Add a layer; messages: for queries, keys, values and experts, if the layer runs again.

    In a layer that sees the whole text these three read something of their own each.
    """
    p, sources = f"blk.{layer}.", [*streams.blocks, g.rms_norm(streams.x, "", _EPS)]
    kinds = 1 if c.windows[layer] else 3
    reads = _mix(g, sources, f"{p}attn_mix", kinds) if layer else [streams.x] * kinds
    reads = reads * (3 // kinds)
    if messages:
        reads = [
            _receive(g, c, x, m, f"{p}loop_{n}")
            for x, m, n in zip(reads, messages, "qkv", strict=False)
        ]
    a = _attention(g, c, _norm_inputs(g, c, reads, layer), layer)
    y = _add_scaled_conv(g, a, f"{p}attn_conv", layer)
    blocks = streams.blocks
    if layer % c.block == 0:
        blocks = tuple(sources)
    else:
        y = g.add(streams.x, y)
    [h] = _mix(g, [*blocks, g.rms_norm(y, "", _EPS)], f"{p}ffn_mix", 1)
    if messages:
        h = _receive(g, c, h, messages[3], f"{p}loop_ffn")
    m = experts(g, c, g.rms_norm(h, f"{p}ffn_norm", c.norm_eps), p)
    return _Streams(blocks, g.add(y, _add_scaled_conv(g, m, f"{p}ffn_conv", layer)))


def _mix(g: Graph, sources: Sequence[Tensor], weight: str, queries: int) -> list[Tensor]:
    """Return a mean of sources for each row of a matrix, whose products with them weigh them.

    Attention residuals (2026): each token attends to what earlier layers made of it.
    """
    (rows, n), count = g.matrix(weight), len(sources)
    if rows != queries:
        raise FormatError(f"tensor {weight}.weight has {rows} rows, not {queries}")
    scores = reduce(lambda a, b: g.join(a, b, queries), [g.linear(x, weight) for x in sources])
    shares = g.softmax(g.scale(scores, n**-0.5), group=count)  # (M, queries·count)
    means = []
    for query in range(queries):
        places = range(query * count, (query + 1) * count)
        parts = [
            g.mul(g.pick(shares, shares.width, i, i + 1), x)
            for i, x in zip(places, sources, strict=True)
        ]
        means.append(reduce(g.add, parts))
    return means


def _receive(g: Graph, c: Inkling, h: Tensor, message: Tensor, weight: str) -> Tensor:
    """Forget some of h, and add some of a message: (M, n) -> (M, n)."""
    first, second = (g.rms_norm(x, "", c.norm_eps) for x in (h, message))
    narrow = g.linear(g.join(first, second, 1), f"{weight}_down")
    forget, gain = (
        g.softcap(g.linear(narrow, f"{weight}_{part}"), 1.0)  # a cap of 1 is tanh
        for part in ("forget", "gain")
    )
    return g.add(g.add(h, g.scale(g.mul(forget, h), -1)), g.mul(gain, message))


def _norm_inputs(g: Graph, c: Inkling, reads: Sequence[Tensor], layer: int) -> list[Tensor]:
    """Norm the inputs of queries, keys and values, by one norm or one for each of them."""
    names = [f"blk.{layer}.attn_norm_{part}" for part in "qkv"]
    if c.windows[layer]:
        names = [f"blk.{layer}.attn_norm"] * 3
    pairs = [*zip(reads, names, strict=True)]
    normed = {pair: g.rms_norm(*pair, c.norm_eps) for pair in dict.fromkeys(pairs)}
    return [normed[pair] for pair in pairs]


def _attention(g: Graph, c: Inkling, reads: Sequence[Tensor], layer: int) -> Tensor:
    """Add attention: (M, hidden) three times -> (M, hidden).

    Queries say how much a key's distance adds to its score, and how high the sink is.
    """
    p, (h, of_keys, of_values) = f"blk.{layer}.", reads
    q = g.clip_norm(g.linear(h, f"{p}attn_q"), f"{p}attn_q_clip", c.clips.heads, group=c.head_dim)
    relative = g.linear(h, f"{p}attn_rel")
    n = relative.width // c.heads
    relative = g.clip_norm(relative, f"{p}attn_rel_clip", c.clips.relative, group=n)
    if not c.windows[layer]:
        q, relative = _grow(g, c, q, c.head_dim), _grow(g, c, relative, n)
    k = _keys_or_values(g, c, of_keys, f"{p}attn_k", layer)
    v = _keys_or_values(g, c, of_values, f"{p}attn_v", layer)
    a = g.attend(
        q, g.clip_norm(k, "", c.clips.heads, group=c.head_dim),
        g.rms_norm(v, "", c.norm_eps, group=c.head_dim),
        g.heads_linear(relative, f"{p}attn_rel_bank", heads=c.heads),
        layer=layer, heads=Heads(c.heads, c.kv_heads, c.head_dim), scale=c.attention_scale,
        mask=Mask(c.windows[layer]), bias=LooksBack(g.matrix(f"{p}attn_rel_bank")[0]),
        sinks=g.linear(h, f"{p}attn_sink"),
    )  # fmt: skip
    return g.linear(g.sigmoid_mul(g.linear(h, f"{p}attn_gate"), a), f"{p}attn_output")


def _grow(g: Graph, c: Inkling, x: Tensor, head_dim: int) -> Tensor:
    """Multiply each head's numbers by what grows with the position."""
    check_dim(head_dim, head_dim)
    rope = GrowingRope(
        dim=head_dim, base=1.0, growth=c.growth, period=c.period, offset=1, turns=False,
        is_smooth=True,
    )  # fmt: skip
    return g.rope(x, rope, head_dim=head_dim)


def _keys_or_values(g: Graph, c: Inkling, h: Tensor, weight: str, layer: int) -> Tensor:
    """Add a linear layer and a convolution.

    In a layer that sees the whole text each token adds to the convolution's weights.
    """
    more = [] if c.windows[layer] else [g.linear(h, f"{weight}_taps")]
    return _add_scaled_conv(g, g.linear(h, weight), f"{weight}_conv", layer, *more)


def _add_scaled_conv(g: Graph, x: Tensor, weight: str, layer: int, *more: Tensor) -> Tensor:
    """Add a convolution to its input, and divide by the root of how many numbers are summed."""
    summed = 1 + g.shapes.get(f"{weight}.weight", (0,))[-1] * (1 + len(more))
    return g.scale(g.add(g.conv(x, weight, *more, layer=layer), x), summed**-0.5)


ROWS: Mapping[str, Architecture] = {
    "inkling2": Architecture(
        inkling, extend=_read_inkling,
        mixture=Mixture(used=1, gating="sigmoid", activation="capped_swiglu", limit=4.0),
    ),
}  # fmt: skip
