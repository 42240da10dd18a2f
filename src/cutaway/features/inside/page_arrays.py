"""A look for pages: the arrays that they draw, in one small safetensors file.

Of a weight the square root is stored, in a byte; all else is as in ``summary``, in float32.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.features.inside.lens import Lens, Name
from cutaway.features.inside.logit_attribution import LogitAttribution
from cutaway.features.inside.look import Look
from cutaway.features.inside.summary import HeadFigures, described, heads
from cutaway.files.weights.safetensors import parts

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
