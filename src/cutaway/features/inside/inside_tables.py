"""The tables of ``cutaway trace inside``, each with a sentence on what it does not show."""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from cutaway.base.checks import check_int
from cutaway.base.counting import count_from_1
from cutaway.cli.terminal.drawing import quote, table
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
    nearest_tokens,
    places,
    state_heads,
)
from cutaway.trace.figures import percent, phrase, probability

Name = Callable[[int], str]
Spark = Callable[[Iterable[float | None]], str]
_MAX_LINES = 8  # lines shown of a table that could have thousands


def describe_step(
    look: Look, attribution: LogitAttribution, lens: Lens, name: Name, spark: Spark
) -> list[str]:
    """Describe the whole step: attention, logit attribution and the lens."""
    token, rival = quote(name(attribution.token)), quote(name(attribution.rival))
    side = "below" if attribution.total < 0 else "above"
    return [
        f"step {count_from_1(look.step.index)}: {token}, "
        f"{percent(probability(look.step.logprob))}; its logit is "
        f"{abs(attribution.total):.3f} {side} that of {rival}; it read {len(look.token_ids)} "
        f"tokens, {look.kv_bytes / 1e6:.2f} MB of keys and values",
        *([] if look.is_as_run else ["This is the reference's float32, and not what ran."]),
        "",
        *_describe_attention(look, attribution, name),
        f"what adds to {token} over {rival}, in logits",
        *_parts(attribution),
        *_describe_attending_heads(look, attribution, name),
        *_experts(look, attribution),
        phrase("attribution is no effect"),
        *describe_states(look, attribution, name, _MAX_LINES),
        "",
        *describe_lens(look, attribution, lens, name, spark),
    ]


def describe_lens(
    look: Look, attribution: LogitAttribution, lens: Lens, name: Name, spark: Spark
) -> list[str]:
    """Describe the output head's prediction by layer, and the attention heads' attributions."""
    token = quote(name(attribution.token))
    return [
        f"what the head would say after each layer, and its heads' attribution to {token}",
        *_lens(lens, attribution, name, spark),
        _describe_settling(look, lens, token),
        phrase("not said"),
    ]


def describe_layer(look: Look, attribution: LogitAttribution, layer: int, name: Name) -> list[str]:
    """Describe the heads of one layer."""
    layer = check_int("--layer", layer, 0, look.layers - 1)
    if layer not in look.attending:
        check_state_layer(look, layer)
        return describe_state_layer(look, attribution, layer, name)
    layer_heads = [head for head in heads(look, attribution) if head.layer == layer]
    return [
        f"{look.layer_name(layer)}: {_attribution(look, attribution, layer)}; it reads "
        f"{_read(look, layer)}",
        "",
        *_heads("head", layer_heads, look.token_ids, name, show_all=True),
        phrase("attribution is no effect"),
        *(
            ["", *describe_state_layer(look, attribution, layer, name)]
            if has_states(look, layer)
            else []
        ),
    ]


def _attribution(look: Look, attribution: LogitAttribution, layer: int) -> str:
    if layer < look.first_added:
        return "attention has no attribution, as this run reaches the logits through later runs"
    part, rounded = attribution.parts[f"L{layer}.attn"], attribution.rounded[layer]
    return f"attribution of attention {part:+.3f}, of which rounding to 8 bits is {rounded:+.4f}"


def describe_head(
    look: Look, attribution: LogitAttribution, place: tuple[int, int], name: Name
) -> list[str]:
    """Describe one head: its weights, norms of its writes, and attributions, by position."""
    layer = check_int("--layer", place[0], 0, look.layers - 1)
    if layer not in look.attending:
        check_state_layer(look, layer)
        return describe_state_head(look, attribution, place, name)
    head = check_int("--head", place[1], 0, attribution.heads.shape[1] - 1)
    rows = zip(
        look.token_ids, look.weights[layer, head], look.writes[layer, head],
        attribution.positions[layer, head], strict=True,
    )  # fmt: skip
    ordered = sorted(enumerate(rows), key=lambda row: -row[1][1])[: 2 * _MAX_LINES]
    return [
        f"L{layer}.H{head}: attribution {attribution.heads[layer, head]:+.3f}; "
        f"{look.layer_name(layer)} reads {_read(look, layer)}",
        "",
        *table([
            ("position", "token", "weight", "write", "attribution"),
            *(
                (f"{i:8d}", quote(name(token)), percent(weight), f"{write:.4f}", f"{value:+.4f}")
                for i, (token, weight, write, value) in ordered
                if i >= look.first_seen[layer]
            ),
        ]),
        "A write's length has no sign and does not add up.",
        phrase("attention is no effect"),
    ]  # fmt: skip


