"""A look as data: figures for JSON and terminals, arrays for a file, and those that pages draw.

Names of tokens are raw, to be escaped where they are shown. For pages, of a weight the square root
is stored, in a byte; all else in float32, in one small safetensors file.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway._version import __version__
from cutaway.features.inside.lens import Lens, Name
from cutaway.features.inside.logit_attribution import LogitAttribution
from cutaway.features.inside.look import Look
from cutaway.files.weights.safetensors import parts

NEAR = 16
"""Tokens before a step of which it is told how much a head with a state takes."""


@dataclass(frozen=True, slots=True)
class PositionFigures:
    """A position: the mean weight of all heads, and the sum of their attributions."""

    position: int
    token_id: int
    token: str
    weight: float
    attribution: float


@dataclass(frozen=True, slots=True)
class HeadFigures:
    """One head: its attribution, and the weights of what it attends to.

    sink, previous   of position 0, and of the position before the row's own
    same, induction  of earlier occurrences of the row's token, and of the tokens after them
    entropy          of its weights, as a share of the largest possible
    most, weight     the position with the most weight, and that weight
    """

    layer: int
    head: int
    attribution: float
    sink: float
    previous: float
    same: float
    induction: float
    entropy: float
    most: int
    weight: float

    @property
    def place(self) -> str:
        """Its name as the place of an intervention: "L9.H3"."""
        return f"L{self.layer}.H{self.head}"


@dataclass(frozen=True, slots=True)
class StateHeadFigures:
    """One head with a recurrent state: its attribution, and what it takes of the text.

    most, weight  the position of whose value it takes most, by length; and the weight of that
    near          the share, by length, of the last 16 tokens
    """

    layer: int
    head: int
    attribution: float
    most: int
    weight: float
    near: float


@dataclass(frozen=True, slots=True)
class Near:
    """A token, and the cosine of its embedding with another's."""

    token_id: int
    token: str
    cosine: float


def places(look: Look, found: LogitAttribution, name: Name) -> list[PositionFigures]:
    """All positions, in order."""
    weight, attribution = look.mean_weights, found.by_position
    return [
        PositionFigures(i, token, name(token), float(weight[i]), float(attribution[i]))
        for i, token in enumerate(look.token_ids)
    ]


def heads(look: Look, found: LogitAttribution) -> list[HeadFigures]:
    """All that attend, layer by layer."""
    return [
        _head(look, found, layer, head)
        for layer in look.attending
        for head in range(found.heads.shape[1])
    ]


def state_heads(look: Look, found: LogitAttribution) -> list[StateHeadFigures]:
    """All with a delta net or Mamba 2, layer by layer; none for a text that is too long."""
    made = []
    for layer, state in look.states.items() if look.has_state_heads else ():
        lengths, given = state.lengths, found.state_layers[layer].heads
        whole = np.maximum(lengths.sum(axis=1), 1e-30)
        near, most = lengths[:, -NEAR:].sum(axis=1) / whole, lengths.argmax(axis=1)
        for i, at in enumerate(most.tolist()):
            weight = float(state.weights[i, at])
            made.append(StateHeadFigures(layer, i, float(given[i]), at, weight, float(near[i])))
    return made


def _head(look: Look, found: LogitAttribution, layer: int, head: int) -> HeadFigures:
    weight, first = look.weights[layer, head], look.first_seen[layer]
    read = weight[first:]
    some, most = read[read > 0], int(weight.argmax())
    entropy = float(-(some * np.log(some)).sum() / np.log(len(read))) if len(read) > 1 else 0.0
    return HeadFigures(
        layer, head, float(found.heads[layer, head]), float(weight[0]),
        float(weight[-2]) if len(read) > 1 else 0.0,
        *_repeats(weight, look.token_ids), entropy, most, float(weight[most]),
    )  # fmt: skip


