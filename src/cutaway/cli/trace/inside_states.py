"""The tables of ``cutaway trace inside`` for models whose layers have a recurrent state."""

from collections.abc import Callable
from typing import Any

import numpy as np

from cutaway.base.checks import check_int
from cutaway.cli.terminal.drawing import table
from cutaway.cli.terminal.tokens import quoted
from cutaway.errors import InputError
from cutaway.lab.inside.states import StateWeights

Name = Callable[[int], str]
_MOST = 16  # lines of a head's tokens
_NEAR = 16  # tokens
_NOT_SAID = (
    "A weight is exact: a head's output is the sum of all tokens' values, each times its weight. "
    "It has a sign, and it is no effect."
)


def of_states(found: StateWeights, layer: int | None, head: int | None, name: Name) -> list[str]:
    """The table that was chosen: all layers, the heads of one, or the tokens of one head."""
    if layer is None:
        return [*_of_layers(found), "", _NOT_SAID]
    if layer not in found.weights:
        known = ", ".join(map(str, found.weights))
        raise InputError(f"--layer: layers with such heads are {known}, not {layer}")
    if head is None:
        return [*_of_heads(found, layer), "", _NOT_SAID]
    head = check_int("--head", head, 0, len(found.weights[layer]) - 1)
    return [*_of_head(found, layer, head, name), "", _NOT_SAID]


def to_dict(found: StateWeights) -> dict[str, Any]:
    """One JSON document."""
    return {
        "step": found.step, "token_ids": found.token_ids, "row_hash": f"{found.row_hash:016x}",
        "is_as_run": found.is_as_run,
        "weights": {str(layer): weights.tolist() for layer, weights in found.weights.items()},
    }  # fmt: skip


def _written(found: StateWeights, layer: int) -> Any:
    """The length of what each head takes of each token's value: (heads, tokens)."""
    lengths = np.linalg.norm(found.values[layer], axis=-1).T
    return np.abs(found.weights[layer]) * lengths


def _reach(written: Any) -> Any:
    """Of each head, the share of all it takes that is of the last tokens: (heads,)."""
    whole = np.maximum(written.sum(axis=1), 1e-30)
    return written[:, -_NEAR:].sum(axis=1) / whole


def _of_layers(found: StateWeights) -> list[str]:
    rows = []
    for layer in found.weights:
        reach = _reach(_written(found, layer))
        rows.append((
            f"L{layer}", str(len(reach)), f"{reach.mean():.0%}", f"H{int(reach.argmin())}",
            f"{reach.min():.0%}",
        ))  # fmt: skip
    head = ("layer", "heads", f"of the last {_NEAR} tokens", "farthest", "of the last")
    return [
        f"step {found.step}: {len(found.token_ids)} tokens; what the heads with a state take of "
        f"them, by length, and how much of it is of the last {_NEAR}",
        *table([head, *rows]),
    ]


def _of_heads(found: StateWeights, layer: int) -> list[str]:
    written = _written(found, layer)
    reach, most = _reach(written), written.argmax(axis=1)
    rows = [
        (f"H{i}", f"{reach[i]:.0%}", str(most[i]), f"{found.weights[layer][i, most[i]]:+.4f}")
        for i in range(len(written))
    ]
    head = ("head", f"of the last {_NEAR}", "most of", "its weight")
    return [f"layer {layer}, {len(found.token_ids)} tokens", *table([head, *rows])]


def _of_head(found: StateWeights, layer: int, head: int, name: Name) -> list[str]:
    written, weights = _written(found, layer)[head], found.weights[layer][head]
    order = np.argsort(-written, kind="stable")[:_MOST]
    share = written / max(float(written.sum()), 1e-30)
    rows = [
        (str(i), quoted(name(found.token_ids[i])), f"{weights[i]:+.4f}", f"{share[i]:.1%}")
        for i in order.tolist()
    ]
    left = len(weights) - len(order)
    more = [f"and {left} tokens more, {1 - share[order].sum():.1%}"] if left else []
    return [
        f"L{layer}.H{head}: the tokens it takes most of",
        *table([("position", "token", "weight", "share of lengths"), *rows]),
        *more,
    ]
