"""A look as data: figures for JSON and terminals, arrays for a file, and arrays that pages draw.

Names of tokens are raw: escape them where they are shown. A page gets one small safetensors file:
each weight as its square root in a byte, other figures as float32.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway._version import __version__
from cutaway.features.inside.layers import ValueWeights
from cutaway.features.inside.lens import Lens, Name
from cutaway.features.inside.logit_attribution import LogitAttribution
from cutaway.features.inside.look import Look
from cutaway.files.weights.safetensors import parts

NEAR = 16
"""How many of the last tokens count for ``StateHeadFigures.near``."""


@dataclass(frozen=True, slots=True)
class PositionFigures:
    """A position, the mean attention weight of all heads on it, and the sum of attributions."""

    position: int
    token_id: int
    token: str
    weight: float
    attribution: float


@dataclass(frozen=True, slots=True)
class HeadFigures:
    """One attention head: its attribution, and its weights on some positions.

    sink, previous   weight on position 0, and on the position before the row's own
    same, induction  weights on earlier occurrences of the row's token, and on the tokens after them
    entropy          the entropy of the head's weights, as a share of the largest possible entropy
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
        """The head's name as the place of an intervention: "L9.H3"."""
        return f"L{self.layer}.H{self.head}"


@dataclass(frozen=True, slots=True)
class StateHeadFigures:
    """One head with a recurrent state: its attribution, and which values its output consists of.

    most, weight  the position with the largest norm of weight · value, and that weight
    near          the last 16 tokens' share of the sum of these norms
    """

    layer: int
    head: int
    attribution: float
    most: int
    weight: float
    near: float


@dataclass(frozen=True, slots=True)
class Near:
    """A token, and the cosine between its embedding and that of another token."""

    token_id: int
    token: str
    cosine: float


def places(look: Look, attribution: LogitAttribution, name: Name) -> list[PositionFigures]:
    """Return figures of all positions, in order."""
    weight, by_position = look.mean_weights, attribution.by_position
    return [
        PositionFigures(i, token, name(token), float(weight[i]), float(by_position[i]))
        for i, token in enumerate(look.token_ids)
    ]


def heads(look: Look, attribution: LogitAttribution) -> list[HeadFigures]:
    """Return figures of all heads that attend, layer by layer."""
    return [
        _head(look, attribution, layer, head)
        for layer in look.attending
        for head in range(attribution.heads.shape[1])
    ]


def state_heads(look: Look, attribution: LogitAttribution) -> list[StateHeadFigures]:
    """Return figures of all heads with a recurrent state; [] for more than 512 tokens."""
    figures = []
    for layer, state in look.states.items() if look.has_state_heads else ():
        lengths, attributions = state.lengths, attribution.state_layers[layer].heads
        whole = np.maximum(lengths.sum(axis=1), 1e-30)
        near, strongest = lengths[:, -NEAR:].sum(axis=1) / whole, lengths.argmax(axis=1)
        for i, at in enumerate(strongest.tolist()):
            weight = float(state.weights[i, at])
            figures.append(
                StateHeadFigures(layer, i, float(attributions[i]), at, weight, float(near[i]))
            )
    return figures


def _head(look: Look, attribution: LogitAttribution, layer: int, head: int) -> HeadFigures:
    weight, first = look.weights[layer, head], look.first_seen[layer]
    read = weight[first:]
    positive, strongest = read[read > 0], int(weight.argmax())
    entropy = (
        float(-(positive * np.log(positive)).sum() / np.log(len(read))) if len(read) > 1 else 0.0
    )
    return HeadFigures(
        layer, head, float(attribution.heads[layer, head]), float(weight[0]),
        float(weight[-2]) if len(read) > 1 else 0.0,
        *_repeats(weight, look.token_ids), entropy, strongest, float(weight[strongest]),
    )  # fmt: skip


def _repeats(weight: NDArray[np.float64], ids: Sequence[int]) -> tuple[float, float]:
    """Sum the weights on earlier occurrences of the last token, and on the tokens after them.

    Heads with much weight on the tokens after them are induction heads (arXiv 2209.11895).
    """
    earlier = np.flatnonzero(np.array(ids[:-1]) == ids[-1])
    followers = earlier[earlier + 1 < len(ids) - 1] + 1
    return float(weight[earlier].sum()), float(weight[followers].sum())


def nearest_tokens(look: Look, name: Name) -> list[Near]:
    """Return the tokens whose embeddings are nearest to that of the row's own token."""
    nearest = look.nearest()
    pairs = zip(nearest.ids.tolist(), nearest.cosine.tolist(), strict=True)
    return [Near(i, name(i), cosine) for i, cosine in pairs]


