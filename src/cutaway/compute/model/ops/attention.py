"""Attention, and the rotation of its queries and keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.calls import (
    NOWHERE,
    WIDEST_HEAD,
    AttendCall,
    AttendShape,
    OpCall,
    RelativeBias,
    RotateCall,
    Rotation,
)
from cutaway.compute.model.op import Array, Lowering, Op, Run, Site, Tensor, TextRows, TokenMixer
from cutaway.compute.model.ops.numbers import cap_softly
from cutaway.compute.model.positions import NO_BIAS, Bias, GrowingRope, Rope
from cutaway.compute.model.wiring import Wiring
from cutaway.errors import FormatError


@dataclass(frozen=True, kw_only=True)
class Rotate(Op, kind="rope"):
    """Rotates pairs of each head's numbers by angles that grow with the position."""

    head_dim: int
    rope: Rope

    def _compute(self, run: Run, x: Array) -> Array:
        by, factors = self.rope, self.weights.get("factors")
        divisors = None if factors is None else run.weight(factors).tolist()
        frequency = np.array(by.frequencies(divisors))  # (n/2,)
        angle = run.positions[:, None, None] * frequency  # (M, 1, n/2)
        factor = by.attention_factor * _growth(by, run.positions)[:, None, None]
        cos = (factor * np.cos(angle)).astype(np.float32)
        sin = (factor * np.sin(angle)).astype(np.float32)
        out = x.reshape(len(x), -1, self.head_dim).copy()  # (M, heads, head_dim)
        n, half = by.dim, by.dim // 2
        halves, neighbours = (slice(half), slice(half, n)), (slice(0, n, 2), slice(1, n, 2))
        pair = halves if by.rotate_half else neighbours
        first, second = (out[..., part].copy() for part in pair)  # (M, heads, n/2)
        out[..., pair[0]] = first * cos - second * sin
        out[..., pair[1]] = first * sin + second * cos
        return out.reshape(x.shape)

    def _lower(self, to: Lowering, at: Site) -> OpCall:
        heads = self.out.width // self.head_dim
        return RotateCall(at.reads[0], at.out, heads, self.head_dim, self.rotation(to))

    def rotation(self, to: Lowering) -> Rotation:
        """Return how pairs are rotated, in the form that a plan reads."""
        by, factors = self.rope, self.weights.get("factors")
        frequencies = by.frequencies(None if factors is None else to.vector(factors).tolist())
        grows = (
            (by.growth, by.period, by.offset, by.is_smooth) if isinstance(by, GrowingRope) else ()
        )
        return Rotation(frequencies, by.rotate_half, by.attention_factor, *grows)


