"""What layers with a recurrent state make of each token of a text: weights of its values, exactly.

A head of a delta net or of Mamba 2 is linear in its values, whatever changed its state in between:
its output is the sum of all values so far, each times a weight. A short convolution is one too, of
its last few tokens. Sums are in float64.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.api.llm import LLM
from cutaway.compute.backends import inspectable
from cutaway.compute.backends.layout import state_layout
from cutaway.compute.model import Op
from cutaway.engine.interventions import Affine, BoundInterventions
from cutaway.errors import CutawayError

Floats = NDArray[np.float64]
Weights = Mapping[str, NDArray[Any]]
Changes = Callable[[int], Affine | None]
"""What an intervention makes of an op's state after the row at a position."""
_NEAR = 1e-4  # of the largest output: the states are float32


@dataclass(frozen=True)
class ValueWeights:
    """One op's heads at the last token of a text. Each one's output is the sum of weight · value.

    weights   (heads, tokens); they have signs, and no fixed sum. Mamba 2's last one has the share
              of the token's own value that passes the state by. A convolution is one head, whose
              weights are in its values: 1 for the tokens that it reads
    values    (tokens, heads, numbers)
    constant  (heads, numbers): what is added beside, a convolution's bias, and what interventions
              put into the state
    """

    weights: Floats
    values: Floats
    constant: Floats

    @property
    def lengths(self) -> Floats:
        """The length of what each head takes of each token: (heads, tokens)."""
        found: Floats = np.abs(self.weights) * np.linalg.norm(self.values, axis=-1).T
        return found

    def along(self, direction: Floats) -> Floats:
        """What each token gives each head, projected on a direction (heads, numbers)."""
        found: Floats = self.weights * np.einsum("thv,hv->ht", self.values, direction)
        return found

    def output(self) -> Floats:
        """The sums, side by side: (heads · numbers,)."""
        sums: Floats = np.einsum("ht,thv->hv", self.weights, self.values) + self.constant
        return sums.ravel()


def value_weights(
    llm: LLM,
    ids: Sequence[int],
    ops: Sequence[Op],
    made: BoundInterventions | None,
    affine: Mapping[str, Affine],
) -> dict[str, ValueWeights]:
    """Of ops with a state, by the name of their tensor; the text has at most 512 tokens.

    made, affine: the text's interventions, and those that apply to its last row
    CutawayError where the sums are not the run's outputs.
    """
    if not ops:
        return {}
    backend = inspectable(llm.backend)
    places, _ = state_layout(llm.graph)
    names = {name for op in ops for name in (*op.inputs, op.out.name)}
    tensors, found = llm.tensors(ids, sorted(names), made), {}
    for op in ops:
        of = {role: backend.weight(name) for role, name in op.weights.items()}
        read = [tensors[name].astype(np.float64) for name in op.inputs]
        changes = partial(made.state_affine, place=places[op.out.name]) if made else _unchanged
        here = _KINDS[op.kind](op, of, read, changes)
        found[op.out.name] = here
        _check(op, here, tensors[op.out.name][-1], affine.get(op.out.name))
    return found


def _check(op: Op, found: ValueWeights, out: NDArray[Any], made: Affine | None) -> None:
    """CutawayError where the sums are not the outputs of the run."""
    sums, most = found.output(), float(np.abs(out).max())
    if made is not None:
        most = max(most, float(np.abs(sums).max()))
        sums = made.factor * sums + made.added
    if not np.abs(sums - out).max() <= _NEAR * max(most, 1e-30):
        raise CutawayError(
            f"the weights of {op.out.name} do not add up to its outputs: this is a bug in cutaway"
        )


def _unchanged(position: int) -> None:
    """No intervention."""


