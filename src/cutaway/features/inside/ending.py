"""Logit attribution of the end token, where a text ended with it or came closest to ending."""

from collections.abc import Callable
from dataclasses import dataclass

from cutaway.api.llm import LLM
from cutaway.features.inside.look import inside
from cutaway.trace import Trace, why
from cutaway.trace.figures import phrase

_MOST = 4  # parts that are named


@dataclass(frozen=True, slots=True)
class EndAttribution:
    """Toward the end token and away from another, in logits.

    step   at which it was drawn, or at which the text came closest to ending
    other  the likeliest other token, or the one that was drawn instead
    total  the difference of both logits, the sum of ``parts``, which include biases and rounding
    proof  of the row
    """

    step: int
    token: int
    other: int
    total: float
    parts: dict[str, float]
    proof: str

    def sentence(self, name: Callable[[int], str]) -> str:
        """For a person; names of tokens are raw."""
        named = sorted(self.parts.items(), key=lambda part: -abs(part[1]))[:_MOST]
        rest = sum(self.parts.values()) - sum(value for _, value in named)
        return phrase(
            "logit above" if self.total > 0 else "logit below",
            step=self.step, token=f"'{name(self.token)}'", other=f"'{name(self.other)}'",
            total=f"{abs(self.total):.3f}",
            parts=", ".join(f"{part} {value:+.3f}" for part, value in named),
            count=len(self.parts) - len(named), rest=f"{rest:+.3f}", proof=self.proof,
        )  # fmt: skip


def end_attribution(llm: LLM, trace: Trace) -> EndAttribution | None:
    """Of the last step if it drew an end token, else of the step that came closest to ending.

    None where no end token is on record. Raises as ``inside`` does.
    """
    if not trace.steps:
        return None
    last, ends = trace.steps[-1], {*trace.head.end_ids}
    if last.token_id in ends:
        index, end = last.index, None
    elif found := why(trace, 1).closest:
        index, end = found[0].index, found[0].token_id
    else:
        return None
    look = inside(llm, trace, index)
    made = look.logit_attribution(end)
    sign = 1 if end is None else -1
    token, other = (made.token, made.rival)[::sign]
    every = {**made.parts, "biases": made.bias, "rounding": made.rounding}
    parts = {name: sign * value for name, value in every.items() if value}
    return EndAttribution(index, token, other, sign * made.total, parts, look.proof())
