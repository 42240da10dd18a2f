"""How a canvas was revealed: the field ``decoder`` in the head of its trace."""

from dataclasses import dataclass
from typing import Any

from cutaway.engine.canvas import Rule, read_rule
from cutaway.errors import InputError
from cutaway.trace import check

KIND = "denoise"


@dataclass(frozen=True, slots=True)
class DecoderRecord:
    """The decoder of a canvas; a text that was written from left to right has none.

    attention   what a token attends to: "causal", "bidirectional", or up to the end of its block,
                as the size of a block
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
        """The field of the head."""
        fields = {name: getattr(self, name) for name in CHECKS}
        return {"kind": KIND} | fields | {"rule": self.rule.to_json()}


def decoder(value: Any) -> DecoderRecord:
    """The inverse of ``to_json``; ValueError where the value is no such field."""
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