def _repeats(weight: NDArray[np.float64], ids: Sequence[int]) -> tuple[float, float]:
    """Weight of earlier places of the last token, and of what followed it (arXiv 2209.11895)."""
    earlier = np.flatnonzero(np.array(ids[:-1]) == ids[-1])
    followers = earlier[earlier + 1 < len(ids) - 1] + 1
    return float(weight[earlier].sum()), float(weight[followers].sum())


def near_to(look: Look, name: Name) -> list[Near]:
    """The nearest tokens to the one that the row read."""
    found = look.nearest()
    pairs = zip(found.ids.tolist(), found.cosine.tolist(), strict=True)
    return [Near(i, name(i), cosine) for i, cosine in pairs]


def to_dict(look: Look, found: LogitAttribution, lens: Lens | None, name: Name) -> dict[str, Any]:
    """Ready for JSON. Weights of single heads are in the file of ``arrays``."""
    parts = {"parts": dict(found.parts), "rounded": found.rounded.tolist()}
    one = ("token", "rival", "bias", "rounding", "total", "error")
    return {
        "step": look.step.index,
        "token_ids": look.token_ids,
        "row": f"{look.row_hash:016x}",
        "as_run": look.is_as_run,
        "logit_attribution": {key: getattr(found, key) for key in one} | parts,
        "heads": [asdict(head) for head in heads(look, found)],
        "state_heads": [asdict(head) for head in state_heads(look, found)],
        "positions": [asdict(place) for place in places(look, found, name)],
        "first_seen": list(look.first_seen),
        "kv_bytes": look.kv_bytes,
        **({} if lens is None else _lens(lens, name)),
        "experts": {
            str(layer): {
                "ids": ids.tolist(),
                "shares": shares.tolist(),
                "attributions": [*found.experts[layer].values()],
            }
            for layer, (ids, shares) in look.experts.items()
        },
    }


def _lens(lens: Lens, name: Name) -> dict[str, Any]:
    return {
        "lens": [asdict(row) for row in lens.rows(name)],
        "lens_first": lens.first,
        "lens_settled": lens.settled,
        "draw_settled": lens.draw_settled,
    }


def arrays(look: Look, found: LogitAttribution, lens: Lens) -> dict[str, NDArray[Any]]:
    """All figures of a look, as float32 and int32, by name."""
    states = look.states if look.has_state_heads else {}
    made: Mapping[str, NDArray[Any]] = {
        "token_ids": np.array(look.token_ids, np.int32),
        "weights": look.weights,
        "writes": look.writes,
        "first_seen": np.array(look.first_seen, np.int32),
        "attribution.parts": np.array([*found.parts.values()]),
        "attribution.heads": found.heads,
        "attribution.positions": found.positions,
        "attribution.rounded": found.rounded,
        **{f"states.L{layer}": state.weights for layer, state in states.items()},
        **{f"attribution.states.{name}": one.positions for name, one in found.states.items()},
        "lens.ids": lens.ids.astype(np.int32),
        "lens.logprobs": lens.logprobs,
        "lens.rank": lens.rank.astype(np.int32),
        **({} if lens.drawn is None else {"lens.drawn": lens.drawn.astype(np.int32)}),
    }
    return {k: x.astype(np.float32) if x.dtype == np.float64 else x for k, x in made.items()}


def described(look: Look, found: LogitAttribution, trace_sha256: str, model: str) -> dict[str, str]:
    """The header of a file of arrays."""
    return {
        "cutaway": __version__,
        "trace": trace_sha256,
        "model": model,
        "step": str(look.step.index),
        "row": f"{look.row_hash:016x}",
        "as_run": str(look.is_as_run).lower(),
        "token": str(found.token),
        "rival": str(found.rival),
        "parts": ",".join(found.parts),
        "rounding": repr(found.rounding),
        "bias": repr(found.bias),
        "total": repr(found.total),
    }


# -- the arrays of pages ---------------------------------------------------------------------------


SCALE = 255
"""A byte b of ``maps.weights`` is the weight (b / 255) ** 2, to the nearest b."""
MOST = 8
"""How many positions of a head have exact figures: the first by weight, and by attribution."""
FIGURES = tuple(name for name in HeadFigures.__annotations__ if name not in ("layer", "head"))
"""What ``heads`` holds, in this order."""

