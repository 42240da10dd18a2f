"""A text without each of its parts: deleted, knocked out of attention, or replaced."""

from collections.abc import Sequence
from typing import NamedTuple

from cutaway.api.llm import LLM
from cutaway.engine.interventions import Intervention, knock_out
from cutaway.errors import InputError
from cutaway.rerun.forks import token_id_of

HOW = ("delete", "knock_out", "other")

Ids = tuple[int, ...]


class Variant(NamedTuple):
    """A text with ``instead`` in place of the positions ``start`` to ``stop`` - 1.

    interventions  with which the model reads it
    """

    start: int
    stop: int
    instead: Ids
    interventions: tuple[Intervention, ...] = ()

    def of(self, ids: Ids) -> Ids:
        """The whole text."""
        return ids[: self.start] + self.instead + ids[self.stop :]


def variants(
    llm: LLM, ids: Ids, parts: Sequence[range], how: str, other: int | str | None
) -> list[Variant]:
    """One for each part that can be removed, in order; how: one of ``HOW``.

    InputError where no part can be removed, or there is no such token.
    """
    if other is not None and how != "other":
        raise InputError("other names the tokens in a part's place: how must be other, too")
    if how == "delete":
        if len(parts) == 1:
            raise InputError(
                "by: the text before the step is one part, and without it nothing is left: choose "
                "a smaller part, or another how"
            )
        return [Variant(part.start, part.stop, ()) for part in parts]
    if how == "knock_out":
        if llm.graph.has_state:
            raise InputError(
                "how: layers of this model have a recurrent state, from which no token can be "
                "knocked out: take delete or other"
            )
        return _knocked_out(ids, parts)
    others = _others(llm, ids, other)
    places = [range(max(part.start, 1), part.stop) for part in parts]
    found = [
        Variant(place.start, place.stop, others[place.start : place.stop])
        for place in places
        if others[place.start : place.stop] != ids[place.start : place.stop]
    ]
    if not found:
        raise InputError(
            "how: the first token stays, and no other can be replaced: choose another how"
        )
    return found


def _knocked_out(ids: Ids, parts: Sequence[range]) -> list[Variant]:
    """The last token is left out, since only it attends to itself."""
    seen = [part for part in parts if part.start < len(ids) - 1]
    if not seen:
        raise InputError(
            "how: only the last token is left, which only itself attends to: take a later step"
        )
    return [
        Variant(
            part.start, part.stop, ids[part.start : part.stop],
            (knock_out(f"{part.start}-{part.stop - 1}"),),
        )
        for part in seen
    ]  # fmt: skip


def _others(llm: LLM, ids: Ids, other: int | str | None) -> Ids:
    """A replacement for each position but the first, which stays."""
    if other is not None:
        return (ids[0], *[token_id_of(llm, other, "other")] * (len(ids) - 1))
    if len(ids) == 1:
        return ids
    scored = llm.generate([*ids], max_tokens=0, prompt_logprobs=2).prompt_logprobs
    likeliest = ([token for token, _ in read.top] for read in scored)
    each = zip(ids[1:], likeliest, strict=True)
    return (ids[0], *(next(t for t in top if t != token) for token, top in each))