def to_dict(
    look: Look, attribution: LogitAttribution, lens: Lens | None, name: Name
) -> dict[str, Any]:
    """Ready for JSON. Weights of single heads are in the file of ``arrays``."""
    parts = {"parts": dict(attribution.parts), "rounded": attribution.rounded.tolist()}
    keys = ("token", "rival", "bias", "rounding", "total", "error")
    return {
        "step": look.step.index,
        "token_ids": look.token_ids,
        "row": f"{look.row_hash:016x}",
        "as_run": look.is_as_run,
        "logit_attribution": {key: getattr(attribution, key) for key in keys} | parts,
        "heads": [asdict(head) for head in heads(look, attribution)],
        "state_heads": [asdict(head) for head in state_heads(look, attribution)],
        "positions": [asdict(place) for place in places(look, attribution, name)],
        "first_seen": list(look.first_seen),
        "kv_bytes": look.kv_bytes,
        **({} if lens is None else _lens(lens, name)),
        "experts": {
            str(layer): {
                "ids": ids.tolist(),
                "shares": shares.tolist(),
                "attributions": [*attribution.experts[layer].values()],
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


def arrays(look: Look, attribution: LogitAttribution, lens: Lens) -> dict[str, NDArray[Any]]:
    """Return all arrays of a look by name, float32 and int32.

    Raises InputError as ``Look.writes`` does.
    """
    states = look.states if look.has_state_heads else {}
    arrays_by_name: Mapping[str, NDArray[Any]] = {
        "token_ids": np.array(look.token_ids, np.int32),
        "weights": look.weights,
        "writes": look.writes,
        "first_seen": np.array(look.first_seen, np.int32),
        "attribution.parts": np.array([*attribution.parts.values()]),
        "attribution.heads": attribution.heads,
        "attribution.positions": attribution.positions,
        "attribution.rounded": attribution.rounded,
        **{f"states.L{layer}": state.weights for layer, state in states.items()},
        **{
            f"attribution.states.{name}": layer_attribution.positions
            for name, layer_attribution in attribution.states.items()
        },
        "lens.ids": lens.ids.astype(np.int32),
        "lens.logprobs": lens.logprobs,
        "lens.rank": lens.rank.astype(np.int32),
        **({} if lens.drawn is None else {"lens.drawn": lens.drawn.astype(np.int32)}),
    }
    return {
        k: x.astype(np.float32) if x.dtype == np.float64 else x for k, x in arrays_by_name.items()
    }


def file_header(
    look: Look, attribution: LogitAttribution, trace_sha256: str, model: str
) -> dict[str, str]:
    """Make the header of a file of arrays."""
    return {
        "cutaway": __version__,
        "trace": trace_sha256,
        "model": model,
        "step": str(look.step.index),
        "row": f"{look.row_hash:016x}",
        "as_run": str(look.is_as_run).lower(),
        "token": str(attribution.token),
        "rival": str(attribution.rival),
        "parts": ",".join(attribution.parts),
        "rounding": repr(attribution.rounding),
        "bias": repr(attribution.bias),
        "total": repr(attribution.total),
    }


# -- the arrays of pages ---------------------------------------------------------------------------


SCALE = 255
"""A byte b of ``maps.weights`` is the weight (b / 255) ** 2, to the nearest b."""
TOP_POSITIONS = 8
"""How many positions of each head have exact figures: the largest by weight, and by attribution."""
FIGURES = tuple(name for name in HeadFigures.__annotations__ if name not in ("layer", "head"))
"""The names of the figures in the array ``heads``, in order."""

TERM_LEVELS = 16
"""A byte b of ``looked.terms`` is (b − 16) / 16 of the largest term there, to the nearest b."""
TINY = 1e-30

Arrays = dict[str, NDArray[Any]]
Floats = NDArray[np.float64]


def maps(look: Look) -> NDArray[np.uint8]:
    """All attention weights (layers, heads, positions), each as a scaled square root in a byte."""
    bytes_: NDArray[np.uint8] = np.rint(np.sqrt(look.weights) * SCALE).astype(np.uint8)
    return bytes_


def to_bytes(
    look: Look,
    attribution: LogitAttribution,
    lens: Lens | None,
    header: Mapping[str, str],
    *,
    with_maps: bool = True,
) -> bytes:
    """Return the bytes of a page's file. header: ``page_header``'s, with more fields."""
    return b"".join(parts(page_arrays(look, attribution, lens, with_maps=with_maps), header))


def page_arrays(
    look: Look, attribution: LogitAttribution, lens: Lens | None, *, with_maps: bool = True
) -> Arrays:
    """Return a page's arrays by name (docs/inside.md); without maps, only the largest weights."""
    figures = np.zeros((len(FIGURES), *attribution.heads.shape))
    for head in heads(look, attribution):
        head_figures = asdict(head)
        figures[:, head.layer, head.head] = [head_figures[name] for name in FIGURES]
    arrays_by_name: Arrays = {
        "places": np.stack([look.mean_weights, attribution.by_position]),
        "heads": figures,
        **_take_top("looked", look.weights, look.weights, attribution.positions),
        **_take_top(
            "attributed", np.abs(attribution.positions), look.weights, attribution.positions
        ),
        "parts": np.array([*attribution.parts.values()]),
        "rounded": attribution.rounded,
        "first_seen": np.array(look.first_seen, np.int32),
        "token_ids": np.array(look.token_ids, np.int32),
    }
    at = arrays_by_name["looked.positions"]
    arrays_by_name["looked.scores"] = np.take_along_axis(look.scores, at, -1)
    if look.has_state_heads and look.states:
        arrays_by_name["kept"] = np.stack([_kept_shares(state) for state in look.states.values()])
    if lens is not None:
        arrays_by_name |= {
            "lens.ids": lens.ids[:, 0].astype(np.int32),
            "lens.logprobs": lens.logprobs[:, 0],
            "lens.rank": lens.rank.astype(np.int32),
        }
        if lens.drawn is not None:
            arrays_by_name["lens.drawn"] = lens.drawn.astype(np.int32)
    if with_maps:  # last: an array after an odd number of bytes is not aligned
        arrays_by_name["looked.most"], terms = _terms(look, at)
        arrays_by_name |= {"looked.terms": terms, "maps.weights": maps(look)}
    return {
        k: x.astype(np.float32) if x.dtype == np.float64 else x for k, x in arrays_by_name.items()
    }


def page_header(
    look: Look,
    attribution: LogitAttribution,
    lens: Lens | None,
    name: Name,
    *,
    trace: str,
    model: str,
) -> dict[str, str]:
    """Make the header of a page's file: ``file_header``, figures, and names of tokens."""
    tokens = {attribution.token, attribution.rival}
    extra: dict[str, Any] = {"kv_bytes": look.kv_bytes, "sinks": int(look.sinks.sum())}
    if look.has_state_heads:
        extra["kept"] = [*look.states]
    if look.runs:
        extra["runs"] = look.runs
    if lens is not None:
        drawn_ids = set() if lens.drawn is None else {*lens.drawn.tolist()}
        tokens |= {*lens.ids[:, 0].tolist(), *drawn_ids} - {-1}
        extra |= {
            "lens_first": lens.first, "lens_settled": lens.settled,
            "draw_settled": lens.draw_settled,
        }  # fmt: skip
    extra["experts"] = {
        layer: [
            [i, share, attribution.experts[layer][i]]
            for i, share in zip(ids.tolist(), shares.tolist(), strict=True)
        ]
        for layer, (ids, shares) in look.experts.items()
    }
    extra["names"] = {token: name(token) for token in sorted(tokens)}
    figures = {key: json.dumps(value, ensure_ascii=False) for key, value in extra.items()}
    return file_header(look, attribution, trace, model) | figures


def _terms(look: Look, at: NDArray[np.int32]) -> tuple[Floats, NDArray[np.uint8]]:
    """Return the terms of q·k at each head's positions ``at``: a scale and bytes.

    The bytes are (layers, heads, k, head_dim), the scale is (layers, heads, k). Terms of positions
    that a layer does not read are 0.
    """
    by_layer = {
        layer: look.score_terms(layer, np.maximum(at[layer], look.first_seen[layer]))
        for layer in look.attending
    }
    wide = max((x.shape[-1] for x in by_layer.values()), default=0)
    terms = np.zeros((*at.shape, wide))
    for layer, x in by_layer.items():
        read = at[layer, : len(x), :, None] >= look.first_seen[layer]
        terms[layer, : len(x), :, : x.shape[-1]] = np.where(read, x, 0.0)
    largest = np.abs(terms).max(axis=-1, initial=0.0)
    shares = terms / np.maximum(largest, TINY)[..., None]
    return largest, (np.rint(shares * TERM_LEVELS) + TERM_LEVELS).astype(np.uint8)


def _kept_shares(state: ValueWeights) -> Floats:
    """Return each token's share of what a layer's heads read from their states: (tokens,)."""
    lengths: Floats = state.lengths.sum(axis=0)
    shares: Floats = lengths / max(float(lengths.sum()), TINY)
    return shares


def _take_top(
    name: str, order: NDArray[np.float64], weights: NDArray[np.float64], values: NDArray[np.float64]
) -> Mapping[str, NDArray[Any]]:
    """Take the ``TOP_POSITIONS`` positions of each head that are largest by ``order``.

    Returns the positions, their weights and their values. Each array is (layers, heads,
    TOP_POSITIONS), or fewer in a shorter text.
    """
    at = np.argsort(-order, axis=-1, kind="stable")[..., :TOP_POSITIONS]
    return {
        f"{name}.positions": at.astype(np.int32),
        f"{name}.weights": np.take_along_axis(weights, at, -1),
        f"{name}.attributions": np.take_along_axis(values, at, -1),
    }
