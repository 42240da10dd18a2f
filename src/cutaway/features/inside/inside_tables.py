"""The tables of ``cutaway trace inside``, each with a sentence on what it is not."""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from cutaway.base.checks import check_int
from cutaway.cli.terminal.drawing import quoted, table
from cutaway.errors import InputError
from cutaway.features.inside.lens import Lens
from cutaway.features.inside.logit_attribution import LogitAttribution
from cutaway.features.inside.look import Look
from cutaway.features.inside.summary import (
    NEAR,
    HeadFigures,
    PositionFigures,
    StateHeadFigures,
    heads,
    near_to,
    places,
    state_heads,
)
from cutaway.trace.figures import percent, phrase, probability

Name = Callable[[int], str]
Spark = Callable[[Iterable[float | None]], str]
_MOST = 8  # lines of a table that could have thousands


def of_step(look: Look, found: LogitAttribution, lens: Lens, name: Name, spark: Spark) -> list[str]:
    """The whole step: attention, logit attribution and the lens."""
    token, rival = quoted(name(found.token)), quoted(name(found.rival))
    return [
        f"step {look.step.index}: {token}, {percent(probability(look.step.logprob))}; its logit is "
        f"{found.total:+.3f} over {rival}; it read {len(look.token_ids)} tokens, "
        f"{look.kv_bytes / 1e6:.2f} MB of keys and values",
        *([] if look.is_as_run else ["This is the reference's float32, and not what ran."]),
        "",
        *_looked_at(look, found, name),
        f"what adds to {token} over {rival}, in logits",
        *_parts(found),
        *_attending(look, found, name),
        *_experts(look, found),
        phrase("attribution is no effect"),
        *of_states(look, found, name, _MOST),
        "",
        *of_lens(found, lens, name, spark),
    ]


def of_lens(found: LogitAttribution, lens: Lens, name: Name, spark: Spark) -> list[str]:
    """What the head would say after each layer, and the attribution of each of its heads."""
    token = quoted(name(found.token))
    return [
        f"what the head would say after each layer, and its heads' attribution to {token}",
        *_lens(lens, found, name, spark),
        _settled(lens, token),
        phrase("not said"),
    ]


def of_layer(look: Look, found: LogitAttribution, layer: int, name: Name) -> list[str]:
    """The heads of one layer."""
    layer = check_int("--layer", layer, 0, look.layers - 1)
    if layer not in look.attending:
        check_state_layer(look, layer)
        return of_state_layer(look, found, layer, name)
    mine = [head for head in heads(look, found) if head.layer == layer]
    part = found.parts[f"L{layer}.attn"]
    return [
        f"layer {layer}: attribution of attention {part:+.3f}, of which rounding to 8 bits is "
        f"{found.rounded[layer]:+.4f}; it reads {_read(look, layer)}",
        "",
        *_heads("head", mine, look.token_ids, name, every_one=True),
        phrase("attribution is no effect"),
        *(["", *of_state_layer(look, found, layer, name)] if has_states(look, layer) else []),
    ]


def of_head(look: Look, found: LogitAttribution, place: tuple[int, int], name: Name) -> list[str]:
    """One head: where it looked, what it wrote from there, and its attribution."""
    layer = check_int("--layer", place[0], 0, look.layers - 1)
    if layer not in look.attending:
        check_state_layer(look, layer)
        return of_state_head(look, found, place, name)
    head = check_int("--head", place[1], 0, found.heads.shape[1] - 1)
    rows = zip(
        look.token_ids, look.weights[layer, head], look.writes[layer, head],
        found.positions[layer, head], strict=True,
    )  # fmt: skip
    ordered = sorted(enumerate(rows), key=lambda row: -row[1][1])[: 2 * _MOST]
    return [
        f"L{layer}.H{head}: attribution {found.heads[layer, head]:+.3f}; it reads "
        f"{_read(look, layer)}",
        "",
        *table([
            ("position", "token", "weight", "write", "attribution"),
            *(
                (f"{i:8d}", quoted(name(token)), percent(weight), f"{write:.4f}", f"{value:+.4f}")
                for i, (token, weight, write, value) in ordered
                if i >= look.first_seen[layer]
            ),
        ]),
        "A write's length has no sign and does not add up.",
        phrase("attention is no effect"),
    ]  # fmt: skip


