"""Ops that keep a recurrent state of each text; the text's tokens change it one after another."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.calls import (
    LANES,
    DeltaNetCall,
    Mamba,
    Mamba1,
    OpCall,
    OwnValueCall,
    Wkv,
)
from cutaway.compute.model.op import Array, Lowering, Op, Run, Site, Tensor, TokenMixer
from cutaway.compute.model.wiring import Wiring
from cutaway.errors import FormatError


@dataclass(frozen=True, kw_only=True)
class StateOp(TokenMixer):
    """An op that keeps a state; state: the shape of the state of one text."""

    state: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class HeadStates(StateOp):
    """An op whose state is a matrix for each head: (heads, keys, values).

    k_heads  how many heads of keys and queries there are; the op's heads share them
    grouped  whether neighbouring heads share a key head; if not, head i has key head i % k_heads
    """

    k_heads: int
    grouped: bool = True

    @property
    def first_value(self) -> int:
        """The column of the first input at which the values begin."""
        raise NotImplementedError

    def _shape(self) -> tuple[int, int, int, int]:
        """Return k_heads, heads, keys and values; FormatError if no kernel takes them."""
        heads, keys, values = self.state
        if values % LANES:
            raise FormatError(
                f"{self.out.name}: heads of {values} values are not supported here, only multiples "
                f"of {LANES}; the reference backend has no such limit"
            )
        return self.k_heads, heads, keys, values

    @property
    def shared(self) -> NDArray[np.integer[Any]]:
        """Return the key head of each head."""
        heads = np.arange(self.state[0])
        return heads // (len(heads) // self.k_heads) if self.grouped else heads % self.k_heads


@dataclass(frozen=True, kw_only=True)
class DeltaNet(HeadStates, kind="delta_net"):
    """A gated delta net (Yang et al. 2024, arXiv 2412.06464).

    A token multiplies each head's state S by e^(ssm_a · softplus(a + ssm_dt)), adds
    k ⊗ (v - kᵀS) · learn_factor · sigmoid(b), and gives qᵀS; q and k have length 1, and q is
    divided by √keys. If a has a number for each key of a head, each row of S has a factor of its
    own (Kimi delta attention, arXiv 2510.26692).

    learn_factor: 1; or 2, with which a token may also turn a key's value around (arXiv 2411.12537)
    """

    learn_factor: float = 1.0

    @property
    def first_value(self) -> int:
        """See ``HeadStates``; values come after queries and keys."""
        return 2 * self.k_heads * self.state[1]

    def _compute(self, run: Run, x: Array, a: Array, b: Array) -> Array:
        (heads, n, values), split = self.state, self.k_heads * self.state[1]
        parts = x[:, :split], x[:, split : 2 * split]
        q, k = (_unit(part.reshape(len(x), self.k_heads, n))[:, self.shared] for part in parts)
        q, v = q / np.float32(sqrt(n)), x[:, 2 * split :].reshape(len(x), heads, values)
        scale, dt = (run.weight(self.weights[role]) for role in ("a", "dt"))
        decay = np.logaddexp(0, a + dt, dtype=np.float32).reshape(len(x), heads, -1)
        keep = np.exp(scale.reshape(heads, 1) * decay)  # (M, heads, keys), or 1 for all keys
        learn, out = (
            self.learn_factor / (1 + np.exp(-b)),
            np.empty((len(x), heads, values), np.float32),
        )
        for rows, before in run.states(self.out.name, self.state):
            state = before  # (heads, keys, values)
            for row in range(rows.start, rows.stop):
                state = state * keep[row, :, :, None]
                change = learn[row, :, None] * (v[row] - np.einsum("hk,hkv->hv", k[row], state))
                state = state + k[row, :, :, None] * change[:, None]
                out[row] = np.einsum("hk,hkv->hv", q[row], state)
                run.keep(self.out.name, row, state)
        return out.reshape(len(x), -1)

    def _lower(self, to: Lowering, at: Site) -> OpCall:
        (x, a, b), shape = at.reads, (*self._shape(), self.grouped, self.learn_factor)
        scale, dt = (to.vector(self.weights[role]).ravel() for role in ("a", "dt"))
        scale = np.repeat(scale, len(dt) // len(scale))
        return DeltaNetCall((x, a, b, at.out), shape, scale, dt)


class Mamba2(HeadStates, kind="mamba2"):
    """The heads of Mamba 2 (Dao & Gu 2024, arXiv 2405.21060).

    A token, whose step is t = softplus(dt + ssm_dt), multiplies each head's state S by
    e^(ssm_a · t), adds k ⊗ v · t, and gives qᵀS + ssm_d · v.
    """

    first_value = 0

    def _compute(self, run: Run, x: Array, dt: Array) -> Array:
        (heads, n, values), k_heads = self.state, self.k_heads
        a, skip, bias = (run.weight(self.weights[role]) for role in ("a", "d", "dt"))
        v, k, q = np.split(x, [heads * values, heads * values + k_heads * n], axis=1)
        v = v.reshape(len(x), heads, values)
        k, q = (part.reshape(len(x), k_heads, n)[:, self.shared] for part in (k, q))
        step = np.logaddexp(0, dt + bias, dtype=np.float32)  # (M, heads)
        keep, out = np.exp(a[:, 0] * step), np.empty((len(x), heads, values), np.float32)
        for rows, before in run.states(self.out.name, self.state):
            state = before  # (heads, keys, values)
            for row in range(rows.start, rows.stop):
                update = v[row] * step[row, :, None]
                state = state * keep[row, :, None, None] + k[row, :, :, None] * update[:, None]
                out[row] = np.einsum("hk,hkv->hv", q[row], state) + skip * v[row]
                run.keep(self.out.name, row, state)
        return out.reshape(len(x), -1)

    def _lower(self, to: Lowering, at: Site) -> OpCall:
        x, dt = at.reads
        a, bias, skip = (to.vector(self.weights[role]).ravel() for role in ("a", "dt", "d"))
        return Mamba((x, dt, at.out), self._shape(), (a, bias, skip))


class SelectiveScan(HeadStates, kind="selective_scan"):
    """Mamba 1 (Gu & Dao 2023, arXiv 2312.00752): one head, whose values have steps of their own.

    A token, whose steps are t = softplus(dt) (values,), multiplies the state S (keys,
    values) by e^(ssm_a · t), adds k ⊗ (x · t), and gives qᵀS + ssm_d · x.
    """

    first_value = 0

    def _compute(self, run: Run, x: Array, dt: Array, k: Array, q: Array) -> Array:
        a, skip = (run.weight(self.weights[role]) for role in ("a", "d"))
        step, out = np.logaddexp(0, dt, dtype=np.float32), np.empty_like(x)
        for rows, before in run.states(self.out.name, self.state):
            state = before  # (1, keys, values)
            for row in range(rows.start, rows.stop):
                keep = np.exp(a.T * step[row])
                state = state * keep + k[row, :, None] * (x[row] * step[row])
                out[row] = q[row] @ state[0] + skip * x[row]
                run.keep(self.out.name, row, state)
        return out

    def _lower(self, to: Lowering, at: Site) -> OpCall:
        x, dt, k, q = at.reads
        _, _, keys, values = self._shape()
        a = np.ascontiguousarray(to.vector(self.weights["a"]).T).ravel()
        return Mamba1((x, dt, k, q, at.out), keys, values, (a, to.vector(self.weights["d"])))


class Wkv7(HeadStates, kind="wkv7"):
    """The heads of RWKV-7 (Peng et al. 2025, arXiv 2503.14456).

    A token makes of each head's state S: keep · S - loss ⊗ (removedᵀS) + k ⊗ v, and gives rᵀS.
    """

    first_value = 0

    def _compute(self, run: Run, *inputs: Array) -> Array:
        heads, n, _ = self.state
        v, r, keep, k, removed, loss = (x.reshape(len(x), heads, n) for x in inputs)
        out = np.empty_like(v)
        for rows, before in run.states(self.out.name, self.state):
            state = before  # (heads, keys, values)
            for row in range(rows.start, rows.stop):
                had = np.einsum("hk,hkv->hv", removed[row], state)
                state = state * keep[row, :, :, None] + k[row, :, :, None] * v[row, :, None]
                state = state - loss[row, :, :, None] * had[:, None]
                out[row] = np.einsum("hk,hkv->hv", r[row], state)
                run.keep(self.out.name, row, state)
        return out.reshape(len(out), heads * n)

    def _lower(self, _: Lowering, at: Site) -> OpCall:
        v, r, keep, k, removed, loss = at.reads
        heads, size = self._shape()[1:3]
        return Wkv((v, r, keep, k, removed, loss, at.out), heads, size)


@dataclass(frozen=True, kw_only=True)
class OwnValue(Op, kind="own_value"):
    """y + v · (aᵀb) for each head by itself: in RWKV-7, what a token gives itself."""

    is_linear = True
    size: int

    def bypass(self, *inputs: NDArray[Any]) -> NDArray[Any]:
        """Return v · (aᵀb) of a, b and v: (M, n) each -> the same."""
        a, b, v = (x.reshape(len(x), x.shape[1] // self.size, self.size) for x in inputs)
        out: NDArray[Any] = v * (a * b).sum(axis=-1, keepdims=True)
        return out.reshape(len(out), self.out.width)

    def _compute(self, _: Run, a: Array, b: Array, v: Array, y: Array) -> Array:
        out: Array = y + self.bypass(a, b, v)
        return out

    def _lower(self, _: Lowering, at: Site) -> OpCall:
        a, b, v, y = at.reads
        return OwnValueCall(at.late, a, b, v, y, self.out.width, self.size, at.out)


def _unit(x: Array) -> Array:
    """Scale each vector to length 1."""
    unit: Array = x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + np.float32(1e-6))
    return unit


class StateMethods(Wiring):
    """The part of ``Graph`` with these ops."""

    def wkv7(self, *inputs: Tensor, layer: int, size: int) -> Tensor:
        """See ``Wkv7``: v, r, keep, k, removed and loss, (M, heads·size) each -> the same."""
        self._expect_heads(inputs, size)
        heads = inputs[0].width // size
        return self._add(
            Wkv7, heads * size, *inputs, layer=layer, state=(heads, size, size), k_heads=heads
        )

    def own_value(self, *inputs: Tensor, size: int) -> Tensor:
        """See ``OwnValue``: a, b, v and y, (M, heads·size) each -> the same."""
        self._expect_heads(inputs, size)
        return self._add(OwnValue, inputs[0].width, *inputs, size=size)

    def _expect_heads(self, inputs: Sequence[Tensor], size: int) -> None:
        self._expect_groups(inputs[0], size)
        if len({x.width for x in inputs}) > 1:
            widths = ", ".join(f"{x.name} ({x.width})" for x in inputs)
            raise FormatError(f"heads of RWKV-7 read rows of one width, not {widths}")

    def delta_net(
        self, x: Tensor, a: Tensor, b: Tensor, prefix: str, *, layer: int, k_heads: int,
        heads: int, keys: int, values: int, grouped: bool = True, learn_factor: float = 1.0,
    ) -> Tensor:  # fmt: skip
        """See ``DeltaNet``: -> (M, heads·values).

        x  (M, 2·k_heads·keys + heads·values): queries, keys and values side by side
        a  (M, heads) or (M, heads·keys): how much of its state a head forgets
        b  (M, heads): how much of a new value a head adds
        """
        weights = {"a": f"{prefix}ssm_a", "dt": f"{prefix}ssm_dt.bias"}
        self._expect_but_ones(weights["a"], (heads,))
        self._expect(weights["dt"], (a.width,))
        fits = a.width in (heads, heads * keys) and heads % k_heads == 0
        if (x.width, b.width) != (2 * k_heads * keys + heads * values, heads) or not fits:
            raise FormatError(
                f"{prefix}: {x.width}, {a.width} and {b.width} numbers do not make {k_heads} heads "
                f"of {keys} for keys and {heads} of {values} for values"
            )
        return self._add(
            DeltaNet, heads * values, x, a, b, weights=weights,
            layer=layer, state=(heads, keys, values), k_heads=k_heads, grouped=grouped,
            learn_factor=learn_factor,
        )  # fmt: skip

    def mamba2(
        self, x: Tensor, dt: Tensor, prefix: str, *, layer: int, k_heads: int, heads: int,
        keys: int, values: int,
    ) -> Tensor:  # fmt: skip
        """See ``Mamba2``: -> (M, heads·values).

        x   (M, heads·values + 2·k_heads·keys): values, keys and queries side by side; the paper
            calls them x, B and C
        dt  (M, heads): how long a token's step is
        """
        weights = {"a": f"{prefix}ssm_a", "d": f"{prefix}ssm_d", "dt": f"{prefix}ssm_dt.bias"}
        for role, name in weights.items():
            self._expect(name, (heads,) if role == "dt" else (heads, 1))
        widths = heads * values + 2 * k_heads * keys, heads
        if (x.width, dt.width) != widths or heads % k_heads:
            raise FormatError(
                f"{prefix}: {x.width} and {dt.width} numbers do not make {heads} heads of {values} "
                f"for values and {k_heads} of {keys} for keys"
            )
        return self._add(
            Mamba2, heads * values, x, dt, weights=weights,
            layer=layer, state=(heads, keys, values), k_heads=k_heads,
        )  # fmt: skip

    def selective_scan(
        self, x: Tensor, dt: Tensor, k: Tensor, q: Tensor, prefix: str, *, layer: int
    ) -> Tensor:
        """See ``SelectiveScan``: -> (M, n).

        x, dt  (M, n): numbers, and how long each number's step is
        k, q   (M, keys); the paper calls them B and C
        """
        weights = {"a": f"{prefix}ssm_a", "d": f"{prefix}ssm_d"}
        self._expect(weights["a"], (x.width, k.width))
        self._expect(weights["d"], (x.width,))
        if (dt.width, q.width) != (x.width, k.width):
            raise FormatError(
                f"{prefix}: {x.width} numbers have {dt.width} steps, and {k.width} keys "
                f"{q.width} queries"
            )
        return self._add(
            SelectiveScan, x.width, x, dt, k, q, weights=weights,
            layer=layer, state=(1, k.width, x.width), k_heads=1,
        )  # fmt: skip