def describe_embedding(look: Look, name: Name) -> list[str]:
    """Describe the tokens whose embeddings are nearest to that of the row's own token."""
    rows = [(quote(near.token), f"{near.cosine:+.3f}") for near in nearest_tokens(look, name)]
    read = quote(name(look.token_ids[-1]))
    return [
        f"the embeddings nearest to that of {read}, which the step read",
        "",
        *table([("token", "cosine"), *rows]),
        "An embedding is the token before any text: near are tokens that are used alike.",
    ]


def describe_tensor(name: str, numbers: NDArray[np.float32]) -> list[str]:
    """Describe a tensor's size, and its largest numbers."""
    wide = numbers.astype(np.float64)
    order = np.argsort(-np.abs(wide), kind="stable")[:_MAX_LINES]
    return [
        f"{name}: {len(wide)} numbers, mean {wide.mean():.6g}, root mean square "
        f"{np.sqrt(np.mean(wide * wide)):.6g}, from {wide.min():.6g} to {wide.max():.6g}",
        "",
        *table([("index", "number"), *((f"{i:5d}", f"{wide[i]:+.6g}") for i in order)]),
        "The largest are not the most important: a direction counts, not one number.",
    ]


def _describe_attention(look: Look, attribution: LogitAttribution, name: Name) -> list[str]:
    """Describe the positions that attention read; [] where no layer attends."""
    if not look.attending:
        return []
    heads = len(look.attending) * look.weights.shape[1]
    return [
        "looked at, by the mean weight of all heads",
        *_places(places(look, attribution, name)),
        f"{int(look.sinks.sum())} of {heads} heads rest on position 0 (over 30 %).",
        phrase("attention is no effect"),
        "",
    ]


def _describe_attending_heads(look: Look, attribution: LogitAttribution, name: Name) -> list[str]:
    all_heads, title = heads(look, attribution), "the heads with the largest attribution"
    return _heads(title, all_heads, look.token_ids, name) if all_heads else []


def _read(look: Look, layer: int) -> str:
    first, last = look.first_seen[layer], len(look.token_ids) - 1
    return f"positions {first} to {last}" + (", a window" if first else "")


def _places(positions: list[PositionFigures]) -> list[str]:
    best = sorted(positions, key=lambda place: -place.weight)[:_MAX_LINES]
    rest_weight = sum(place.weight for place in positions) - sum(place.weight for place in best)
    rest_attribution = sum(place.attribution for place in positions) - sum(
        place.attribution for place in best
    )
    lines = table([
        ("position", "token", "weight", "attribution"),
        *(
            (f"{p.position:8d}", quote(p.token), percent(p.weight), f"{p.attribution:+.3f}")
            for p in best
        ),
    ])  # fmt: skip
    if (left := len(positions) - _MAX_LINES) > 0:
        lines.append(
            f"the other {left}: {percent(max(rest_weight, 0))} of the weight, "
            f"attribution {rest_attribution:+.3f}"
        )
    return lines


def _parts(attribution: LogitAttribution) -> list[str]:
    best = sorted(attribution.parts.items(), key=lambda part: -abs(part[1]))[:_MAX_LINES]
    rest = sum(attribution.parts.values()) - sum(value for _, value in best)
    rows = [(name, f"{value:+.3f}") for name, value in best]
    if len(attribution.parts) > _MAX_LINES:
        rows.append((f"the other {len(attribution.parts) - _MAX_LINES} parts", f"{rest:+.3f}"))
    if attribution.bias:
        rows.append(("biases", f"{attribution.bias:+.3f}"))
    rows.append(("rounding to 8 bits before the head", f"{attribution.rounding:+.3f}"))
    return table([*rows, ("together", f"{attribution.total:+.3f}")])


def _heads(
    title: str,
    all_heads: Iterable[HeadFigures],
    ids: list[int],
    name: Name,
    *,
    show_all: bool = False,
) -> list[str]:
    best = (
        list(all_heads)
        if show_all
        else sorted(all_heads, key=lambda h: -abs(h.attribution))[:_MAX_LINES]
    )
    return table([
        (
            title, "attribution", "looks most at", "weight", "position 0", "previous", "induction",
            "spread",
        ),
        *(
            (
                h.place, f"{h.attribution:+.3f}",
                f"{h.most} {quote(name(ids[h.most]))}", percent(h.weight), percent(h.sink),
                percent(h.previous), percent(h.induction), f"{h.entropy:.2f}",
            )
            for h in best
        ),
    ])  # fmt: skip


def _experts(look: Look, attribution: LogitAttribution) -> list[str]:
    rows = [
        (
            f"L{layer}",
            *(f"{i} {percent(share)} {attribution.experts[layer][i]:+.3f}" for i, share in pairs),
        )
        for layer, (ids, shares) in look.experts.items()
        for pairs in [list(zip(ids.tolist(), shares.tolist(), strict=True))]
    ]
    return ["", "the experts that were chosen: share, attribution", *table(rows)] if rows else []


