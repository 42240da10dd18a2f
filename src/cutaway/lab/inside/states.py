"""What layers with a recurrent state make of each token of a text: weights of its values, exactly.

A head of a delta net or of Mamba 2 is linear in its values, whatever changed its state in between:
its output is the sum of all values so far, each times a weight. A short convolution is one too, of
its last few tokens. Sums are in float64.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.api.llm import LLM
from cutaway.compute.backends import inspectable
from cutaway.compute.model import Op
from cutaway.engine.interventions import Affine, BoundInterventions
from cutaway.errors import CutawayError

Floats = NDArray[np.float64]
_NEAR = 1e-4  # of the largest output: the states are float32


@dataclass(frozen=True)
class ValueWeights:
    """One op's heads at the last token of a text. Each one's output is the sum of weight · value.

    weights   (heads, tokens); they have signs, and no fixed sum. Mamba 2's last one has the share
              of the token's own value that passes the state by. A convolution is one head, whose
              weights are in its values: 1 for the tokens that it reads
    values    (tokens, heads, numbers)
    constant  (heads, numbers): what is added beside, a convolution's bias
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
    names = {name for op in ops for name in (*op.inputs, op.out.name)}
    tensors, found = llm.tensors(ids, sorted(names), made), {}
    for op in ops:
        of = {role: backend.weight(name) for role, name in op.weights.items()}
        read = [tensors[name].astype(np.float64) for name in op.inputs]
        here = _KINDS[op.kind](op, of, *read)
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


def delta_net(
    op: Op, of: Mapping[str, NDArray[Any]], x: Floats, a: Floats, b: Floats
) -> ValueWeights:
    """A token keeps a part of the state, and takes out what the state had for its key."""
    (heads, n, _), k_heads = op.attrs["state"], op.attrs["k_heads"]
    each = np.arange(heads)
    share = each // (heads // k_heads) if op.attrs["grouped"] else each % k_heads
    q, k, v = np.split(x, [k_heads * n, 2 * k_heads * n], axis=1)
    q, k = (_unit(part.reshape(len(x), k_heads, n))[:, share] for part in (q, k))
    keep = np.exp(of["a"].ravel() * np.logaddexp(0, a + of["dt"].ravel()))  # (T, heads)
    learn = 1 / (1 + np.exp(-b))
    weights, reads = np.empty((heads, len(x))), q[-1] / np.sqrt(n)  # what is read of the state
    for t in reversed(range(len(x))):
        weights[:, t] = learn[t] * (reads * k[t]).sum(-1)
        reads = keep[t, :, None] * (reads - weights[:, t, None] * k[t])
    return _without_constant(weights, v.reshape(len(x), heads, -1))


def mamba2(op: Op, of: Mapping[str, NDArray[Any]], x: Floats, dt: Floats) -> ValueWeights:
    """A token keeps a part of the state, and adds its value where its key is."""
    (heads, n, width), k_heads = op.attrs["state"], op.attrs["k_heads"]
    share = np.arange(heads) // (heads // k_heads)
    v, k, q = np.split(x, [heads * width, heads * width + k_heads * n], axis=1)
    k, q = (part.reshape(len(x), k_heads, n)[:, share] for part in (k, q))
    step = np.logaddexp(0, dt + of["dt"].ravel())  # (T, heads)
    forgets = of["a"].ravel() * step
    kept = np.exp(forgets.sum(0) - np.cumsum(forgets, axis=0))  # by the tokens after each
    weights = (kept * step * np.einsum("thk,hk->th", k, q[-1])).T
    weights[:, -1] += of["d"].ravel()
    return _without_constant(weights, v.reshape(len(x), heads, width))


def conv(op: Op, of: Mapping[str, NDArray[Any]], x: Floats) -> ValueWeights:
    """Each number is weighted by itself: the values are what the weights make of the inputs."""
    taps = op.attrs["state"][0] + 1
    read = min(taps, len(x))
    values, weights = np.zeros((len(x), 1, x.shape[1])), np.zeros((1, len(x)))
    values[-read:, 0] = of["weight"].T[-read:] * x[-read:]
    weights[:, -read:] = 1
    bias = of.get("bias", np.zeros(x.shape[1])).astype(np.float64)
    return ValueWeights(weights, values, bias[None])


_KINDS: Mapping[str, Callable[..., ValueWeights]] = {
    "delta_net": delta_net, "mamba2": mamba2, "conv": conv,
}  # fmt: skip


def _without_constant(weights: Floats, values: Floats) -> ValueWeights:
    return ValueWeights(weights, values, np.zeros(values.shape[1:]))


def _unit(x: Floats) -> Floats:
    unit: Floats = x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)
    return unit