def _growth(rope: Rope, positions: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return the factor of rotated numbers at each position, (M,)."""
    if not isinstance(rope, GrowingRope):
        return np.ones(len(positions))
    places = positions + rope.offset
    periods = (
        np.log(np.maximum(places / rope.period, 1))
        if rope.is_smooth
        else np.log1p(places // rope.period)
    )
    growth: NDArray[np.float64] = 1 + rope.growth * periods
    return growth


# -- attention -------------------------------------------------------------------------------------


Positions = NDArray[np.integer[Any]]


class Heads(NamedTuple):
    """How many query heads and how many key-value heads there are, and how wide each key is.

    Query heads share key-value heads in equal groups (Ainslie et al. 2023, arXiv 2305.13245).
    """

    queries: int
    kv: int
    dim: int


class Mask(NamedTuple):
    """Which tokens of its text a row sees.

    window   how many tokens up to its own a row sees (Mistral, arXiv 2310.06825); 0: all
    reach    how many tokens to each side a row sees (ModernBERT, arXiv 2412.13663); 0: all
    chunked  whether the text is cut into windows, and a token sees only its own window (Llama 4)
    causal   whether a row sees no token after its own, even if its limit is later (DFlash)
    """

    window: int = 0
    reach: int = 0
    chunked: bool = False
    causal: bool = False

    def first_seen(self, positions: Positions) -> Positions:
        """Return, for each of these positions, the first position that a row there sees."""
        if not self.window:
            return positions * 0
        if self.chunked:
            return positions // self.window * self.window
        return np.maximum(positions + 1 - self.window, 0)

    def unseen(self, text: TextRows, history: Positions) -> NDArray[np.bool_]:
        """Whether the window hides each position in `history` (T) from each row (R): (R, T)."""
        unseen: NDArray[np.bool_] = history < self.first_seen(text.window_ends)[:, None]
        if self.reach:
            unseen |= abs(history - text.positions[:, None]) > self.reach
        if self.causal:
            unseen |= history > text.positions[:, None]
        return unseen


ALL = Mask()


@dataclass(frozen=True, kw_only=True)
class Attend(TokenMixer, kind="attend"):
    """Each row's mean of the values that it sees, weighted by softmax(q · k · scale).

    softcap      scores s become softcap · tanh(s / softcap) (Gemma 2, arXiv 2408.00118); 0: they do
                 not
    bias         the bias that is added to scores, by distance
    reads        the layer whose keys and values it reads, an earlier one or one of another graph
                 with the same KV blocks; None: it stores its own
    values_from  where in a key the value begins; None: values are stored separately
    has_row_sinks  whether each row has sinks of its own

    The inputs are queries; then keys, and values, where the op stores these, which may have another
    width than keys (MiMo-V2, arXiv 2601.02780); then the inputs of the bias; then rows' sinks.
    Sinks, a weight or an input, are one more score for each head, which takes a share of the
    softmax but has no value (gpt-oss, arXiv 2508.10925).
    """

    heads: Heads
    scale: float
    mask: Mask = ALL
    softcap: float = 0.0
    bias: Bias = NO_BIAS
    reads: int | None = None
    values_from: int | None = None
    has_row_sinks: bool = False

    @property
    def value_dim(self) -> int:
        """How many numbers a head's value has."""
        return self.out.width // self.heads.queries

    def _compute(self, run: Run, q: Array, *inputs: Array) -> Array:
        """Also note the softmax's weights, (kv_heads, heads / kv_heads, rows, history)."""
        row_sinks = inputs[-1] if self.has_row_sinks else None
        inputs = inputs[: len(inputs) - self.has_row_sinks]
        kv, distances = (inputs[:2], inputs[2:]) if self.bias.per_head else (inputs, ())
        if kv:
            run.store(self.layer, *kv)
        sinks = run.weight(self.weights["sinks"]) if "sinks" in self.weights else None
        learned = run.weight(self.weights["distance"]) if "distance" in self.weights else None
        out = np.empty((len(q), self.out.width), np.float32)
        for text in run.texts():
            unseen = self._unseen(text)
            first, history = int(np.argmin(unseen.all(axis=0))), np.arange(unseen.shape[1])
            read = np.maximum(history, first)  # nothing may be stored before the first
            keys, values = text.read(self.layer, read)  # (T, kv_heads, head_dim)
            of_text = [x[text.rows] for x in distances]
            bias = self._scores(text.positions, len(history), learned, *of_text)
            if row_sinks is not None:
                sinks = row_sinks[text.rows].T
            weights = self._weights(q[text.rows], keys, unseen, sinks=sinks, bias=bias)
            run.note(f"{self.out.name}.weights", weights)
            mixed = np.einsum("hgrt,thd->rhgd", weights, values, optimize=True)
            out[text.rows] = mixed.reshape(len(mixed), -1)
        return out

    def _scores(
        self, positions: Positions, history: int, learned: Array | None, *read: Array
    ) -> Array | None:
        """Return the biases of the scores of rows, (heads, R, history); None without a bias.

        positions: those of the rows
        """
        if len(read) == 1:
            return self._looking_back(positions, history, *read)
        if read:
            return self._relative(positions, *read)
        distances = np.arange(history) - positions[:, None]  # (R, T)
        reach = int(abs(distances).max())
        table = self.bias.table(reach, self.heads.queries, learned)
        return table[:, distances + reach] if table.size else None

    def _looking_back(self, positions: Positions, history: int, by_query: Array) -> Array:
        """Return biases that depend on queries alone: (heads, R, history)."""
        back = positions[:, None] - np.arange(history)  # (R, T)
        count = self.bias.per_head
        of_heads = by_query.reshape(len(back), -1, count).swapaxes(0, 1)  # (heads, R, count)
        biases = np.take_along_axis(of_heads, np.clip(back, 0, count - 1)[None], -1)
        seen: Array = np.where((back >= 0) & (back < count), biases, np.float32(0))
        return seen

    def _relative(self, positions: Positions, by_query: Array, by_key: Array) -> Array:
        """Return biases that depend on queries and keys, for all rows of a text: (heads, R, R)."""
        heads, count = self.heads.queries, len(positions)
        if (positions != np.arange(count)).any():
            raise ValueError("batch: this model reads a text in one step, from its first token on")
        rows = self.bias.rows(count)[count + positions[:, None] - positions]  # (R, R)
        first, second = (x.reshape(count, heads, -1).swapaxes(0, 1) for x in (by_query, by_key))
        sums = np.take_along_axis(first, rows[None], -1)
        sums = sums + np.take_along_axis(second, rows.T[None], -1).swapaxes(1, 2)
        scaled: Array = sums * np.float32(self.scale)
        return scaled

    def _weights(
        self, q: Array, k: Array, unseen: NDArray[np.bool_],
        *, sinks: Array | None, bias: Array | None,
    ) -> Array:  # fmt: skip
        """Return softmax(q · k), q (R, heads · d), k (T, kv_heads, d): (kv_heads, group, R, T).

        sinks (heads,) or (heads, R): one more score of each head; its weight is left out
        bias (heads, R, T): is added to the scores
        """
        groups = q.reshape(len(q), self.heads.kv, -1, self.heads.dim)  # (R, kv_heads, group, d)
        scores = np.einsum("rhgd,thd->hgrt", groups, k, optimize=True) * np.float32(self.scale)
        if self.softcap:
            scores = cap_softly(scores, self.softcap)
        if bias is not None:
            scores = scores + bias.reshape(scores.shape)
        scores[..., unseen] = -np.inf
        if sinks is not None:
            of_heads = sinks.reshape(*scores.shape[:2], -1, 1)
            beside = np.broadcast_to(of_heads, (*scores.shape[:3], 1))
            scores = np.concatenate([scores, beside], axis=-1)
        weights: Array = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return weights if sinks is None else weights[..., :-1]

    def _unseen(self, text: TextRows) -> NDArray[np.bool_]:
        """Return which positions each row of a text does not see, (R, T)."""
        history = np.arange(text.limits.max() + 1)  # (T,)
        unseen = (history > text.limits[:, None]) | self.mask.unseen(text, history)
        if text.hidden is not None:
            unseen |= text.hidden[: len(history)] <= text.positions[:, None]
        if unseen.all(axis=-1).any():
            raise ValueError("batch: a limit lies before its row's window")
        return unseen

    @property
    def _values(self) -> tuple[int, int]:
        """Return ``value_first`` and ``value_dim`` of an ``AttendShape``."""
        if self.values_from is None and self.value_dim == self.heads.dim:
            return 0, 0
        return -1 if self.values_from is None else self.values_from, self.value_dim

    def _lower(self, to: Lowering, at: Site) -> OpCall:
        queries, kv, dim = self.heads
        if width := next((n for n in (dim, self.value_dim) if n % 2 or n > WIDEST_HEAD), 0):
            raise FormatError(
                f"heads of {width} are not supported here, only even ones up to {WIDEST_HEAD}; the "
                "reference backend has no such limit"
            )
        rotation, *other_rotations = map(to.rotation, self.inputs[:2])
        if any(rotation != other for other in other_rotations):
            raise FormatError(f"{self.out.name}: q and k must be rotated alike")
        shape = AttendShape(
            queries, kv, dim, self.scale, self.softcap, *self.mask, self.layer,
            -1 if self.reads is None else self.reads, *self._values,
        )  # fmt: skip
        sinks = to.vector(self.weights.get("sinks"))
        learned = to.vector(self.weights.get("distance"))
        bias, relative = self.bias.table(to.farthest, queries, learned).ravel(), RelativeBias()
        reads, row_sinks = at.reads, NOWHERE
        if self.has_row_sinks:
            *reads, row_sinks = reads
        if self.bias.per_head:
            by_query, by_key = (*reads[3:], NOWHERE)[:2]
            rows = self.bias.rows(to.context).tolist()
            relative = RelativeBias(by_query, by_key, self.bias.per_head, rows)
        q, k, v = (*reads, NOWHERE, NOWHERE)[:3]
        return AttendCall((q, k, v, at.out), shape, rotation, sinks, bias, relative, row_sinks)


class AttentionMethods(Wiring):
    """The part of ``Graph`` with these ops."""

    def rope(self, x: Tensor, rope: Rope, *, head_dim: int, factors: str | None = None) -> Tensor:
        """Rotate pairs of each head's numbers by position · frequency: (M, n) -> (M, n).

        factors: a tensor of rope.dim / 2 divisors of the frequencies
        GGUF stores Llama's q and k permuted, so that the two numbers of a pair are neighbours.
        """
        self._expect_groups(x, head_dim)
        weights = {}
        if factors is not None:
            self._expect(f"{factors}.weight", (rope.dim // 2,))
            weights["factors"] = f"{factors}.weight"
        return self._add(Rotate, x.width, x, weights=weights, head_dim=head_dim, rope=rope)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *distances: Tensor,
        layer: int, heads: Heads, scale: float, mask: Mask = ALL, softcap: float = 0.0,
        sinks: str | Tensor = "", bias: Bias = NO_BIAS, value_dim: int | None = None,
    ) -> Tensor:  # fmt: skip
        """Store k and v in the KV cache, then compute softmax(scale · q kᵀ) v over visible tokens.

        q (M, heads·head_dim), k (M, kv_heads·head_dim), v (M, kv_heads·n) -> (M, heads·n).
        value_dim: n, if it is not head_dim
        sinks: the file's tensor with a score for each head; or rows' own scores, (M, heads); "":
               no sinks
        distances: the inputs of the bias, for queries, and for keys if it depends on these: a
                   number for each head and distance, (M, heads·rows)
        The other arguments are fields of ``Attend``.
        """
        queries, kv, dim = heads
        value_dim = value_dim or dim
        if (q.width, k.width, v.width) != (queries * dim, kv * dim, kv * value_dim):
            raise FormatError(
                f"layer {layer}: q, k, v are {q.width}, {k.width}, {v.width} wide, which is not "
                f"{queries} heads of {dim} sharing {kv} kv heads"
            )
        if bias.per_head and (
            any(x.width != queries * bias.per_head for x in distances)
            or (len(distances) > 1 and kv != queries)
        ):
            raise FormatError(
                f"layer {layer}: {queries} heads of {bias.per_head} distances are wanted"
            )
        weights = dict[str, str]()
        row_sinks = [sinks] if isinstance(sinks, Tensor) else []
        if any(x.width != queries for x in row_sinks):
            raise FormatError(f"layer {layer}: {queries} heads have {row_sinks[0].width} sinks")
        if isinstance(sinks, str) and sinks:
            weights["sinks"] = f"{sinks}.weight"
            self._expect(weights["sinks"], (queries,))
        if bias.weight:
            weights["distance"] = f"{bias.weight}.weight"
            self._expect(weights["distance"], (self.matrix(bias.weight)[0], queries))
        return self._add(
            Attend, queries * value_dim, q, k, v, *distances, *row_sinks, weights=weights,
            layer=layer, heads=heads, scale=scale, mask=mask, softcap=softcap, bias=bias,
            has_row_sinks=bool(row_sinks),
        )  # fmt: skip

    def attend_again(
        self, q: Tensor, *, layer: int, reads: int, heads: int, scale: float
    ) -> Tensor:
        """Attend to the keys and values that an earlier layer stored (Gemma 3n).

        This layer sees the same tokens as the earlier one. reads: the earlier layer's number
        """
        first = next((a for a in attentions(self.ops) if a.layer == reads), None)
        if first is None or first.reads is not None:
            raise FormatError(f"layer {layer} reads the keys and values of {reads}, which has none")
        return self._attend_to(q, first, layer=layer, heads=heads, scale=scale)

    def attend_stored(self, q: Tensor, stored: Attend, *, heads: int, scale: float) -> Tensor:
        """Attend to the keys and values of a layer of another graph, whose KV blocks are shared."""
        return self._attend_to(q, stored, layer=stored.layer, heads=heads, scale=scale)

    def _attend_to(
        self, q: Tensor, stored: Attend, *, layer: int, heads: int, scale: float
    ) -> Tensor:
        of = stored.heads._replace(queries=heads)
        if q.width != heads * of.dim or heads % of.kv:
            raise FormatError(
                f"layer {layer}: q is {q.width} wide, and layer {stored.layer} has {of.kv} kv "
                f"heads of {of.dim}"
            )
        return self._add(
            Attend, heads * stored.value_dim, q, layer=layer, heads=of, scale=scale,
            mask=stored.mask, softcap=stored.softcap, reads=stored.layer,
            values_from=stored.values_from,
        )  # fmt: skip

    def attend_latent(
        self, q: Tensor, k: Tensor, *, layer: int, heads: int, first: int, scale: float
    ) -> Tensor:
        """Attend with one key for all heads; a value is the key's numbers from ``first`` on.

        q (M, heads·n), k (M, n) -> (M, heads·(n - first)). Only keys are stored. This is the latent
        attention of DeepSeek-V2 (arXiv 2405.04434), with each head's matrices absorbed.
        """
        if q.width != heads * k.width or not 0 <= first < k.width:
            raise FormatError(
                f"layer {layer}: q is {q.width} wide, which is not {heads} heads of {k.width}"
            )
        return self._add(
            Attend, heads * (k.width - first), q, k,
            layer=layer, heads=Heads(heads, 1, k.width), scale=scale, values_from=first,
        )  # fmt: skip


def attentions(ops: Sequence[Op]) -> list[Attend]:
    """Return the ops that attend."""
    return [op for op in ops if isinstance(op, Attend)]
