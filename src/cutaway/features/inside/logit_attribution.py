"""Direct logit attribution: what parts, heads and positions add to the difference of two logits.

A logit is a sum over the parts that write to the residual stream, and each part is a sum over
heads, positions or experts; see ``Decomposition``. Each sum is checked against the run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.model.ops.attention import Attend
from cutaway.compute.model.ops.mixture import Experts
from cutaway.features.inside.decomposition import (
    NEAR,
    Decomposition,
    Direction,
    LayerAttribution,
    check_sum,
)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LogitAttribution:
    """One step's logit of ``token`` minus that of ``rival``, before logit scale and cap, as a sum.

    parts      by name, in order: "embedding", "L0.attn", "L0.mlp", …; then "L9.intervention", which
               an intervention added to the stream after a layer
    heads      (layers, heads): what each attention head adds; 0 in a layer without attention.
               ``rounded`` and a bias are the rest of the layer's part
    positions  (layers, heads, positions): what each attention head adds from each position
    states     what heads with a recurrent state add, by part: "L0.delta_net", … A short
               convolution counts as one head. Empty for a text of more than 512 tokens
    experts    by layer: what each expert that computed the row adds, by the expert's number
    rounded    (layers,): the effect of rounding the outputs of the attention's heads to 8 bits
    bias       what the biases of the last norm and of the head add, the same at every step
    rounding   the effect of rounding the head's input to 8 bits; 0 where it is not rounded
    total      the difference of the two logits in the run
    error      ``total`` minus the sum; an error larger than float32's raises CutawayError
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
        """The sum of attributions over all heads, recurrent or not: (positions,)."""
        return self._sum_heads(lambda x: x)

    @property
    def size_by_position(self) -> Floats:
        """The sum of absolute attributions over all heads, recurrent or not: (positions,)."""
        return self._sum_heads(np.abs)

    @property
    def state_layers(self) -> dict[int, LayerAttribution]:
        """The ``states`` of layers with heads, by layer: all but those of convolutions."""
        with_heads = {
            name: state for name, state in self.states.items() if not name.endswith(".conv")
        }
        return {int(name[1:].partition(".")[0]): state for name, state in with_heads.items()}

    def heads_of(self, layer: int) -> Floats:
        """Attributions of a layer's heads: those of attention, else those with a state."""
        state = self.state_layers.get(layer)
        attends = bool(self.heads[layer].any())
        return self.heads[layer] if attends or state is None else state.heads

    def _sum_heads(self, measure: Callable[[Floats], Floats]) -> Floats:
        sums: Floats = measure(self.positions).sum(axis=(0, 1))
        for state in self.states.values():
            sums = sums + measure(state.positions).sum(axis=0)
        return sums


def logit_attribution(seen: Decomposition, pair: tuple[int, int]) -> LogitAttribution:
    """Attribute the first token's logit minus the second's; CutawayError where a sum is wrong."""
    seen.add_up()
    stream, size = seen.find_direction(pair)
    parts = dict.fromkeys((part.name for part in seen.anatomy.parts), 0.0)
    attending: dict[int, LayerAttribution] = {}
    states: dict[str, LayerAttribution] = {}
    experts: dict[int, Mapping[int, float]] = {}
    for part in seen.anatomy.parts:
        here, output = Direction(stream.along * seen.reach(part)), seen.output(part)
        parts[part.name] += float(here.along @ output)
        size += float(np.abs(here.along * output).sum())
        if part.path and (heads := seen.heads(here, part)) is not None:
            if isinstance(part.mixer, Attend):
                attending[part.mixer.layer] = heads
            else:
                states[part.name] = heads
        if isinstance(part.op, Experts) and part.layer is not None:
            experts[part.layer] = seen.experts(here, part, part.op)
    for place, vector in seen.put_in.items():
        parts[place] = float(stream.along @ vector)
        size += float(np.abs(stream.along * vector).sum())
    raw = seen[seen.anatomy.head.out.name]
    total = float(raw[pair[0]] - raw[pair[1]])
    computed = sum(parts.values()) + stream.constant + stream.rounding
    check_sum(computed, total, NEAR * size, "the parts")
    rounded = np.zeros(seen.layers)
    for layer, heads in attending.items():
        rounded[layer] = heads.rounded
    by_head = seen.side_by_side(
        {at: layer_heads.heads[:, None] for at, layer_heads in attending.items()}
    )
    return LogitAttribution(
        *pair, parts, by_head[:, :, -1],
        seen.side_by_side({at: layer_heads.positions for at, layer_heads in attending.items()}),
        states, experts, rounded, stream.constant, stream.rounding, total, total - computed,
    )  # fmt: skip
