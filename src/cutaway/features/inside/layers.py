"""What one row reads in each kind of layer: attention, a recurrent state, a mixture of experts.

Computed again from tensors as they are stored, in float64. Attention: its weights, and the norms of
what its heads wrote. A head of a delta net or of Mamba 2 is linear in its values, whatever changed
its state in between: its output is the sum of all values so far, each times a weight, exactly. A
short convolution is one too, of its last few tokens.
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
from cutaway.compute.model.ops.mixture import Experts, activate
from cutaway.compute.model.ops.states import Conv, DeltaNet, HeadStates, Mamba2, StateOp
from cutaway.engine.interventions import Affine, BoundInterventions
from cutaway.errors import CutawayError

Floats = NDArray[np.float64]

SINK = 0.3
"""A head with more of its weight than this at position 0 is a sink."""
_NEAR_OUTPUT = 2e-5  # of the largest number: these exponentials are not those of the kernel
_TINY = 1e-30


def attention_weights(
    query: NDArray[Any],
    keys: NDArray[Any],
    op: Attend,
    unseen: NDArray[np.bool_] | None = None,
    sinks: NDArray[Any] | None = None,
) -> Floats:
    """The attention of each head over positions with these keys: (heads, n); rows add up to 1.

    query (heads · head_dim,), keys (kv_heads, n, head_dim), unseen (n,): the positions knocked out
    sinks (heads,): a score more for each head, whose weight is missing from the sum
    """
    q = query.astype(np.float64).reshape(op.heads.kv, -1, op.heads.dim)
    scores = op.scale * (q @ keys.astype(np.float64).transpose(0, 2, 1))  # (kv, group, n)
    if cap := op.softcap:
        scores = cap * np.tanh(scores / cap)
    if unseen is not None:
        scores[..., unseen] = -np.inf
    sink_scores = np.full((*scores.shape[:2], 1), -np.inf)
    if sinks is not None:
        sink_scores = sinks.astype(np.float64).reshape(sink_scores.shape)
    top = np.maximum(scores.max(axis=-1, keepdims=True), sink_scores)
    weights = np.exp(scores - top)
    weights /= weights.sum(axis=-1, keepdims=True) + np.exp(sink_scores - top)
    flat: Floats = weights.reshape(op.heads.queries, -1)
    return flat


def weighted_values(weight: Floats, values: NDArray[Any]) -> Floats:
    """The output of each head, which is its KV head's weighted values: (heads, head_dim)."""
    grouped = weight.reshape(len(values), -1, weight.shape[-1])
    return (grouped @ values.astype(np.float64)).reshape(len(weight), -1)


def check_outputs(layer: int, again: NDArray[Any], output: NDArray[Any], largest: float) -> None:
    """CutawayError where weights give another output than a layer's heads had.

    again: what they give; largest: of the numbers that the difference is compared with
    """
    if not np.abs(again - output).max(initial=0) <= _NEAR_OUTPUT * max(largest, _TINY):
        raise CutawayError(
            f"the weights of layer {layer} do not give its heads' outputs: this is a bug in cutaway"
        )


def writes_along(weight: Floats, values: NDArray[Any], direction: Floats) -> Floats:
    """Each position's write, projected on a direction (heads, head_dim): (heads, n)."""
    grouped = direction.reshape(len(values), -1, direction.shape[-1])
    reach = grouped @ values.astype(np.float64).transpose(0, 2, 1)  # (kv, group, n)
    return weight * reach.reshape(weight.shape)


def write_lengths(weight: Floats, values: NDArray[Any], output: Floats) -> Floats:
    """The length of what each head writes from each position: (heads, n).

    output: the matrix that heads write through, (hidden, heads · head_dim)
    Kobayashi et al. 2020, arXiv 2004.10102: ‖w O v‖, which has no sign and does not add up.
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
"""What an intervention makes of an op's state after the row at a position."""
_NEAR_STATES = 1e-4  # of the largest output: the states are float32


@dataclass(frozen=True)
class ValueWeights:
    """One op's heads at the last token of a text. A head's output is the sum of weight · value.

    weights   (heads, tokens); they have signs, and no fixed sum. Mamba 2's last one has the share
              of the token's own value that passes the state by. A convolution is one head, whose
              weights are in its values: 1 for the tokens that it reads
    values    (tokens, heads, numbers)
    constant  (heads, numbers): added to the sums: a convolution's bias, and what interventions
              put into the state
    """

    weights: Floats
    values: Floats
    constant: Floats

    @property
    def lengths(self) -> Floats:
        """The length of what each head takes of each token: (heads, tokens)."""
        lengths: Floats = np.abs(self.weights) * np.linalg.norm(self.values, axis=-1).T
        return lengths

    def project(self, direction: Floats) -> Floats:
        """What each token gives each head, projected on a direction (heads, numbers)."""
        projected: Floats = self.weights * np.einsum("thv,hv->ht", self.values, direction)
        return projected

    def output(self) -> Floats:
        """The sums, side by side: (heads · numbers,)."""
        sums: Floats = np.einsum("ht,thv->hv", self.weights, self.values) + self.constant
        return sums.ravel()


