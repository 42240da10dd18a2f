"""One row in each kind of layer: attention, a recurrent state, a mixture of experts.

All figures are computed again in float64 from the tensors as they are stored. The figures of
attention are its weights and the norms of its heads' writes. A head of a delta net, of Mamba 2 or
of RWKV-7 is linear in its values: its output is exactly the sum of all values so far, each times a
weight. The output of a short convolution is such a sum over its last few tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.api.llm import LLM
from cutaway.compute.backends import Inspectable, inspectable
from cutaway.compute.backends.layout import state_layout
from cutaway.compute.model import Op
from cutaway.compute.model.ops.attention import Attend
from cutaway.compute.model.ops.convolutions import Conv
from cutaway.compute.model.ops.mixture import Experts, activate
from cutaway.compute.model.ops.states import (
    DeltaNet,
    HeadStates,
    Mamba2,
    SelectiveScan,
    StateOp,
    Wkv7,
)
from cutaway.engine.interventions import Affine, BoundInterventions
from cutaway.errors import CutawayError

Floats = NDArray[np.float64]

SINK = 0.3
"""A head is a sink if more than this share of its weight is at position 0."""
_NEAR_OUTPUT = 2e-5  # of the largest number: the kernel computes other exponentials
_TINY = 1e-30


def attention_scores(
    query: NDArray[Any],
    keys: NDArray[Any],
    op: Attend,
    unseen: NDArray[np.bool_] | None = None,
) -> Floats:
    """Compute each head's scores of the keys' positions, before softmax: (heads, n).

    query (heads · head_dim,), keys (kv_heads, n, head_dim), unseen (n,): the positions knocked out
    """
    q = query.astype(np.float64).reshape(op.heads.kv, -1, op.heads.dim)
    scores: Floats = op.scale * (q @ keys.astype(np.float64).transpose(0, 2, 1))  # (kv, group, n)
    if cap := op.softcap:
        scores = cap * np.tanh(scores / cap)
    count = keys.shape[1]
    if (biases := op.bias.table(count - 1, op.heads.queries)).size:  # by distance, from -count + 1
        scores += biases[:, :count].reshape(scores.shape)
    if unseen is not None:
        scores[..., unseen] = -np.inf
    return scores.reshape(op.heads.queries, -1)


def score_terms(
    query: NDArray[Any], keys: NDArray[Any], op: Attend, at: NDArray[np.integer[Any]]
) -> Floats:
    """Compute the terms of scale · q·k: (heads, k, head_dim).

    at (heads, k): which of the keys' positions; the terms add up to the score before a cap
    """
    q = query.astype(np.float64).reshape(op.heads.queries, 1, -1)
    kv_head = np.arange(op.heads.queries) // (op.heads.queries // op.heads.kv)
    terms: Floats = op.scale * (q * keys[kv_head[:, None], at].astype(np.float64))
    return terms


def attention_weights(scores: Floats, sinks: NDArray[Any] | None = None) -> Floats:
    """Compute each head's attention weights by softmax of its scores: (heads, n).

    sinks (heads,): one more score for each head, which belongs to no position
    The weights of a head add up to 1, or to 1 minus the weight of its sink.
    """
    sink_scores = np.full((len(scores), 1), -np.inf)
    if sinks is not None:
        sink_scores = sinks.astype(np.float64).reshape(sink_scores.shape)
    top = np.maximum(scores.max(axis=-1, keepdims=True), sink_scores)
    weights: Floats = np.exp(scores - top)
    weights /= weights.sum(axis=-1, keepdims=True) + np.exp(sink_scores - top)
    return weights


def weighted_values(weight: Floats, values: NDArray[Any]) -> Floats:
    """Compute each head's output, the weighted sum of its KV head's values: (heads, head_dim)."""
    grouped = weight.reshape(len(values), -1, weight.shape[-1])
    return (grouped @ values.astype(np.float64)).reshape(len(weight), -1)


def check_outputs(layer: int, again: NDArray[Any], output: NDArray[Any], largest: float) -> None:
    """Raise CutawayError where the recomputed outputs of a layer's heads are not those of the run.

    again, output: the recomputed outputs, and those of the run
    largest: their difference is measured as a share of this number
    """
    if not np.abs(again - output).max(initial=0) <= _NEAR_OUTPUT * max(largest, _TINY):
        raise CutawayError(
            f"the weights of layer {layer} do not give its heads' outputs: this is a bug in cutaway"
        )


def writes_along(weight: Floats, values: NDArray[Any], direction: Floats) -> Floats:
    """Project the heads' writes from each position on directions (heads, head_dim): (heads, n)."""
    grouped = direction.reshape(len(values), -1, direction.shape[-1])
    reach = grouped @ values.astype(np.float64).transpose(0, 2, 1)  # (kv, group, n)
    return weight * reach.reshape(weight.shape)


