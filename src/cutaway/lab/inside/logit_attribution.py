"""Direct logit attribution: what part, head and position add to the difference of two logits.

The sums are checked against the logits that ran.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cutaway.lab.inside.decomposition import (
    NEAR,
    Decomposition,
    Direction,
    Floats,
    LayerAttribution,
    near,
)


@dataclass(frozen=True)
class LogitAttribution:
    """Of one step, toward ``token`` and away from ``rival``. All in logits, before scale and cap.

    parts      by name, in order: "embedding", "L0.attn", "L0.mlp", …; then "L9.intervention", what
               an intervention put into the stream after a layer
    heads      (layers, heads), of each layer's attention; ``rounded`` and a bias are the rest of it
    positions  (layers, heads, positions), of each head
    experts    by layer that has some: of each that computed the row, by its number
    rounded    (layers,): what rounding to 8 bits did to each attention before it was written
    bias       of the last norm and the head: the same at every step
    rounding   of the stream before the head, to 8 bits; 0 where it is not rounded
    total      the difference of the two logits, as the run had it
    error      by how much all these miss it; larger than float32's own is a CutawayError
    """

    token: int
    rival: int
    parts: Mapping[str, float]
    heads: Floats
    positions: Floats
    experts: Mapping[int, Mapping[int, float]]
    rounded: Floats
    bias: float
    rounding: float
    total: float
    error: float


def logit_attribution(seen: Decomposition, pair: tuple[int, int]) -> LogitAttribution:
    """Of a row, toward the first of two tokens; CutawayError where the sums are not the run's."""
    seen.add_up()
    stream, size = seen.after_stream(pair)
    parts = dict.fromkeys((part.name for part in seen.anatomy.parts), 0.0)
    layers: dict[int, LayerAttribution] = {}
    experts: dict[int, Mapping[int, float]] = {}
    for part in seen.anatomy.parts:
        here, given = Direction(stream.along * seen.reach(part)), seen.given(part)
        parts[part.name] += float(here.along @ given)
        size += float(np.abs(here.along * given).sum())
        if part.path:
            layers[part.path[-1].attrs["layer"]] = seen.attention(here, part)
        if part.op.kind == "experts" and part.layer is not None:
            experts[part.layer] = seen.experts(here, part)
    for place, vector in seen.put_in.items():
        parts[place] = float(stream.along @ vector)
        size += float(np.abs(stream.along * vector).sum())
    raw = seen[seen.anatomy.head.out.name]
    total = float(raw[pair[0]] - raw[pair[1]])
    found = sum(parts.values()) + stream.constant + stream.rounding
    near(found, total, NEAR * size, "the parts")
    each = [layers[layer] for layer in sorted(layers)]
    return LogitAttribution(
        *pair, parts,
        np.array([layer.heads for layer in each]),
        seen.side_by_side(layer.positions for layer in each),
        experts,
        np.array([layer.rounded for layer in each]),
        stream.constant, stream.rounding, total, total - found,
    )  # fmt: skip
