"""How a canvas was written, as the head of its trace has it."""

from dataclasses import dataclass
from typing import Any

from cutaway.engine.canvas import Rule, read_rule
from cutaway.errors import InputError
from cutaway.trace import check

KIND = "denoise"


@dataclass(frozen=True, slots=True)
class DecoderRecord:
    """The decoder of a canvas; a text that was written from left to right has none.

    rule        how it was revealed
    attention   what a token of the model sees: "causal", "bidirectional", or the size of the block
                to whose end it sees
    shift       whether the row of a token predicts the next one
    mask_id     what a masked cell was computed as; None where attention is causal
    suffix_ids  tokens after the canvas
    """

    rule: Rule
    attention: str | int
    shift: bool
    mask_id: int | None
    suffix_ids: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """As in the head."""
        return {
            "kind": KIND,
            "rule": self.rule.to_json(),
            "attention": self.attention,
            "shift": self.shift,
            "mask_id": self.mask_id,
            "suffix_ids": self.suffix_ids,
        }


def decoder(value: Any) -> DecoderRecord:
    """The inverse of ``to_json``; ValueError where it is none."""
    known = check.fields(value, {"kind": check.one_of(KIND), **CHECKS})
    return DecoderRecord(**{name: known[name] for name in CHECKS})


def _rule(value: Any) -> Rule:
    settings = check.table(check.anything)(value)
    try:
        rule = read_rule(settings)
    except InputError as error:
        raise ValueError(f"is no rule: {error}") from None
    if rule.to_json() != settings:
        raise ValueError("must say what differs from a plain rule, and no more")
    return rule


def _attention(value: Any) -> str | int:
    words = check.one_of("causal", "bidirectional")
    return check.integer(value) if type(value) is int else words(value)


CHECKS = check.of(DecoderRecord, rule=_rule, attention=_attention)
