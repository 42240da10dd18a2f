"""The tables of ``cutaway trace inside`` for layers with a recurrent state."""

from collections.abc import Callable, Iterable

import numpy as np

from cutaway.base.checks import check_int
from cutaway.cli.terminal.drawing import table
from cutaway.cli.terminal.tokens import quoted
from cutaway.errors import InputError
from cutaway.features.inside import LogitAttribution, Look
from cutaway.features.inside.summary import NEAR, StateHeadFigures, state_heads
from cutaway.trace.figures import percent

Name = Callable[[int], str]
_MOST = 16  # lines of a head's tokens
WEIGHTS_ARE = (
    "A weight is exact: a head's output is the sum of all tokens' values, each times its weight. "
    "It has a sign, and it is no effect."
)


def of_states(look: Look, found: LogitAttribution, name: Name, most: int) -> list[str]:
    """The heads with the largest attribution of all layers; empty where no layer has one."""
    if look.has_states and not look.has_state_heads:
        return ["", "What layers with a state take of each token is told of 512 tokens at most."]
    every = sorted(state_heads(look, found), key=lambda head: -abs(head.attribution))
    if not every:
        return []
    title = "the heads with a state that have the largest attribution"
    return ["", *_heads(title, every[:most], look.token_ids, name), WEIGHTS_ARE]


def of_state_layer(look: Look, found: LogitAttribution, layer: int, name: Name) -> list[str]:
    """All heads of one layer."""
    mine = [head for head in state_heads(look, found) if head.layer == layer]
    return [*_heads("head", mine, look.token_ids, name), WEIGHTS_ARE]


def of_state_head(
    look: Look, found: LogitAttribution, place: tuple[int, int], name: Name
) -> list[str]:
    """The tokens that one head takes most of."""
    state, layer = look.states[place[0]], place[0]
    head = check_int("--head", place[1], 0, len(state.weights) - 1)
    own = found.state_layers[layer]
    lengths, values = state.lengths[head], own.positions[head]
    order = np.argsort(-lengths, kind="stable")[:_MOST]
    share = lengths / max(float(lengths.sum()), 1e-30)
    rows = [
        (
            f"{i:8d}", quoted(name(look.token_ids[i])), f"{state.weights[head, i]:+.4f}",
            percent(share[i]), f"{values[i]:+.4f}",
        )
        for i in order.tolist()
    ]  # fmt: skip
    left = len(lengths) - len(order)
    rest = float(values.sum() - values[order].sum())
    more = f"the other {left}: {percent(1 - share[order].sum())}, attribution {rest:+.4f}"
    return [
        f"L{layer}.H{head}: attribution {own.heads[head]:+.3f}; the tokens it takes most of",
        "",
        *table([("position", "token", "weight", "share of lengths", "attribution"), *rows]),
        *([more] if left else []),
        WEIGHTS_ARE,
    ]


def has_states(look: Look, layer: int) -> bool:
    """Whether the layer's heads with a state can be told."""
    return look.has_state_heads and layer in look.states


def check_state_layer(look: Look, layer: int) -> None:
    """InputError where a layer that does not attend has no heads with a state either."""
    if layer not in look.states:
        known = ", ".join(map(str, sorted({*look.attending, *look.states})))
        raise InputError(f"--layer: layers with heads are {known}, not {layer}")


def _heads(title: str, every: Iterable[StateHeadFigures], ids: list[int], name: Name) -> list[str]:
    rows = [
        (
            f"L{h.layer}.H{h.head}", f"{h.attribution:+.3f}",
            f"{h.most} {quoted(name(ids[h.most]))}", f"{h.weight:+.4f}", percent(h.near),
        )
        for h in every
    ]  # fmt: skip
    head = (title, "attribution", "takes most of", "its weight", f"of the last {NEAR} tokens")
    return table([head, *rows])
