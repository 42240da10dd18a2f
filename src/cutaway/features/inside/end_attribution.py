"""Why a text ended or went on: the logit attribution of its end token, in a sentence."""

from collections.abc import Callable
from dataclasses import dataclass

from cutaway.api.llm import LLM
from cutaway.features.inside.look import inside
from cutaway.trace import Trace, why
from cutaway.trace.figures import phrase

_MAX_PARTS = 4  # that are listed


@dataclass(frozen=True, slots=True)
class EndAttribution:
    """The attribution of an end token's logit minus another token's.

    step   the step that drew the end token, or the step at which the text came closest to ending
    token  the end token
    other  the likeliest other token, or the token that was drawn instead of the end token
    total  the logit of ``token`` minus that of ``other``
    parts  attributions by name; they include biases and rounding, and add up to ``total``
    proof  the sentence of ``Look.proof``
    """

    step: int
    token: int
    other: int
    total: float
    parts: dict[str, float]
    proof: str

    def sentence(self, name: Callable[[int], str]) -> str:
        """Describe the attribution in a sentence; ``name`` gives a token's raw name."""
        largest = sorted(self.parts.items(), key=lambda part: -abs(part[1]))[:_MAX_PARTS]
        rest = sum(self.parts.values()) - sum(value for _, value in largest)
        return phrase(
            "logit above" if self.total > 0 else "logit below",
            step=self.step, token=f"'{name(self.token)}'", other=f"'{name(self.other)}'",
            total=f"{abs(self.total):.3f}",
            parts=", ".join(f"{part} {value:+.3f}" for part, value in largest),
            count=len(self.parts) - len(largest), rest=f"{rest:+.3f}", proof=self.proof,
        )  # fmt: skip


def end_attribution(llm: LLM, trace: Trace) -> EndAttribution | None:
    """Attribute the last step if it is an end token, else the step that came closest to ending.

    None where the trace records no end token. Raises as ``inside`` does.
    """
    if not trace.steps:
        return None
    last, ends = trace.steps[-1], {*trace.head.end_ids}
    if last.token_id in ends:
        index, end = last.index, None
    elif closest := why(trace, 1).closest:
        index, end = closest[0].index, closest[0].token_id
    else:
        return None
    look = inside(llm, trace, index)
    attribution = look.logit_attribution(end)
    sign = 1 if end is None else -1
    token, other = (attribution.token, attribution.rival)[::sign]
    all_parts = {**attribution.parts, "biases": attribution.bias, "rounding": attribution.rounding}
    parts = {name: sign * value for name, value in all_parts.items() if value}
    return EndAttribution(index, token, other, sign * attribution.total, parts, look.proof())
