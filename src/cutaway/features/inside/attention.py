"""One row's attention, recomputed: its weights, and the norms of what its heads wrote.

Sums in float64, from the row's rotated query and the keys and values as they are stored.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import CutawayError

Floats = NDArray[np.float64]

SINK = 0.3
"""A head with more of its weight than this at position 0 is a sink."""
_NEAR = 2e-5  # of the largest number: these exponentials are not those of the kernel
_TINY = 1e-30


def weights(
    query: NDArray[Any],
    keys: NDArray[Any],
    attrs: Mapping[str, Any],
    unseen: NDArray[np.bool_] | None = None,
    sinks: NDArray[Any] | None = None,
) -> Floats:
    """Of each head over the positions whose keys are given: (heads, n), each row adds up to 1.

    query (heads · head_dim,), keys (kv_heads, n, head_dim), unseen (n,): the positions knocked out
    sinks (heads,): a score more for each head, whose weight is missing from the sum
    """
    q = query.astype(np.float64).reshape(attrs["kv_heads"], -1, attrs["head_dim"])
    scores = attrs["scale"] * (q @ keys.astype(np.float64).transpose(0, 2, 1))  # (kv, group, n)
    if cap := attrs["softcap"]:
        scores = cap * np.tanh(scores / cap)
    if unseen is not None:
        scores[..., unseen] = -np.inf
    beside = np.full((*scores.shape[:2], 1), -np.inf)
    if sinks is not None:
        beside = sinks.astype(np.float64).reshape(beside.shape)
    top = np.maximum(scores.max(axis=-1, keepdims=True), beside)
    each = np.exp(scores - top)
    each /= each.sum(axis=-1, keepdims=True) + np.exp(beside - top)
    flat: Floats = each.reshape(attrs["heads"], -1)
    return flat


def mixed(weight: Floats, values: NDArray[Any]) -> Floats:
    """The output of each head: its KV head's values, weighted: (heads, head_dim)."""
    grouped = weight.reshape(len(values), -1, weight.shape[-1])
    return (grouped @ values.astype(np.float64)).reshape(len(weight), -1)


def check(layer: int, again: NDArray[Any], output: NDArray[Any], largest: float) -> None:
    """CutawayError where weights give another output than a layer's heads had.

    again: what they give; largest: of the numbers that the difference is compared with
    """
    if not np.abs(again - output).max(initial=0) <= _NEAR * max(largest, _TINY):
        raise CutawayError(
            f"the weights of layer {layer} do not give its heads' outputs: this is a bug in cutaway"
        )


def along(weight: Floats, values: NDArray[Any], direction: Floats) -> Floats:
    """Each position's write, projected on a direction (heads, head_dim): (heads, n)."""
    grouped = direction.reshape(len(values), -1, direction.shape[-1])
    reach = grouped @ values.astype(np.float64).transpose(0, 2, 1)  # (kv, group, n)
    return weight * reach.reshape(weight.shape)


def writes(weight: Floats, values: NDArray[Any], output: Floats) -> Floats:
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
