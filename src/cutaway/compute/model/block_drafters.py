"""Block drafters: heads that draft several tokens in one pass, as DFlash and DSpark do.

*DFlash* (arXiv 2602.06036): a few layers read a block that begins with the text's last token and
goes on with mask tokens. At each mask they predict the token that belongs there. Rows of the block
attend to the text before, and to each other, in causal layers only to earlier ones. The text's keys
and values come straight from the model: each layer's k and v matrices read ``fc`` of the model's
residual stream at some depths, side by side. So a drafter is two graphs over the same keys and
values: one stores those of the text, the other computes a block.

*DSpark* adds a *Markov head*: two thin matrices from the token before to what is added to a row's
logits, so that a draft token follows from the one drawn before it. Its first row drafts, too.

The drafter borrows the model's embedding, and its head, unless it has one for fewer tokens.
Metadata has GGUF's keys of ``dflash``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.model.anatomy import Anatomy
from cutaway.compute.model.architectures.parts import gated_mlp
from cutaway.compute.model.draft_heads import read_vocabulary
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.metadata import MetadataReader
from cutaway.compute.model.ops.attention import Heads, Mask
from cutaway.compute.model.ops.rows import LookUp
from cutaway.compute.model.positions import rope_of
from cutaway.errors import FormatError

PREFIX = "dflash."
"""How the names of a drafter's own tensors begin; GGUF's name follows."""
_FC, _MARKOV, _HEAD = f"{PREFIX}fc", f"{PREFIX}markov_w", f"{PREFIX}output"


@dataclass(frozen=True)
class BlockDrafter:
    """A drafter of blocks, and its inputs.

    block       the graph of a block: its rows' tokens in, logits out
    context     the graph that stores keys and values of the text; its rows are the streams
    markov      the graph from a token to what is added to the next row's logits; None: no such head
    streams     the names of the model's tensors that it reads, side by side
    block_size  the most rows of a block
    mask_id     the token of rows that are to be guessed
    first       the first row of a block that drafts: 0 if the last token's row guesses the next
    target_ids  the model's id of each token that is drafted; None: all have their own
    """

    block: Graph
    context: Graph
    markov: Graph | None
    streams: tuple[str, ...]
    block_size: int
    mask_id: int
    first: int
    target_ids: NDArray[np.int64] | None


def build_block_drafter(
    metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], target: Graph
) -> BlockDrafter:
    """Build a drafter whose tensors have these shapes, for the model whose graph is ``target``.

    FormatError if the drafter does not fit the model, or lacks a tensor.
    """
    read, anatomy = MetadataReader(metadata, "dflash"), Anatomy(target)
    lookup = next(op for op in target.ops if isinstance(op, LookUp))
    borrowed = {*lookup.weights.values(), *anatomy.head.weights.values()}
    streams = _streams(read, anatomy)
    maker = _Maker(read, {name: target.shapes[name] for name in borrowed} | dict(shapes))
    embedding, output = (op.weights["weight"] for op in (lookup, anatomy.head))
    output = f"{_HEAD}.weight" if f"{_HEAD}.weight" in shapes else output
    block = maker.block(embedding.removesuffix(".weight"), output.removesuffix(".weight"))
    context = maker.context(len(streams) * read.size("embedding_length"))
    markov = maker.markov() if f"{_MARKOV}1.weight" in shapes else None
    _check_all_used(shapes, [graph for graph in (block, context, markov) if graph])
    if markov:
        _check_markov(markov, tokens=target.ops[-1].out.width, drafted=block.ops[-1].out.width)
    if (mask_id := read.value("mask_token_id")) is None or mask_id >= target.ops[-1].out.width:
        raise FormatError(f"its mask token is {mask_id}, which the model does not have")
    return BlockDrafter(
        block, context, markov, streams, read.size("block_size"), int(mask_id),
        first=0 if read.flag("sample_from_anchor", markov is not None) else 1,
        target_ids=read_vocabulary(read, block.ops[-1].out.width, target),
    )  # fmt: skip


def _streams(read: MetadataReader, anatomy: Anatomy) -> tuple[str, ...]:
    """Return the streams that it reads; FormatError if the model has none of that width or depth.

    A file's numbers say how many of the model's layers come before a stream.
    """
    after, stream = [int(number) for number in read.value("target_layers", ())], anatomy.stream
    if not after or max(after) >= len(stream):
        raise FormatError(
            f"it reads the stream behind {max(after, default=0)} layers, and the model has "
            f"{len(stream) - 1}: it is another's"
        )
    width = next(op.out.width for op in anatomy.graph.ops if op.out.name == stream[0])
    if width != read.size("embedding_length"):
        raise FormatError(
            f"it reads streams of {read.size('embedding_length')} numbers, and the model's have "
            f"{width}: it is another's"
        )
    return tuple(stream[number] for number in after)


def _check_markov(markov: Graph, *, tokens: int, drafted: int) -> None:
    """Raise FormatError unless the Markov head reads all tokens and adds to all drafted ones."""
    for name, rows, owner in (
        (f"{_MARKOV}1", tokens, "the model's vocabulary"),
        (f"{_MARKOV}2", drafted, "the drafter's head"),
    ):
        if (stored := markov.matrix(name)[0]) != rows:
            raise FormatError(
                f"{name}.weight has {stored} rows, and {owner} has {rows} tokens: take a drafter "
                "that was made for this model"
            )


def _check_all_used(shapes: Mapping[str, tuple[int, ...]], graphs: list[Graph]) -> None:
    """Raise FormatError if no graph reads one of the drafter's own tensors."""
    together = Graph(shapes)
    together.ops = [
        op for graph in graphs for op in graph.ops if shapes.keys() >= {*op.weights.values()}
    ]
    together.check_all_used()