Arrays = dict[str, NDArray[Any]]


def maps(look: Look) -> NDArray[np.uint8]:
    """Every weight (layers, heads, positions), in a byte."""
    bytes_: NDArray[np.uint8] = np.rint(np.sqrt(look.weights) * SCALE).astype(np.uint8)
    return bytes_


def to_bytes(
    look: Look,
    found: LogitAttribution,
    lens: Lens | None,
    header: Mapping[str, str],
    *,
    with_maps: bool = True,
) -> bytes:
    """The whole file. header: that of ``about``, and more."""
    return b"".join(parts(page_arrays(look, found, lens, with_maps=with_maps), header))


def page_arrays(
    look: Look, found: LogitAttribution, lens: Lens | None, *, with_maps: bool = True
) -> Arrays:
    """Arrays of a step; ``docs/inside.md`` names them. Without maps only the largest weights."""
    figures = np.zeros((len(FIGURES), *found.heads.shape))
    for head in heads(look, found):
        one = asdict(head)
        figures[:, head.layer, head.head] = [one[name] for name in FIGURES]
    made: Arrays = {
        "places": np.stack([look.mean_weights, found.by_position]),
        "heads": figures,
        **_most("looked", look.weights, look.weights, found.positions),
        **_most("attributed", np.abs(found.positions), look.weights, found.positions),
        "parts": np.array([*found.parts.values()]),
        "rounded": found.rounded,
        "first_seen": np.array(look.first_seen, np.int32),
        "token_ids": np.array(look.token_ids, np.int32),
    }
    if lens is not None:
        made |= {
            "lens.ids": lens.ids[:, 0].astype(np.int32),
            "lens.logprobs": lens.logprobs[:, 0],
            "lens.rank": lens.rank.astype(np.int32),
        }
        if lens.drawn is not None:
            made["lens.drawn"] = lens.drawn.astype(np.int32)
    if with_maps:  # last: what follows an odd number of bytes is not aligned
        made["maps.weights"] = maps(look)
    return {k: x.astype(np.float32) if x.dtype == np.float64 else x for k, x in made.items()}


def about(
    look: Look, found: LogitAttribution, lens: Lens | None, name: Name, *, trace: str, model: str
) -> dict[str, str]:
    """The file's header: ``summary.described``, figures, and names of tokens."""
    tokens = {found.token, found.rival}
    extra: dict[str, Any] = {"kv_bytes": look.kv_bytes, "sinks": int(look.sinks.sum())}
    if lens is not None:
        drawn = set() if lens.drawn is None else {*lens.drawn.tolist()}
        tokens |= {*lens.ids[:, 0].tolist(), *drawn} - {-1}
        extra |= {
            "lens_first": lens.first, "lens_settled": lens.settled,
            "draw_settled": lens.draw_settled,
        }  # fmt: skip
    extra["experts"] = {
        layer: [
            [i, share, found.experts[layer][i]]
            for i, share in zip(ids.tolist(), shares.tolist(), strict=True)
        ]
        for layer, (ids, shares) in look.experts.items()
    }
    extra["names"] = {token: name(token) for token in sorted(tokens)}
    figures = {key: json.dumps(value, ensure_ascii=False) for key, value in extra.items()}
    return described(look, found, trace, model) | figures


def _most(
    name: str, order: NDArray[np.float64], weights: NDArray[np.float64], values: NDArray[np.float64]
) -> Mapping[str, NDArray[Any]]:
    """Each head's positions that have most, with weights and attributions: (layers, heads, n)."""
    at = np.argsort(-order, axis=-1, kind="stable")[..., :MOST]
    return {
        f"{name}.positions": at.astype(np.int32),
        f"{name}.weights": np.take_along_axis(weights, at, -1),
        f"{name}.attributions": np.take_along_axis(values, at, -1),
    }
