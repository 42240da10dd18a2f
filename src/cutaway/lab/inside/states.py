"""What the heads of recurrent layers give each token of a text: weights of their values, exactly.

A head of a delta net or of Mamba 2 is linear in its values, whatever changed its state in between:
its output is the sum of all values so far, each times a weight. Sums are in float64. Short
convolutions are no heads; how attention looks is ``inside``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.api.llm import LLM
from cutaway.base.checks import check_int
from cutaway.compute.backends import inspectable
from cutaway.compute.model import Op
from cutaway.errors import CutawayError, InputError
from cutaway.lab.inside.look import OtherRowError, ids_before
from cutaway.lab.rerun.request import bound, check_text
from cutaway.sampling.row_hash import row_hash
from cutaway.trace import Trace
from cutaway.trace.phrases import phrase

Floats = NDArray[np.float64]
_KINDS = ("delta_net", "mamba2")
_NEAR = 1e-4  # of the largest output: the states are float32


@dataclass(frozen=True)
class StateWeights:
    """Of one step: by layer, the weight of each token's value in each head's output.

    step       its number
    token_ids  of the text, whose last row gave the step's logits
    weights    (heads, tokens); they have signs, and no fixed sum. Mamba 2's last one has the share
               of the token's own value that passes the state by
    values     (tokens, heads, numbers)
    row_hash   of the row's logits
    is_as_run  whether that is the recorded one; if not, the reference backend computed it
    """

    step: int
    token_ids: list[int]
    weights: Mapping[int, Floats]
    values: Mapping[int, Floats]
    row_hash: int
    is_as_run: bool

    def proof(self) -> str:
        """A sentence: the row is the recorded one, or the reference backend computed it."""
        return phrase("same row" if self.is_as_run else "other row", row=f"{self.row_hash:016x}")


def state_weights(llm: LLM, trace: Trace, step: int) -> StateWeights:
    """Compute the text of a step again, and the weights of its recurrent layers' values.

    Raises InputError where no layer has such heads, or the text is longer than 512 tokens;
    OtherRowError where the row's hash is not the recorded one, unless the reference backend ran.
    """
    check_text("the weights of recurrent layers", llm, trace)
    ops = [op for op in llm.graph.ops if op.kind in _KINDS]
    if not ops:
        raise InputError("no layer of this model is a delta net or Mamba 2: it has no such weights")
    step = check_int("step", step, 0, len(trace.steps) - 1)
    ids, made = ids_before(trace, step), bound(llm, trace.head)
    hashed = row_hash(llm.row(ids, [], {}, made).logits)
    if hashed != trace.steps[step].logits_hash and llm.backend.name != "reference":
        raise OtherRowError(
            f"the logits of step {step} are not those on record: 'cutaway trace replay' says what "
            "differs"
        )
    backend = inspectable(llm.backend)
    weights, values = {}, {}
    for op in ops:
        tensors = llm.tensors(ids, [*op.inputs, op.out.name], made)
        of = {role: backend.weight(name).ravel() for role, name in op.weights.items()}
        read = [tensors[name].astype(np.float64) for name in op.inputs]
        layer = op.attrs["layer"]
        weights[layer], values[layer] = (_delta_net if op.kind == "delta_net" else _mamba2)(
            op, of, *read
        )
        if not _edited(op, made):
            _check(op, weights[layer], values[layer], tensors[op.out.name][-1])
    is_as_run = hashed == trace.steps[step].logits_hash
    return StateWeights(step, ids, weights, values, hashed, is_as_run)


def _edited(op: Op, made: Any) -> bool:
    return made is not None and any(one.tensor == op.out.name for one in made.placed)


def _check(op: Op, weights: Floats, values: Floats, out: NDArray[Any]) -> None:
    """CutawayError where the sums are not the outputs of the run."""
    found = np.einsum("ht,thv->hv", weights, values).ravel()
    if not np.abs(found - out).max() <= _NEAR * max(float(np.abs(out).max()), 1e-30):
        raise CutawayError(
            f"the weights of {op.out.name} do not add up to its outputs: this is a bug in cutaway"
        )


def _delta_net(
    op: Op, of: Mapping[str, NDArray[Any]], x: Floats, a: Floats, b: Floats
) -> tuple[Floats, Floats]:
    """A token keeps a part of the state, and takes out what the state had for its key."""
    (heads, n, _), k_heads = op.attrs["state"], op.attrs["k_heads"]
    each = np.arange(heads)
    share = each // (heads // k_heads) if op.attrs["grouped"] else each % k_heads
    q, k, v = np.split(x, [k_heads * n, 2 * k_heads * n], axis=1)
    q, k = (_unit(part.reshape(len(x), k_heads, n))[:, share] for part in (q, k))
    keep = np.exp(of["a"] * np.logaddexp(0, a + of["dt"]))  # (T, heads)
    learn = 1 / (1 + np.exp(-b))
    weights, reads = np.empty((heads, len(x))), q[-1] / np.sqrt(n)  # what is read of the state
    for t in reversed(range(len(x))):
        weights[:, t] = learn[t] * (reads * k[t]).sum(-1)
        reads = keep[t, :, None] * (reads - weights[:, t, None] * k[t])
    return weights, v.reshape(len(x), heads, -1)


def _mamba2(op: Op, of: Mapping[str, NDArray[Any]], x: Floats, dt: Floats) -> tuple[Floats, Floats]:
    """A token keeps a part of the state, and adds its value where its key is."""
    (heads, n, width), k_heads = op.attrs["state"], op.attrs["k_heads"]
    share = np.arange(heads) // (heads // k_heads)
    v, k, q = np.split(x, [heads * width, heads * width + k_heads * n], axis=1)
    k, q = (part.reshape(len(x), k_heads, n)[:, share] for part in (k, q))
    step = np.logaddexp(0, dt + of["dt"])  # (T, heads)
    forgets = of["a"] * step
    kept = np.exp(forgets.sum(0) - np.cumsum(forgets, axis=0))  # by the tokens after each
    weights = (kept * step * np.einsum("thk,hk->th", k, q[-1])).T
    weights[:, -1] += of["d"]
    return weights, v.reshape(len(x), heads, width)


def _unit(x: Floats) -> Floats:
    unit: Floats = x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)
    return unit