class _Maker:
    """Wires the graphs of one drafter."""

    def __init__(self, read: MetadataReader, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._read, self._shapes = read, shapes
        self._eps = read.number("attention.layer_norm_rms_epsilon")
        self._layers = read.size("block_count")
        heads, kv_heads = read.size("attention.head_count"), read.size("attention.head_count_kv")
        self._heads = Heads(heads, kv_heads, read.size("attention.key_length"))
        self._rope = rope_of(read, self._heads.dim, interleaved=False)

    def block(self, embedding: str, output: str) -> Graph:
        """Return the graph of a block."""
        g, read, eps = Graph(self._shapes), self._read, self._eps
        x = g.scale(g.embed(embedding), read.number("embedding_scale", 1.0))
        for i, p in enumerate(self._prefixes(g)):
            h = g.rms_norm(x, f"{p}attn_norm", eps)
            q, k, v = (self._project(g, h, p, role) for role in "qkv")
            a = g.attend(q, k, v, layer=i, heads=self._heads, scale=self._scale, mask=self._mask(i))
            x = g.add(x, g.linear(a, f"{p}attn_output"))
            h = g.rms_norm(x, f"{p}ffn_norm", eps)
            x = g.add(x, gated_mlp(g, h, p, g.silu_mul))
        x = g.rms_norm(g.logit_rows(x), f"{PREFIX}output_norm", eps)
        logits = g.linear(x, output)
        logits = g.scale(logits, read.number("logit_scale", 1.0))
        g.softcap(logits, read.or_zero("final_logit_softcapping"))
        return g

    def context(self, streams: int) -> Graph:
        """Return the graph that stores the text's keys and values.

        Its attention is there to store, with values in place of queries; nothing reads its result.
        """
        g = Graph(self._shapes)
        if (takes := g.matrix(_FC)[1]) != streams:
            raise FormatError(
                f"it reads {takes} numbers of each token, and the model gives {streams}: it is "
                "another's"
            )
        x = g.linear(g.given_rows(streams), _FC)
        x = g.rms_norm(x, f"{PREFIX}enc.output_norm", self._eps)
        heads = self._heads._replace(queries=self._heads.kv)
        for i, p in enumerate(self._prefixes(g)):
            k, v = (self._project(g, x, p, role) for role in "kv")
            q = self._rotate(g, g.pick(v, heads.dim, 0, heads.dim))
            g.attend(q, k, v, layer=i, heads=heads, scale=self._scale, mask=self._mask(i))
        g.logit_rows(x)
        return g

    def markov(self) -> Graph:
        """Return the graph of the Markov head."""
        g = Graph(self._shapes)
        g.linear(g.logit_rows(g.embed(f"{_MARKOV}1")), f"{_MARKOV}2")
        return g

    @property
    def _scale(self) -> float:
        return float(self._heads.dim**-0.5)

    def _prefixes(self, g: Graph) -> list[str]:
        return [f"{PREFIX}{p}" for p in g.layers(self._layers)]

    def _mask(self, layer: int) -> Mask:
        """Return what a row of a layer sees; in causal layers, no later row of its block."""
        windows = self._read.value("attention.sliding_window_pattern", ())
        causal = self._read.value("causal_layers", ())
        is_local = len(windows) > layer and bool(windows[layer])
        all_are_causal = self._read.flag("attention.causal", False)
        return Mask(
            self._read.size("attention.sliding_window") if is_local else 0,
            causal=bool(causal[layer]) if len(causal) > layer else all_are_causal,
        )

    def _project(self, g: Graph, x: Tensor, p: str, role: str) -> Tensor:
        """Return queries, keys or values; the first two are normed and rotated."""
        projected = g.linear(x, f"{p}attn_{role}")
        if role == "v":
            return projected
        normed = g.rms_norm(projected, f"{p}attn_{role}_norm", self._eps, group=self._heads.dim)
        return self._rotate(g, normed)

    def _rotate(self, g: Graph, x: Tensor) -> Tensor:
        factors = f"{PREFIX}rope_freqs"
        has_factors = g.has(f"{factors}.weight")
        return g.rope(
            x, self._rope, head_dim=self._heads.dim, factors=factors if has_factors else None
        )
