"""Pairs of texts drawn by BASE and by a changed model with the same luck: do they part, and where.

A token is argmax(logit + noise of (seed, position, token)), so that two models that agree draw the
same text; where a pair parts, the change moved a draw. Each pair goes on from another place of the
user's text, with a seed of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cutaway.api.llm import LLM
from cutaway.errors import CutawayError
from cutaway.requests.completion import Completion
from cutaway.rerun.request import UNSTOPPED
from cutaway.rerun.statistics import Estimate, rate

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Parted:
    """Pairs of texts, each drawn with one luck.

    texts, tokens  how many pairs, and the tokens of each text
    differ     the share of pairs that differ
    parted_at  of each pair: how many tokens are equal before the first that differs; None: all are
    """

    texts: int
    tokens: int
    differ: Estimate
    parted_at: tuple[int | None, ...]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def prompt_length(window: int) -> int:
    """Tokens of the user's text before a draw, where so many fit into a text."""
    return min(64, window // 2)


def prompts(texts: Sequence[Ids], count: int, length: int) -> list[Ids]:
    """As many beginnings, at even distances over the user's text."""
    places = [
        (w, end)
        for w, ids in enumerate(texts)
        for end in range(min(length, len(ids)), len(ids) + 1)
    ]
    chosen = [places[i * len(places) // count] for i in range(count)]
    return [texts[w][max(end - length, 0) : end] for w, end in chosen]


def draw(
    llm: LLM,
    begins: Sequence[Ids],
    tokens: int,
    temperature: float,
    tell: Callable[[int], object] = int,
) -> list[Ids]:
    """The text that each luck draws after each of the prompts."""
    found: list[Ids] = [()] * len(begins)
    asked = (([*ids], {"seed": seed}) for seed, ids in enumerate(begins))
    options: dict[str, Any] = {"max_tokens": tokens, "temperature": temperature, **UNSTOPPED}
    for done, (index, text) in enumerate(llm.generate_each(asked, **options), 1):
        if isinstance(text, CutawayError):
            raise text
        assert isinstance(text, Completion)  # one text is asked for each
        found[index] = text.token_ids
        tell(done)
    return found


def parted(of_base: Sequence[Ids], changed: Sequence[Ids], tokens: int) -> Parted:
    """Compare the pairs."""
    places = [_first_difference(a, b) for a, b in zip(of_base, changed, strict=True)]
    differ = rate(sum(place is not None for place in places), len(places))
    return Parted(len(places), tokens, differ, tuple(places))


def _first_difference(one: Ids, other: Ids) -> int | None:
    equal = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    if equal is None and len(one) != len(other):
        return min(len(one), len(other))
    return equal