def of_embedding(look: Look, name: Name) -> list[str]:
    """The tokens nearest to the one that the step read."""
    rows = [(quoted(near.token), f"{near.cosine:+.3f}") for near in near_to(look, name)]
    read = quoted(name(look.token_ids[-1]))
    return [
        f"the embeddings nearest to that of {read}, which the step read",
        "",
        *table([("token", "cosine"), *rows]),
        "An embedding is the token before any text: near are tokens that are used alike.",
    ]


def of_tensor(name: str, numbers: NDArray[np.float32]) -> list[str]:
    """A tensor's size, and its largest numbers."""
    wide = numbers.astype(np.float64)
    order = np.argsort(-np.abs(wide), kind="stable")[:_MOST]
    return [
        f"{name}: {len(wide)} numbers, mean {wide.mean():.6g}, root mean square "
        f"{np.sqrt(np.mean(wide * wide)):.6g}, from {wide.min():.6g} to {wide.max():.6g}",
        "",
        *table([("index", "number"), *((f"{i:5d}", f"{wide[i]:+.6g}") for i in order)]),
        "The largest are not the most important: a direction counts, not one number.",
    ]


def _looked_at(look: Look, found: LogitAttribution, name: Name) -> list[str]:
    """What attention read; empty where no layer attends."""
    if not look.attending:
        return []
    heads = len(look.attending) * look.weights.shape[1]
    return [
        "looked at, by the mean weight of all heads",
        *_places(places(look, found, name)),
        f"{int(look.sinks.sum())} of {heads} heads rest on position 0 (over 30 %).",
        phrase("attention is no effect"),
        "",
    ]


def _attending(look: Look, found: LogitAttribution, name: Name) -> list[str]:
    every, title = heads(look, found), "the heads with the largest attribution"
    return _heads(title, every, look.token_ids, name) if every else []


def _read(look: Look, layer: int) -> str:
    first, last = look.first_seen[layer], len(look.token_ids) - 1
    return f"positions {first} to {last}" + (", a window" if first else "")


def _places(every: list[PositionFigures]) -> list[str]:
    best = sorted(every, key=lambda place: -place.weight)[:_MOST]
    rest = sum(place.weight for place in every) - sum(place.weight for place in best)
    others = sum(place.attribution for place in every) - sum(place.attribution for place in best)
    lines = table([
        ("position", "token", "weight", "attribution"),
        *(
            (f"{p.position:8d}", quoted(p.token), percent(p.weight), f"{p.attribution:+.3f}")
            for p in best
        ),
    ])  # fmt: skip
    if len(every) > _MOST:
        lines.append(
            f"the other {len(every) - _MOST}: {percent(max(rest, 0))} of the weight, attribution "
            f"{others:+.3f}"
        )
    return lines


def _parts(found: LogitAttribution) -> list[str]:
    best = sorted(found.parts.items(), key=lambda part: -abs(part[1]))[:_MOST]
    rest = sum(found.parts.values()) - sum(value for _, value in best)
    rows = [(name, f"{value:+.3f}") for name, value in best]
    if len(found.parts) > _MOST:
        rows.append((f"the other {len(found.parts) - _MOST} parts", f"{rest:+.3f}"))
    if found.bias:
        rows.append(("biases", f"{found.bias:+.3f}"))
    rows.append(("rounding to 8 bits before the head", f"{found.rounding:+.3f}"))
    return table([*rows, ("together", f"{found.total:+.3f}")])