def write_lengths(weight: Floats, values: NDArray[Any], output: Floats) -> Floats:
    """The norm of each head's write from each position: (heads, n).

    output: the matrix through which heads write, (hidden, heads · head_dim)
    The norm is ‖w O v‖ of Kobayashi et al. 2020, arXiv 2004.10102. A norm has no sign, and norms
    do not add up.
    """
    heads = len(weight)
    by_head = output.reshape(len(output), heads, -1).transpose(1, 2, 0).copy()  # (heads, d, hidden)
    gram = by_head @ by_head.transpose(0, 2, 1)  # (heads, d, d)
    v = np.repeat(values.astype(np.float64), heads // len(values), axis=0)  # (heads, n, d)
    squares = np.einsum("hnd,hnd->hn", v @ gram, v)
    lengths: Floats = weight * np.sqrt(np.maximum(squares, 0.0))
    return lengths


# -- recurrent states: weights of the values -------------------------------------------------------


Weights = Mapping[str, NDArray[Any]]
Changes = Callable[[int], Affine | None]
"""Maps a position to the intervention on an op's state after that row; None: no intervention."""
_NEAR_STATES = 1e-4  # of the largest output: the states are float32


@dataclass(frozen=True)
class ValueWeights:
    """One op's heads at the last token: a head's output is the sum of weight · value, + constant.

    weights   (heads, tokens); they have signs, and no fixed sum. Mamba 2's last weight includes the
              skip (D), by which the token's own value bypasses the state. A convolution counts as
              one head: its values include its taps, and the weights are 1 for the tokens that it
              reads; likewise Mamba 1, whose values include what is left of them
    values    (tokens, heads, numbers)
    constant  (heads, numbers): a convolution's bias, and the offsets that interventions added to
              the state
    """

    weights: Floats
    values: Floats
    constant: Floats

    @property
    def lengths(self) -> Floats:
        """The norm of weight · value of each head and token: (heads, tokens)."""
        lengths: Floats = np.abs(self.weights) * np.linalg.norm(self.values, axis=-1).T
        return lengths

    def project(self, direction: Floats) -> Floats:
        """Project weight · value on a direction (heads, numbers): (heads, tokens)."""
        projected: Floats = self.weights * np.einsum("thv,hv->ht", self.values, direction)
        return projected

    def output(self) -> Floats:
        """The outputs of all heads, side by side: (heads · numbers,)."""
        sums: Floats = np.einsum("ht,thv->hv", self.weights, self.values) + self.constant
        return sums.ravel()


def value_weights(
    llm: LLM,
    ids: Sequence[int],
    ops: Sequence[StateOp],
    bound: BoundInterventions | None,
    affine: Mapping[str, Affine],
) -> dict[str, ValueWeights]:
    """Compute the value weights of ops with a state, by the names of the ops' output tensors.

    ids: at most 512
    bound: the text's interventions; affine: the interventions on its last row, by tensor
    Raises CutawayError where the sums are not the run's outputs.
    """
    if not ops:
        return {}
    backend = inspectable(llm.backend)
    places, _ = state_layout(llm.graph)
    names = {name for op in ops for name in (*op.inputs, op.out.name)}
    tensors, weights = llm.tensors(ids, sorted(names), bound), {}
    for op in ops:
        op_weights = {role: backend.weight(name) for role, name in op.weights.items()}
        read = [tensors[name].astype(np.float64) for name in op.inputs]
        changes = partial(bound.state_affine, place=places[op.out.name]) if bound else _keep_state
        here = _KINDS[type(op)](op, op_weights, read, changes)
        weights[op.out.name] = here
        _check(op, here, tensors[op.out.name][-1], affine.get(op.out.name))
    return weights


def _check(op: Op, weights: ValueWeights, out: NDArray[Any], change: Affine | None) -> None:
    """Raise CutawayError where the sums are not the outputs of the run."""
    sums, largest = weights.output(), float(np.abs(out).max())
    if change is not None:
        largest = max(largest, float(np.abs(sums).max()))
        sums = change.factor * sums + change.offset
    if not np.abs(sums - out).max() <= _NEAR_STATES * max(largest, 1e-30):
        raise CutawayError(
            f"the weights of {op.out.name} do not add up to its outputs: this is a bug in cutaway"
        )


def _keep_state(position: int) -> None:
    """Return None at every position: there is no intervention."""


def delta_net(
    op: DeltaNet, of: Weights, read: Sequence[Floats], changes: Changes = _keep_state
) -> ValueWeights:
    """Weights of a delta net: a token decays the state, then updates the value at its own key."""
    (x, a, b), (heads, n, _), k_heads = read, op.state, op.k_heads
    q, k, v = np.split(x, [k_heads * n, 2 * k_heads * n], axis=1)
    q, k = (_unit(part.reshape(len(x), k_heads, n))[:, op.shared] for part in (q, k))
    decay = np.logaddexp(0, a + of["dt"].ravel()).reshape(len(x), heads, -1)
    keep = np.exp(of["a"].reshape(heads, 1) * decay)  # (T, heads, keys), or 1 for all keys
    learn = op.learn_factor / (1 + np.exp(-b))
    weights, reads = np.empty((heads, len(x))), _Reads(op, changes, q[-1] / np.sqrt(n))
    for t in reversed(range(len(x))):
        reads.step_back(t, is_last=t == len(x) - 1)
        weights[:, t] = learn[t] * (reads.keys * k[t]).sum(-1)
        reads.keys = keep[t] * (reads.keys - weights[:, t, None] * k[t])
    return ValueWeights(weights, v.reshape(len(x), heads, -1), reads.constant)


def mamba2(
    op: Mamba2, of: Weights, read: Sequence[Floats], changes: Changes = _keep_state
) -> ValueWeights:
    """Weights of Mamba 2: a token decays the state, then adds its value at its own key."""
    (x, dt), (heads, n, width), k_heads = read, op.state, op.k_heads
    v, k, q = np.split(x, [heads * width, heads * width + k_heads * n], axis=1)
    k, q = (part.reshape(len(x), k_heads, n)[:, op.shared] for part in (k, q))
    step = np.logaddexp(0, dt + of["dt"].ravel())  # (T, heads)
    keep = np.exp(of["a"].ravel() * step)
    weights, reads = np.empty((heads, len(x))), _Reads(op, changes, q[-1])
    for t in reversed(range(len(x))):
        reads.step_back(t, is_last=t == len(x) - 1)
        weights[:, t] = step[t] * (reads.keys * k[t]).sum(-1)
        reads.keys = keep[t, :, None] * reads.keys
    weights[:, -1] += of["d"].ravel()
    return ValueWeights(weights, v.reshape(len(x), heads, width), reads.constant)


def wkv7(
    op: Wkv7, _: Weights, read: Sequence[Floats], changes: Changes = _keep_state
) -> ValueWeights:
    """Weights of RWKV-7: a token decays the state, takes away at one key and adds at another."""
    v, r, keep, k, removed, loss = (x.reshape(len(x), *op.state[:2]) for x in read)
    weights, reads = np.empty((op.state[0], len(v))), _Reads(op, changes, r[-1])
    for t in reversed(range(len(v))):
        reads.step_back(t, is_last=t == len(v) - 1)
        weights[:, t] = (reads.keys * k[t]).sum(-1)
        removal = (reads.keys * loss[t]).sum(-1, keepdims=True)
        reads.keys = keep[t] * reads.keys - removal * removed[t]
    return ValueWeights(weights, v, reads.constant)


def selective_scan(
    op: SelectiveScan, of: Weights, read: Sequence[Floats], changes: Changes = _keep_state
) -> ValueWeights:
    """Weights of Mamba 1: shares differ by channel, so the values include them."""
    (x, dt, k, q), (_, n, width) = read, op.state
    step, a = np.logaddexp(0, dt), of["a"].T.astype(np.float64)  # (T, width), (keys, width)
    values, constant = np.empty((len(x), 1, width)), np.zeros(width)
    reads = np.repeat(q[-1, :, None], width, axis=1)  # (keys, width): of the state after a row
    for t in reversed(range(len(x))):
        if (change := None if t == len(x) - 1 else changes(t)) is not None:
            constant += (reads * change.offset.reshape(n, width)).sum(0)
            reads = reads * change.factor.reshape(n, width)
        values[t, 0] = (reads * k[t, :, None]).sum(0) * step[t] * x[t]
        reads = reads * np.exp(a * step[t])
    values[-1, 0] += of["d"] * x[-1]
    return ValueWeights(np.ones((1, len(x))), values, constant[None])


def conv(
    op: Conv, of: Weights, read: Sequence[Floats], changes: Changes = _keep_state
) -> ValueWeights:
    """Weights of a convolution: its taps differ by channel, so the values include them."""
    [x], (before, width) = read, op.state
    factor, shift = np.ones((before, width)), np.zeros((before, width))  # of the inputs before
    for t in range(max(len(x) - 1 - before, 0), len(x) - 1):
        factor = np.concatenate([factor[1:], np.ones((1, width))])
        shift = np.concatenate([shift[1:], np.zeros((1, width))])
        if change := changes(t):
            factor, (by, plus) = factor * change.factor.reshape(-1, width), change
            shift = shift * by.reshape(-1, width) + plus.reshape(-1, width)
    taps, count = of["weight"].reshape(width, -1).T.astype(np.float64), min(before + 1, len(x))
    through = np.concatenate([taps[:-1] * factor, taps[-1:]])
    values, weights = np.zeros((len(x), 1, width)), np.zeros((1, len(x)))
    values[-count:, 0] = through[-count:] * x[-count:]
    weights[:, -count:] = 1
    bias = of.get("bias", np.zeros(width)).astype(np.float64)
    return ValueWeights(weights, values, (bias + (taps[:-1] * shift).sum(0))[None])


_KINDS: Mapping[type[StateOp], Callable[..., ValueWeights]] = {
    DeltaNet: delta_net, Mamba2: mamba2, SelectiveScan: selective_scan, Conv: conv,
    Wkv7: wkv7,
}  # fmt: skip


class _Reads:
    """The last row's output as a function of the state after an earlier row; steps go backwards.

    keys      (heads, keys): a head's output is keys @ state + constant + the later tokens' values
    constant  (heads, values): the part of the output that interventions on later states add
    """

    def __init__(self, op: HeadStates, changes: Changes, query: Floats) -> None:
        """query: the vector with which the last row reads its state, (heads, keys)."""
        self._shape = op.state
        self._changes, self.keys = changes, query
        self.constant: Floats = np.zeros((self._shape[0], self._shape[2]))

    def step_back(self, position: int, *, is_last: bool) -> None:
        """Step back over the intervention on the state after the row at ``position``."""
        change = None if is_last else self._changes(position)
        if change is not None:
            self.constant += np.einsum("hk,hkv->hv", self.keys, change.offset.reshape(self._shape))
            self.keys = self.keys * change.factor.reshape(self._shape)[:, :1, 0]  # one per head


def _unit(x: Floats) -> Floats:
    unit: Floats = x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)
    return unit


