"""Fills masks with a bidirectional model, in one pass.

A target of several tokens is scored from left to right: each token at its own mask, given those
before it, with those after it masked.
"""

from collections.abc import Sequence
from math import exp

from cutaway.errors import InputError
from cutaway.methods.filling.bidirectional import Ids, logits_at, logprob_of, read
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
    if targets is not None:
        masks = []
        for place, before in zip(places, parts, strict=False):
            pieces = [*dict.fromkeys(_pieces(llm, one, before) for one in targets)]
            masks.append(tuple(_scored(llm, text, place, pieces)[:top]))
        return Filled("masked", tuple(masks))
    [logits] = logits_at(llm, [(text, places)])
    found = (tuple(candidate(tokenizer, [i], exp(p)) for i, p in r.top) for r in read(logits, top))
    joint = _joint(llm, text, places, width)[:top] if len(places) > 1 else ()
    return Filled("masked", tuple(found), tuple(joint))


def _pieces(llm: SyncLLM, target: str, before: str) -> Ids:
    """A target's tokens, with a leading space where the mask token absorbs the one before it."""
    tokenizer, mask = llm.tokenizer, llm.tokenizer.mask_id
    assert mask is not None
    there, gone = (tokenizer.encode_parts([text, mask]) for text in (before, before.rstrip()))
    spaced = before[-1:].isspace() and not target[0].isspace() and there == gone
    ids = tuple(tokenizer.encode(f" {target}" if spaced else target, goes_on=True))
    if not all(map(tokenizer.token_bytes, ids)):
        raise InputError(f"targets: the model has no tokens for {target!r:.40}: give another")
    return ids


def _scored(llm: SyncLLM, text: Ids, place: int, targets: Sequence[Ids]) -> list[FillCandidate]:
    """Each target in the place of one mask, best first."""
    mask = text[place]
    asked = [
        ((*text[:place], *ids[:n], *[mask] * (len(ids) - n), *text[place + 1 :]), (place + n,))
        for ids in targets
        for n in range(len(ids))
    ]
    distinct = [*dict.fromkeys(asked)]
    known = dict(zip(distinct, logits_at(llm, distinct), strict=True))
    each = iter(asked)
    found = []
    for ids in targets:
        logprob = sum(logprob_of(known[next(each)], token_id) for token_id in ids)
        found.append(candidate(llm.tokenizer, ids, exp(logprob)))
    return sorted(found, key=lambda one: -one.score)


def _joint(llm: SyncLLM, text: Ids, places: Ids, width: int) -> list[Joint]:
    """The best tokens for all masks together: a beam search of this width, from left to right."""
    beams: list[tuple[Ids, float]] = [((), 0.0)]
    for place in places:
        asked = [(_with(text, places, values), (place,)) for values, _ in beams]
        grown = [
            ((*values, token_id), before + p)
            for (values, before), logits in zip(beams, logits_at(llm, asked), strict=True)
            for token_id, p in read(logits, width)[0].top
        ]
        beams = sorted(grown, key=lambda beam: (-beam[1], beam[0]))[:width]
    return [
        Joint(tuple(candidate(llm.tokenizer, [i], exp(p)) for i in values), exp(p))
        for values, p in beams
    ]


def _with(text: Ids, places: Ids, values: Ids) -> Ids:
    filled = dict(zip(places, values, strict=False))
    return tuple(filled.get(i, token_id) for i, token_id in enumerate(text))
