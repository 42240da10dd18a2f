"""Direct logit attribution: what part, head and position add to the difference of two logits.

The sums are checked against the logits that ran.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from cutaway.features.inside.decomposition import (
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
    heads      (layers, heads), of each layer's attention, 0 where it has none; ``rounded`` and a
               bias are the rest of it
    positions  (layers, heads, positions), of each head
    states     of heads with a recurrent state, by their part: "L0.delta_net", … A short convolution
               is one head. Empty for a text of more than 512 tokens
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
    states: Mapping[str, LayerAttribution]
    experts: Mapping[int, Mapping[int, float]]
    rounded: Floats
    bias: float
    rounding: float
    total: float
    error: float

    @property
    def by_position(self) -> Floats:
        """The sum over all heads: (positions,)."""
        return self._over_heads(lambda x: x)

    @property
    def size_by_position(self) -> Floats:
        """The sum over all heads of the absolute attributions: (positions,)."""
        return self._over_heads(np.abs)

    @property
    def state_layers(self) -> dict[int, LayerAttribution]:
        """Of ``states`` those of delta nets and Mamba 2, by layer."""
        named = {name: one for name, one in self.states.items() if not name.endswith(".conv")}
        return {int(name[1:].partition(".")[0]): one for name, one in named.items()}

    def heads_of(self, layer: int) -> Floats:
        """Of all heads of a layer: of its attention, else of its delta net or Mamba 2."""
        state = self.state_layers.get(layer)
        attends = bool(self.heads[layer].any())
        return self.heads[layer] if attends or state is None else state.heads

    def _over_heads(self, made: Callable[[Floats], Floats]) -> Floats:
        found: Floats = made(self.positions).sum(axis=(0, 1))
        for state in self.states.values():
            found = found + made(state.positions).sum(axis=0)
        return found


def logit_attribution(seen: Decomposition, pair: tuple[int, int]) -> LogitAttribution:
    """Of a row, toward the first of two tokens; CutawayError where the sums are not the run's."""
    seen.add_up()
    stream, size = seen.after_stream(pair)
    parts = dict.fromkeys((part.name for part in seen.anatomy.parts), 0.0)
    attending: dict[int, LayerAttribution] = {}
    states: dict[str, LayerAttribution] = {}
    experts: dict[int, Mapping[int, float]] = {}
    for part in seen.anatomy.parts:
        here, given = Direction(stream.along * seen.reach(part)), seen.given(part)
        parts[part.name] += float(here.along @ given)
        size += float(np.abs(here.along * given).sum())
        if part.path and (heads := seen.heads(here, part)) is not None:
            if part.path[-1].kind == "attend":
                attending[part.path[-1].attrs["layer"]] = heads
            else:
                states[part.name] = heads
        if part.op.kind == "experts" and part.layer is not None:
            experts[part.layer] = seen.experts(here, part)
    for place, vector in seen.put_in.items():
        parts[place] = float(stream.along @ vector)
        size += float(np.abs(stream.along * vector).sum())
    raw = seen[seen.anatomy.head.out.name]
    total = float(raw[pair[0]] - raw[pair[1]])
    found = sum(parts.values()) + stream.constant + stream.rounding
    near(found, total, NEAR * size, "the parts")
    rounded = np.zeros(seen.layers)
    for layer, heads in attending.items():
        rounded[layer] = heads.rounded
    by_head = seen.side_by_side({at: one.heads[:, None] for at, one in attending.items()})
    return LogitAttribution(
        *pair, parts, by_head[:, :, -1],
        seen.side_by_side({layer: one.positions for layer, one in attending.items()}),
        states, experts, rounded, stream.constant, stream.rounding, total, total - found,
    )  # fmt: skip