def delta_net(
    op: Op, of: Weights, read: Sequence[Floats], changes: Changes = _unchanged
) -> ValueWeights:
    """A token keeps a part of the state, and takes out what the state had for its key."""
    (x, a, b), (heads, n, _), k_heads = read, op.attrs["state"], op.attrs["k_heads"]
    each = np.arange(heads)
    share = each // (heads // k_heads) if op.attrs["grouped"] else each % k_heads
    q, k, v = np.split(x, [k_heads * n, 2 * k_heads * n], axis=1)
    q, k = (_unit(part.reshape(len(x), k_heads, n))[:, share] for part in (q, k))
    keep = np.exp(of["a"].ravel() * np.logaddexp(0, a + of["dt"].ravel()))  # (T, heads)
    learn = 1 / (1 + np.exp(-b))
    weights, reads = np.empty((heads, len(x))), _Reads(op, changes, q[-1] / np.sqrt(n))
    for t in reversed(range(len(x))):
        reads.after(t, is_last=t == len(x) - 1)
        weights[:, t] = learn[t] * (reads.keys * k[t]).sum(-1)
        reads.keys = keep[t, :, None] * (reads.keys - weights[:, t, None] * k[t])
    return ValueWeights(weights, v.reshape(len(x), heads, -1), reads.constant)


def mamba2(
    op: Op, of: Weights, read: Sequence[Floats], changes: Changes = _unchanged
) -> ValueWeights:
    """A token keeps a part of the state, and adds its value where its key is."""
    (x, dt), (heads, n, width), k_heads = read, op.attrs["state"], op.attrs["k_heads"]
    share = np.arange(heads) // (heads // k_heads)
    v, k, q = np.split(x, [heads * width, heads * width + k_heads * n], axis=1)
    k, q = (part.reshape(len(x), k_heads, n)[:, share] for part in (k, q))
    step = np.logaddexp(0, dt + of["dt"].ravel())  # (T, heads)
    keep = np.exp(of["a"].ravel() * step)
    weights, reads = np.empty((heads, len(x))), _Reads(op, changes, q[-1])
    for t in reversed(range(len(x))):
        reads.after(t, is_last=t == len(x) - 1)
        weights[:, t] = step[t] * (reads.keys * k[t]).sum(-1)
        reads.keys = keep[t, :, None] * reads.keys
    weights[:, -1] += of["d"].ravel()
    return ValueWeights(weights, v.reshape(len(x), heads, width), reads.constant)


def conv(
    op: Op, of: Weights, read: Sequence[Floats], changes: Changes = _unchanged
) -> ValueWeights:
    """Each number is weighted by itself: the values are what the weights make of the inputs."""
    [x], (before, width) = read, op.attrs["state"]
    factor, added = np.ones((before, width)), np.zeros((before, width))  # of the inputs before
    for t in range(max(len(x) - 1 - before, 0), len(x) - 1):
        factor = np.concatenate([factor[1:], np.ones((1, width))])
        added = np.concatenate([added[1:], np.zeros((1, width))])
        if made := changes(t):
            factor, (by, plus) = factor * made.factor.reshape(-1, width), made
            added = added * by.reshape(-1, width) + plus.reshape(-1, width)
    taps, count = of["weight"].T.astype(np.float64), min(before + 1, len(x))
    through = np.concatenate([taps[:-1] * factor, taps[-1:]])
    values, weights = np.zeros((len(x), 1, width)), np.zeros((1, len(x)))
    values[-count:, 0] = through[-count:] * x[-count:]
    weights[:, -count:] = 1
    bias = of.get("bias", np.zeros(width)).astype(np.float64)
    return ValueWeights(weights, values, (bias + (taps[:-1] * added).sum(0))[None])


_KINDS: Mapping[str, Callable[..., ValueWeights]] = {
    "delta_net": delta_net, "mamba2": mamba2, "conv": conv,
}  # fmt: skip


class _Reads:
    """How the last row's output depends on the state after an earlier row, row by row backwards.

    keys      (heads, keys): a head's output is keys @ state + constant, and what tokens gave since
    constant  (heads, values): what interventions put into the state, as it arrives
    """

    def __init__(self, op: Op, changes: Changes, query: Floats) -> None:
        """query: what the last row reads its own state with."""
        self._shape: tuple[int, ...] = op.attrs["state"]
        self._changes, self.keys = changes, query
        self.constant: Floats = np.zeros((self._shape[0], self._shape[2]))

    def after(self, position: int, *, is_last: bool) -> None:
        """From the state as later rows find it to that which the row at a position left."""
        made = None if is_last else self._changes(position)
        if made is not None:
            self.constant += np.einsum("hk,hkv->hv", self.keys, made.added.reshape(self._shape))
            self.keys = self.keys * made.factor.reshape(self._shape)[:, :1, 0]  # one for a head


def _unit(x: Floats) -> Floats:
    unit: Floats = x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)
    return unit