# -- the experts of a mixture: which were chosen, their shares, and their outputs ------------------


_LITTLE = np.float32(1e-5)  # more than these exponentials differ from the kernel's


class ExpertOutput(NamedTuple):
    """One expert's output, (hidden,), which is ``matrix`` · input + bias.

    matrix  the expert's last matrix, times the expert's share
    unsure  (inner,): how far the run's input may be from the input computed here, since a value
            between two 8-bit steps may be rounded to either step
    """

    output: Floats
    matrix: Floats
    unsure: Floats


def choose_experts(
    backend: Inspectable, scores: NDArray[Any], op: Experts
) -> tuple[NDArray[np.int64], Floats]:
    """Choose a row's experts by their scores, best first; return their ids and shares."""
    bias_name = op.weights.get("choosing_bias")
    bias = None if bias_name is None else backend.weight(bias_name)
    (ids,), (shares,) = op.mixture.choose(scores[None], bias)
    return ids, shares


def expert_output(
    backend: Inspectable, op: Experts, x: NDArray[np.float32], expert: int, share: float
) -> ExpertOutput:
    """Compute one expert's output for its input row ``x``, (hidden,)."""
    before, after = (share, 1.0) if op.mixture.weighs_input else (1.0, share)

    def matrix(role: str) -> Floats:
        name, rows = op.weights[role], inner if role != "down" else len(x)
        return backend.weight(name, expert * rows, (expert + 1) * rows).astype(np.float64)

    def bias(role: str) -> Floats | float:
        bias_name = op.weights.get(f"{role}_bias")
        return 0.0 if bias_name is None else backend.weight(bias_name)[expert].astype(np.float64)

    inner = backend.weight(op.weights["down"], 0, 1).shape[1]
    read = backend.as_read(op.weights["up"], x[None])[0].astype(np.float64)
    roles = [role for role in ("gate", "up") if role in op.weights]
    middle = activate(op.mixture, *(before * (matrix(role) @ read) + bias(role) for role in roles))
    middle = middle.astype(np.float32)
    last = backend.as_read(op.weights["down"], middle[None])[0].astype(np.float64)
    little = _LITTLE * np.where(np.arange(inner) % 2, 1, -1).astype(np.float32)
    perturbed = backend.as_read(op.weights["down"], middle * np.stack([1 + little, 1 - little]))
    down = after * matrix("down")
    return ExpertOutput(
        down @ last + after * bias("down"), down, np.abs(perturbed - last).max(axis=0)
    )
