"""How a canvas was written, as the head of its trace has it.

Refuses to know how a rule is applied, and what came of it.
"""

from dataclasses import dataclass
from typing import Any

from cutaway.engine.canvas import Rule, read_rule
from cutaway.errors import InputError
from cutaway.trace import check

KIND = "denoise"
_AS_RECORDED: dict[str | int, str] = {
    "causal": "past",
    "bidirectional": "all",
}  # of formats up to 4


@dataclass(frozen=True, slots=True)
class DecoderRecord:
    """The decoder of a canvas; a text that was written from left to right has none.

    rule       how it was revealed
    attention  of the model, see ``Limits``: "causal", "bidirectional" or a block's tokens
    shift      whether the row of a token says what stands behind it
    mask_id    what a masked cell was computed as; None where nothing ahead is seen
    behind     tokens behind the canvas
    """

    rule: Rule
    attention: str | int
    shift: bool
    mask_id: int | None
    behind: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """As in the head."""
        return {
            "kind": KIND,
            "rule": self.rule.to_json(),
            "sight": _AS_RECORDED.get(self.attention, self.attention),
            "shift": self.shift,
            "mask_id": self.mask_id,
            "behind": self.behind,
        }


def decoder(value: Any) -> DecoderRecord:
    """The inverse of ``to_json``; ValueError where it is none."""
    known = check.fields(value, {"kind": check.one_of(KIND), **CHECKS})
    return DecoderRecord(**dict(zip(_OWN, (known[name] for name in CHECKS), strict=True)))


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
    if type(value) is int:
        return check.integer(value)
    recorded: str = check.one_of(*_AS_RECORDED.values())(value)
    return next(name for name, said in _AS_RECORDED.items() if said == recorded)


_OWN = check.of(DecoderRecord, rule=_rule, attention=_attention)
CHECKS = {"sight" if name == "attention" else name: one for name, one in _OWN.items()}
