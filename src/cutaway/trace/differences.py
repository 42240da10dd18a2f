"""Two traces side by side: where they part, whether they meet again, what each text cost.

Knows the files alone: what one text costs under the other's model is for ``cutaway.rerun``.
Refuses to know terminals.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from difflib import SequenceMatcher
from typing import Any

from cutaway.trace.figures import bits, probability
from cutaway.trace.read import Trace
from cutaway.trace.record import Head, Step

MEETING = 8
"""Equal tokens in a row that make a meeting: two texts on one subject share shorter runs."""


@dataclass(frozen=True, slots=True)
class Change:
    """A field of the heads, or a setting, that is not the same; None where it is missing."""

    name: str
    a: Any
    b: Any


@dataclass(frozen=True, slots=True)
class Way:
    """The token with which one text goes on, and its probability under the models' own logits
    of both runs; None where it is not on record there."""

    token_id: int
    token: str
    under_a: float | None
    under_b: float | None


@dataclass(frozen=True, slots=True)
class Parting:
    """The first step whose tokens differ. A way is None where that text had ended."""

    index: int
    a: Way | None
    b: Way | None


@dataclass(frozen=True, slots=True)
class Meeting:
    """``length`` equal tokens, which begin at these steps of the two texts."""

    a: int
    b: int
    length: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What a stretch of text cost its own model: tokens, and bits in total."""

    tokens: int
    bits: float

    @property
    def per_token(self) -> float | None:
        """Bits; None where there are no tokens."""
        return self.bits / self.tokens if self.tokens else None


@dataclass(frozen=True, slots=True)
class Difference:
    """What two traces have in common, and what not.

    changes            the fields and settings that differ, by name
    same_prompt        whether the prompts are equal, token by token
    is_fork            whether the second says that it goes back to the first
    common             how many tokens are equal from the beginning
    logits_differ_at   the first step, of those up to the parting, whose logits are not equal bit
                       for bit; None where all are
    parting            None where the texts are equal
    meetings           stretches of ``MEETING`` tokens or more that are equal after the parting,
                       in the order of both texts
    a, b               the cost of each whole text
    a_after, b_after   of each from the parting on
    """

    changes: tuple[Change, ...]
    same_prompt: bool
    is_fork: bool
    common: int
    logits_differ_at: int | None
    parting: Parting | None
    meetings: tuple[Meeting, ...]
    a: Cost
    b: Cost
    a_after: Cost
    b_after: Cost


def diff(a: Trace, b: Trace) -> Difference:
    """Compare two traces, step by step."""
    common = _common(a.output_token_ids, b.output_token_ids)
    return Difference(
        changes=tuple(_changes(a.head, b.head)),
        same_prompt=a.head.prompt_token_ids == b.head.prompt_token_ids,
        is_fork=b.head.parent is not None and b.head.parent.trace == a.sha256,
        common=common,
        logits_differ_at=_logits_differ_at(a, b, common),
        parting=_parting(a, b, common),
        meetings=tuple(_meetings(a.output_token_ids, b.output_token_ids, common)),
        a=_cost(a.steps),
        b=_cost(b.steps),
        a_after=_cost(a.steps[common:]),
        b_after=_cost(b.steps[common:]),
    )


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    shorter = min(len(a), len(b))
    return next((i for i in range(shorter) if a[i] != b[i]), shorter)


def _changes(a: Head, b: Head) -> Iterator[Change]:
    left, right = _flat(a), _flat(b)
    for name in left | right:
        if left.get(name) != right.get(name):
            yield Change(name, left.get(name), right.get(name))


def _flat(head: Head) -> dict[str, Any]:
    """The fields and the settings by name: where both tell one thing, they tell the same."""
    own = {f.name: getattr(head, f.name) for f in fields(head) if f.name != "params"}
    return own | {name: value for name, value in head.params.items() if name not in own}


def _logits_differ_at(a: Trace, b: Trace, common: int) -> int | None:
    """The step at which they part still follows equal tokens."""
    pairs = zip(a.steps[: common + 1], b.steps[: common + 1], strict=False)
    return next((x.index for x, y in pairs if x.row != y.row), None)


def _parting(a: Trace, b: Trace, index: int) -> Parting | None:
    steps = [t.steps[index] if index < len(t.steps) else None for t in (a, b)]
    if steps == [None, None]:
        return None
    ways = [_way(t, step, *steps) if step else None for t, step in zip((a, b), steps, strict=True)]
    return Parting(index, *ways)


def _way(trace: Trace, step: Step, in_a: Step | None, in_b: Step | None) -> Way:
    token_id = step.token_id
    return Way(token_id, trace.name_of(token_id), _share(in_a, token_id), _share(in_b, token_id))


def _share(step: Step | None, token_id: int) -> float | None:
    found = [c for c in step.candidates if c.id == token_id] if step else []
    return probability(found[0].logit - step.log_sum_exp) if step and found else None


def _meetings(a: Sequence[int], b: Sequence[int], start: int) -> Iterator[Meeting]:
    matcher = SequenceMatcher(None, a[start:], b[start:], autojunk=False)
    for block in matcher.get_matching_blocks():
        if block.size >= MEETING:
            yield Meeting(start + block.a, start + block.b, block.size)


def _cost(steps: Sequence[Step]) -> Cost:
    return Cost(len(steps), sum(bits(step.logprob) for step in steps))