def _heads(
    title: str, every: Iterable[HeadFigures], ids: list[int], name: Name, *, every_one: bool = False
) -> list[str]:
    best = list(every) if every_one else sorted(every, key=lambda h: -abs(h.attribution))[:_MOST]
    return table([
        (
            title, "attribution", "looks most at", "weight", "position 0", "previous", "induction",
            "spread",
        ),
        *(
            (
                h.place, f"{h.attribution:+.3f}",
                f"{h.most} {quoted(name(ids[h.most]))}", percent(h.weight), percent(h.sink),
                percent(h.previous), percent(h.induction), f"{h.entropy:.2f}",
            )
            for h in best
        ),
    ])  # fmt: skip


def _experts(look: Look, found: LogitAttribution) -> list[str]:
    rows = [
        (
            f"L{layer}",
            *(f"{i} {percent(share)} {found.experts[layer][i]:+.3f}" for i, share in pairs),
        )
        for layer, (ids, shares) in look.experts.items()
        for pairs in [list(zip(ids.tolist(), shares.tolist(), strict=True))]
    ]
    return ["", "the experts that were chosen: share, attribution", *table(rows)] if rows else []


def _lens(lens: Lens, found: LogitAttribution, name: Name, spark: Spark) -> list[str]:
    each = {row.layer: found.heads_of(row.layer) for row in lens.rows(name) if row.layer >= 0}
    largest = max((float(np.abs(own).max(initial=0)) for own in each.values()), default=0) or 1.0
    rows = [("layer", "likeliest", "", "rank", "drawn", "heads")]
    for row in lens.rows(name):
        own = each[row.layer].tolist() if row.layer >= 0 else []
        bars = spark(value / largest if value > 0 else None for value in own)
        rows.append((
            "before" if row.layer < 0 else f"{row.layer:5d}", quoted(row.token),
            percent(row.probability), f"{row.rank:d}",
            "" if row.drawn_token is None else quoted(row.drawn_token), bars,
        ))  # fmt: skip
    return table(rows)


def _settled(lens: Lens, token: str) -> str:
    said = (
        f"after the last layer {token} is not the likeliest"
        if lens.settled is None
        else f"{token} stays the likeliest {_from(lens.settled)}"
    )
    if lens.draw_settled is None:
        return said + "; the draw of this run cannot be repeated here."
    return f"{said}; with the same luck the draw is the same {_from(lens.draw_settled)}."


def _from(row: int) -> str:
    return "from before the first layer on" if row == 0 else f"from layer {row - 1} on"


# -- layers with a recurrent state -----------------------------------------------------------------


_MOST_TOKENS = 16  # lines of a head's tokens
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
    return ["", *_state_heads(title, every[:most], look.token_ids, name), WEIGHTS_ARE]


def of_state_layer(look: Look, found: LogitAttribution, layer: int, name: Name) -> list[str]:
    """All heads of one layer."""
    mine = [head for head in state_heads(look, found) if head.layer == layer]
    return [*_state_heads("head", mine, look.token_ids, name), WEIGHTS_ARE]


def of_state_head(
    look: Look, found: LogitAttribution, place: tuple[int, int], name: Name
) -> list[str]:
    """The tokens that one head takes most of."""
    state, layer = look.states[place[0]], place[0]
    head = check_int("--head", place[1], 0, len(state.weights) - 1)
    own = found.state_layers[layer]
    lengths, values = state.lengths[head], own.positions[head]
    order = np.argsort(-lengths, kind="stable")[:_MOST_TOKENS]
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


def _state_heads(
    title: str, every: Iterable[StateHeadFigures], ids: list[int], name: Name
) -> list[str]:
    rows = [
        (
            f"L{h.layer}.H{h.head}", f"{h.attribution:+.3f}",
            f"{h.most} {quoted(name(ids[h.most]))}", f"{h.weight:+.4f}", percent(h.near),
        )
        for h in every
    ]  # fmt: skip
    head = (title, "attribution", "takes most of", "its weight", f"of the last {NEAR} tokens")
    return table([head, *rows])
