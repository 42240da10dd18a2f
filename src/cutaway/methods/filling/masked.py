"""Filling in with a bidirectional model: one pass for all masks.

A word of several pieces is scored from left to right: each piece at its own mask, given the pieces
before it, with those after it masked.
"""

from collections.abc import Sequence
from math import exp

from cutaway.errors import InputError
from cutaway.methods.filling.bidirectional import Bidirectional, Ids, logprob_of, read
from cutaway.methods.filling.filled import FillCandidate, Filled, Joint, candidate
from cutaway.requests.sync_llm import SyncLLM


def fill_masked(
    llm: SyncLLM,
    parts: Sequence[str],
    *,
    top: int,
    targets: Sequence[str] | None,
    width: int,
) -> Filled:
    """See ``LLM.fill``."""
    tokenizer = llm.tokenizer
    if tokenizer.mask_id is None:
        raise InputError("this model names no mask token, so it cannot be asked to fill one in")
    around = [x for part in parts for x in (part, tokenizer.mask_id)][:-1]
    text = tuple(tokenizer.encode_parts(around))
    places = tuple(i for i, token_id in enumerate(text) if token_id == tokenizer.mask_id)
    if len(places) != len(parts) - 1:
        name = tokenizer.token_name(tokenizer.mask_id)
        raise InputError(f"text holds {name!r}, which this model takes for a mask: leave it out")
    reader = _Reader(llm)
    if targets is not None:
        masks = [
            reader.scored(
                text, place, [*dict.fromkeys(_pieces(llm, one, before) for one in targets)]
            )[:top]
            for place, before in zip(places, parts, strict=False)
        ]
        return Filled("masked", tuple(map(tuple, masks)))
    [logits] = reader.logits([(text, places)])
    masks = [[candidate(tokenizer, [i], exp(p)) for i, p in row.top] for row in read(logits, top)]
    joint = reader.joint(text, places, width)[:top] if len(places) > 1 else ()
    return Filled("masked", tuple(map(tuple, masks)), tuple(joint))


def _pieces(llm: SyncLLM, target: str, before: str) -> Ids:
    """A target's tokens, with a space in front where the mask has one that its token eats."""
    tokenizer, mask = llm.tokenizer, llm.tokenizer.mask_id
    assert mask is not None
    there, gone = (tokenizer.encode_parts([text, mask]) for text in (before, before.rstrip()))
    spaced = before[-1:].isspace() and not target[0].isspace() and there == gone
    ids = tuple(tokenizer.encode(f" {target}" if spaced else target, goes_on=True))
    if not all(map(tokenizer.token_bytes, ids)):
        raise InputError(f"targets: the model has no tokens for {target!r:.40}: give another")
    return ids


class _Reader(Bidirectional):
    """Asks one model what fits in masked places."""

    def scored(self, text: Ids, place: int, targets: Sequence[Ids]) -> list[FillCandidate]:
        """Each target in the place of one mask, best first."""
        mask = text[place]
        asked = [
            ((*text[:place], *ids[:n], *[mask] * (len(ids) - n), *text[place + 1 :]), (place + n,))
            for ids in targets
            for n in range(len(ids))
        ]
        rows = iter(self.logits([*dict.fromkeys(asked)]))
        known = {one: next(rows) for one in dict.fromkeys(asked)}
        each = iter(asked)
        found = [
            candidate(
                self._llm.tokenizer, ids,
                exp(sum(logprob_of(known[next(each)], token_id) for token_id in ids)),
            )
            for ids in targets
        ]  # fmt: skip
        return sorted(found, key=lambda one: -one.score)

    def joint(self, text: Ids, places: Ids, width: int) -> list[Joint]:
        """The best of all places together; ``width``: beginnings that are extended."""
        beams: list[tuple[Ids, float]] = [((), 0.0)]
        for n, place in enumerate(places):
            asked = [(_with(text, places, values), (place,)) for values, _ in beams]
            grown = [
                ((*values, token_id), before + p)
                for (values, before), logits in zip(beams, self.logits(asked), strict=True)
                for token_id, p in read(logits, width)[0].top
            ]
            beams = sorted(grown, key=lambda beam: (-beam[1], beam[0]))[:width]
            assert all(len(values) == n + 1 for values, _ in beams)
        tokenizer = self._llm.tokenizer
        return [
            Joint(tuple(candidate(tokenizer, [i], exp(p)) for i in values), exp(p))
            for values, p in beams
        ]


def _with(text: Ids, places: Ids, values: Ids) -> Ids:
    filled = dict(zip(places, values, strict=False))
    return tuple(filled.get(i, token_id) for i, token_id in enumerate(text))