def _lens(lens: Lens, attribution: LogitAttribution, name: Name, spark: Spark) -> list[str]:
    layer_heads = {
        row.layer: attribution.heads_of(row.layer) for row in lens.rows(name) if row.layer >= 0
    }
    largest = (
        max((float(np.abs(values).max(initial=0)) for values in layer_heads.values()), default=0)
        or 1.0
    )
    rows = [("layer", "likeliest", "", "rank", "drawn", "heads")]
    for row in lens.rows(name):
        values = layer_heads[row.layer].tolist() if row.layer >= 0 else []
        bars = spark(value / largest if value > 0 else None for value in values)
        rows.append((
            "before" if row.layer < 0 else f"{row.layer:5d}", quote(row.token),
            percent(row.probability), f"{row.rank:d}",
            "" if row.drawn_token is None else quote(row.drawn_token), bars,
        ))  # fmt: skip
    return table(rows)


def _describe_settling(look: Look, lens: Lens, token: str) -> str:
    sentence = (
        f"after the last layer {token} is not the likeliest"
        if lens.settled is None
        else f"{token} stays the likeliest {_first_layer(look, lens.settled)}"
    )
    if lens.draw_settled is None:
        return sentence + "; the draw of this run cannot be repeated here."
    first = _first_layer(look, lens.draw_settled)
    return f"{sentence}; with the same luck the draw is the same {first}."


def _first_layer(look: Look, row: int) -> str:
    return "from before the first layer on" if row == 0 else f"from {look.layer_name(row - 1)} on"


# -- layers with a recurrent state -----------------------------------------------------------------


_MOST_TOKENS = 16  # lines in the table of a head's tokens
WEIGHTS_ARE = (
    "A weight is exact: a head's output is the sum of all tokens' values, each times its weight. "
    "It has a sign, and it is no effect."
)


def describe_states(look: Look, attribution: LogitAttribution, name: Name, limit: int) -> list[str]:
    """Describe the heads with a recurrent state whose attribution is largest; [] without any."""
    if look.has_states and not look.has_state_heads:
        return ["", "What layers with a state take of each token is shown for 512 tokens at most."]
    state_figures = sorted(state_heads(look, attribution), key=lambda head: -abs(head.attribution))
    if not state_figures:
        return []
    title = "the heads with a state that have the largest attribution"
    return ["", *_state_heads(title, state_figures[:limit], look.token_ids, name), WEIGHTS_ARE]


def describe_state_layer(
    look: Look, attribution: LogitAttribution, layer: int, name: Name
) -> list[str]:
    """Describe all heads of one layer with a recurrent state."""
    layer_heads = [head for head in state_heads(look, attribution) if head.layer == layer]
    return [*_state_heads("head", layer_heads, look.token_ids, name), WEIGHTS_ARE]


def describe_state_head(
    look: Look, attribution: LogitAttribution, place: tuple[int, int], name: Name
) -> list[str]:
    """Describe the tokens with the largest norm of weight · value in one head."""
    state, layer = look.states[place[0]], place[0]
    head = check_int("--head", place[1], 0, len(state.weights) - 1)
    attributions = attribution.state_layers[layer]
    lengths, values = state.lengths[head], attributions.positions[head]
    order = np.argsort(-lengths, kind="stable")[:_MOST_TOKENS]
    share = lengths / max(float(lengths.sum()), 1e-30)
    rows = [
        (
            f"{i:8d}", quote(name(look.token_ids[i])), f"{state.weights[head, i]:+.4f}",
            percent(share[i]), f"{values[i]:+.4f}",
        )
        for i in order.tolist()
    ]  # fmt: skip
    left = len(lengths) - len(order)
    rest = float(values.sum() - values[order].sum())
    more = f"the other {left}: {percent(1 - share[order].sum())}, attribution {rest:+.4f}"
    return [
        f"L{layer}.H{head}: attribution {attributions.heads[head]:+.3f}; the tokens it takes "
        "most of",
        "",
        *table([("position", "token", "weight", "share of lengths", "attribution"), *rows]),
        *([more] if left else []),
        WEIGHTS_ARE,
    ]


def has_states(look: Look, layer: int) -> bool:
    """Whether the layer has heads with a recurrent state and the text has at most 512 tokens."""
    return look.has_state_heads and layer in look.states


def check_state_layer(look: Look, layer: int) -> None:
    """Raise InputError where the layer has no heads with a recurrent state."""
    if layer not in look.states:
        layers = ", ".join(map(str, sorted({*look.attending, *look.states})))
        raise InputError(f"--layer: layers with heads are {layers}, not {layer}")


def _state_heads(
    title: str, all_heads: Iterable[StateHeadFigures], ids: list[int], name: Name
) -> list[str]:
    rows = [
        (
            f"L{h.layer}.H{h.head}", f"{h.attribution:+.3f}",
            f"{h.most} {quote(name(ids[h.most]))}", f"{h.weight:+.4f}", percent(h.near),
        )
        for h in all_heads
    ]  # fmt: skip
    head = (title, "attribution", "takes most of", "its weight", f"of the last {NEAR} tokens")
    return table([head, *rows])