def value_weights(
    llm: LLM,
    ids: Sequence[int],
    ops: Sequence[StateOp],
    bound: BoundInterventions | None,
    affine: Mapping[str, Affine],
) -> dict[str, ValueWeights]:
    """The weights of ops with a state, by their tensors' names; a text has 512 tokens at most.

    bound, affine: the text's interventions, and those that apply to its last row
    CutawayError where the sums are not the run's outputs.
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
    """CutawayError where the sums are not the outputs of the run."""
    sums, largest = weights.output(), float(np.abs(out).max())
    if change is not None:
        largest = max(largest, float(np.abs(sums).max()))
        sums = change.factor * sums + change.offset
    if not np.abs(sums - out).max() <= _NEAR_STATES * max(largest, 1e-30):
        raise CutawayError(
            f"the weights of {op.out.name} do not add up to its outputs: this is a bug in cutaway"
        )


def _keep_state(position: int) -> None:
    """Change nothing: there is no intervention."""


def delta_net(
    op: DeltaNet, of: Weights, read: Sequence[Floats], changes: Changes = _keep_state
) -> ValueWeights:
    """A token keeps a part of the state, and takes out what the state had for its key."""
    (x, a, b), (heads, n, _), k_heads = read, op.state, op.k_heads
    q, k, v = np.split(x, [k_heads * n, 2 * k_heads * n], axis=1)
    q, k = (_unit(part.reshape(len(x), k_heads, n))[:, op.shared] for part in (q, k))
    keep = np.exp(of["a"].ravel() * np.logaddexp(0, a + of["dt"].ravel()))  # (T, heads)
    learn = 1 / (1 + np.exp(-b))
    weights, reads = np.empty((heads, len(x))), _Reads(op, changes, q[-1] / np.sqrt(n))
    for t in reversed(range(len(x))):
        reads.step_back(t, is_last=t == len(x) - 1)
        weights[:, t] = learn[t] * (reads.keys * k[t]).sum(-1)
        reads.keys = keep[t, :, None] * (reads.keys - weights[:, t, None] * k[t])
    return ValueWeights(weights, v.reshape(len(x), heads, -1), reads.constant)


def mamba2(
    op: Mamba2, of: Weights, read: Sequence[Floats], changes: Changes = _keep_state
) -> ValueWeights:
    """A token keeps a part of the state, and adds its value where its key is."""
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


def conv(
    op: Conv, of: Weights, read: Sequence[Floats], changes: Changes = _keep_state
) -> ValueWeights:
    """Each number is weighted by itself: the values are what the weights make of the inputs."""
    [x], (before, width) = read, op.state
    factor, shift = np.ones((before, width)), np.zeros((before, width))  # of the inputs before
    for t in range(max(len(x) - 1 - before, 0), len(x) - 1):
        factor = np.concatenate([factor[1:], np.ones((1, width))])
        shift = np.concatenate([shift[1:], np.zeros((1, width))])
        if change := changes(t):
            factor, (by, plus) = factor * change.factor.reshape(-1, width), change
            shift = shift * by.reshape(-1, width) + plus.reshape(-1, width)
    taps, count = of["weight"].T.astype(np.float64), min(before + 1, len(x))
    through = np.concatenate([taps[:-1] * factor, taps[-1:]])
    values, weights = np.zeros((len(x), 1, width)), np.zeros((1, len(x)))
    values[-count:, 0] = through[-count:] * x[-count:]
    weights[:, -count:] = 1
    bias = of.get("bias", np.zeros(width)).astype(np.float64)
    return ValueWeights(weights, values, (bias + (taps[:-1] * shift).sum(0))[None])


_KINDS: Mapping[type[StateOp], Callable[..., ValueWeights]] = {
    DeltaNet: delta_net, Mamba2: mamba2, Conv: conv,
}  # fmt: skip


class _Reads:
    """How the last row's output depends on the state after an earlier row, row by row backwards.

    keys      (heads, keys): a head's output is keys @ state + constant, and what tokens gave since
    constant  (heads, values): what interventions put into the state, as it arrives
    """

    def __init__(self, op: HeadStates, changes: Changes, query: Floats) -> None:
        """query: what the last row reads its own state with."""
        self._shape = op.state
        self._changes, self.keys = changes, query
        self.constant: Floats = np.zeros((self._shape[0], self._shape[2]))

    def step_back(self, position: int, *, is_last: bool) -> None:
        """Go from the state that later rows find to the one that the row at a position left."""
        change = None if is_last else self._changes(position)
        if change is not None:
            self.constant += np.einsum("hk,hkv->hv", self.keys, change.offset.reshape(self._shape))
            self.keys = self.keys * change.factor.reshape(self._shape)[:, :1, 0]  # one for a head


def _unit(x: Floats) -> Floats:
    unit: Floats = x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)
    return unit


# -- the experts of a mixture: which were chosen, their shares, and their outputs ------------------


_LITTLE = np.float32(1e-5)  # more than the exponentials here and there differ by


class ExpertOutput(NamedTuple):
    """What one expert added, (hidden,): ``matrix`` times what its last matrix read, (inner,).

    unsure  (inner,): by how much the run's own numbers may differ from those, since a value between
            two 8-bit steps may be rounded to either
    """

    output: Floats
    matrix: Floats
    unsure: Floats


def choose_experts(
    backend: Inspectable, scores: NDArray[Any], op: Experts
) -> tuple[NDArray[np.int64], Floats]:
    """Choose a row's experts by its scores, the best first, and their shares."""
    bias_name = op.weights.get("choosing_bias")
    bias = None if bias_name is None else backend.weight(bias_name)
    (ids,), (shares,) = op.mixture.choose(scores[None], bias)
    return ids, shares


def expert_output(
    backend: Inspectable, op: Experts, x: NDArray[np.float32], expert: int, share: float
) -> ExpertOutput:
    """Compute what one expert added for the row ``x`` (hidden,) that it read."""
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
