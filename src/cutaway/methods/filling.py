"""Fills the masks of a text.

A bidirectional model predicts the masks; for a causal model the candidates follow by Bayes' rule.
``infill`` writes a text between a prompt and a suffix.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from math import exp, fsum
from typing import TYPE_CHECKING, Any, NamedTuple

from cutaway.base.arithmetic import plainly
from cutaway.base.checks import check_int, shown
from cutaway.errors import InputError
from cutaway.methods.causal import Causal, ScoredText, adding_text, all_logprobs, likeliest
from cutaway.methods.rows import LATER, Ids, likeliest_of_rows, logits_at, logprob_of, pin_text
from cutaway.requests.base import limits_of
from cutaway.requests.sync_llm import SyncLLM
from cutaway.text import Tokenizer

if TYPE_CHECKING:
    from cutaway.text import Tokenizer


# -- candidates --------------------------------------------------------------------------------


class FillCandidate(NamedTuple):
    """A candidate for one mask.

    token_ids  one id, or several for a target of several tokens
    token      the names of its tokens, joined
    text       the text of its tokens
    score      its probability; see ``Filled``
    """

    token_ids: tuple[int, ...]
    token: str
    text: str
    score: float

    @property
    def token_id(self) -> int | None:
        """The token's id; None for several tokens."""
        return self.token_ids[0] if len(self.token_ids) == 1 else None

    def to_dict(self) -> dict[str, Any]:
        """Return a value for JSON."""
        ids = {"token_id": self.token_id, "token_ids": list(self.token_ids)}
        return ids | {"token": self.token, "text": self.text, "score": self.score}


class Joint(NamedTuple):
    """Candidates for all masks together, one token in each; score: their joint probability."""

    candidates: tuple[FillCandidate, ...]
    score: float


@dataclass(frozen=True)
class Filled:
    """A text's masks, each with its candidates, best first.

    method   "masked": the model's own prediction, each mask by itself. "bayes": p(token | the text
             before and after), among the candidates that were considered
    masks    the candidates of each mask, in the order of the text
    joint    of several masks: the best candidates for all masks together. "masked": the product
             from left to right, each mask given the filled ones before it and the masks after it
    covered  "bayes": the probability, given only the text before, that the next token is one of the
             single tokens considered; None for "masked", which considers all
    """

    method: str
    masks: tuple[tuple[FillCandidate, ...], ...]
    joint: tuple[Joint, ...] = ()
    covered: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return a value for JSON."""
        joints = [
            {"candidates": [c.to_dict() for c in joint.candidates], "score": joint.score}
            for joint in self.joint
        ]
        masks = [[c.to_dict() for c in candidates] for candidates in self.masks]
        return {"method": self.method, "masks": masks, "joint": joints, "covered": self.covered}


def candidate(tokenizer: Tokenizer, ids: Iterable[int], score: float) -> FillCandidate:
    """Return the candidate of these tokens."""
    ids = tuple(ids)
    names = "".join(map(tokenizer.token_name, ids))
    return FillCandidate(ids, names, tokenizer.decode(ids, special=True), score)


# -- a text with masks -------------------------------------------------------------------------

MARK = "[MASK]"


def fill(
    llm: SyncLLM,
    text: str,
    top: int = 5,
    targets: Iterable[str] | None = None,
    *,
    candidates: int = 64,
    adapter: str = "",
) -> Filled:
    """Find candidates for each mask of a text: [MASK], or the model's own mask token.

    A bidirectional model predicts the candidates; for a causal model they follow by Bayes' rule.
    top: candidates returned for each mask; targets: only these texts, each scored as a whole
    candidates: how many Bayes' rule considers, and the beam width for several masks together
    adapter: the name of a loaded adapter, as for generate
    """
    llm = llm.with_adapter(adapter)
    limits_of(llm.model).check_head()
    parts = split_at_masks(text, llm.tokenizer)
    top, width = check_int("top", top, 1, 1000), check_int("candidates", candidates, 1, 1000)
    target_list = None if targets is None else _check_targets(targets)
    fill_masks = fill_by_bayes if llm.config.is_causal else fill_masked
    return fill_masks(llm, parts, top=top, targets=target_list, width=max(top, width))


def split_at_masks(text: str, tokenizer: "Tokenizer") -> list[str]:
    """Return the text before, between and after the masks; InputError if there is no mask."""
    if not isinstance(text, str):
        raise InputError("text", f" must be a string, not {shown(text)}")
    marks, mask = [MARK], tokenizer.mask_id
    if mask is not None and not tokenizer.token_bytes(mask):  # else the mask token is a word
        marks.append(tokenizer.token_name(mask))
    parts = re.split("|".join(map(re.escape, marks)), text)
    if len(parts) == 1:
        raise InputError(
            f"the text has no mask: write {' or '.join(dict.fromkeys(marks))} where something is "
            "to be filled in"
        )
    return parts


def _check_targets(targets: Iterable[str]) -> list[str]:
    texts = None if isinstance(targets, str) else [*targets]
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise InputError("targets", f" must be a list of texts, not {shown(targets)}")
    return [*dict.fromkeys(texts)]


# -- by a bidirectional model ------------------------------------------------------------------
# In one pass. A target of several tokens is scored from left to right: each token at its own mask,
# given those before it, with those after it masked.


@plainly
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
        raise InputError(
            "text", f" holds {name!r}, which this model takes for a mask: leave it out"
        )
    if targets is not None:
        masks = []
        for place, before in zip(places, parts, strict=False):
            pieces = [*dict.fromkeys(_pieces(llm, target, before) for target in targets)]
            masks.append(tuple(_score_targets(llm, text, place, pieces)[:top]))
        return Filled("masked", tuple(masks))
    [logits] = logits_at(llm, [(text, places)])
    candidates = (
        tuple(candidate(tokenizer, [i], exp(p)) for i, p in r.top)
        for r in likeliest_of_rows(logits, top)
    )
    joint = _find_joint(llm, text, places, width)[:top] if len(places) > 1 else ()
    return Filled("masked", tuple(candidates), tuple(joint))


def _pieces(llm: SyncLLM, target: str, before: str) -> Ids:
    """Return a target's tokens, with a leading space if the mask absorbs the space before it."""
    tokenizer, mask = llm.tokenizer, llm.tokenizer.mask_id
    assert mask is not None
    with_space, without_space = (
        tokenizer.encode_parts([text, mask]) for text in (before, before.rstrip())
    )
    spaced = before[-1:].isspace() and not target[0].isspace() and with_space == without_space
    ids = tuple(tokenizer.encode(f" {target}" if spaced else target, goes_on=True))
    if not all(map(tokenizer.token_bytes, ids)):
        raise InputError("targets", f": the model has no tokens for {target!r:.40}: give another")
    return ids


def _score_targets(
    llm: SyncLLM, text: Ids, place: int, targets: Sequence[Ids]
) -> list[FillCandidate]:
    """Return each target as a candidate for one mask, best first."""
    mask = text[place]
    masked_texts = [
        ((*text[:place], *ids[:n], *[mask] * (len(ids) - n), *text[place + 1 :]), (place + n,))
        for ids in targets
        for n in range(len(ids))
    ]
    distinct = [*dict.fromkeys(masked_texts)]
    logits_of_text = dict(zip(distinct, logits_at(llm, distinct), strict=True))
    remaining = iter(masked_texts)
    candidates = []
    for ids in targets:
        logprob = sum(logprob_of(logits_of_text[next(remaining)], token_id) for token_id in ids)
        candidates.append(candidate(llm.tokenizer, ids, exp(logprob)))
    return sorted(candidates, key=lambda c: -c.score)


def _find_joint(llm: SyncLLM, text: Ids, places: Ids, width: int) -> list[Joint]:
    """Find the best tokens for all masks together by a beam search from left to right."""
    beams: list[tuple[Ids, float]] = [((), 0.0)]
    for place in places:
        masked_texts = [(_replace_masks(text, places, values), (place,)) for values, _ in beams]
        extended = [
            ((*values, token_id), before + p)
            for (values, before), logits in zip(beams, logits_at(llm, masked_texts), strict=True)
            for token_id, p in likeliest_of_rows(logits, width)[0].top
        ]
        beams = sorted(extended, key=lambda beam: (-beam[1], beam[0]))[:width]
    return [
        Joint(tuple(candidate(llm.tokenizer, [i], exp(p)) for i in values), exp(p))
        for values, p in beams
    ]


def _replace_masks(text: Ids, places: Ids, values: Ids) -> Ids:
    token_at = dict(zip(places, values, strict=False))
    return tuple(token_at.get(i, token_id) for i, token_id in enumerate(text))


# -- by a causal model and Bayes' rule ---------------------------------------------------------
#     p(v | rest)  is proportional to  p(v | before) · p(after | before, v)
#
# Exact over the candidates, which are the likeliest tokens given the text before. Several masks are
# filled by a beam search, and the joint probabilities are exact over its beams.


@dataclass(frozen=True)
class _Beam:
    """The text up to some mask, with the masks in it filled.

    text    token ids
    values  the tokens in each mask
    prior   log-probability of the first token of each mask, given the text before it
    rest    log-probability of all other tokens since the first mask
    """

    text: Ids
    values: tuple[Ids, ...] = ()
    prior: float = 0.0
    rest: float = 0.0

    @property
    def weight(self) -> float:
        return self.prior + self.rest

    def __lt__(self, other: "_Beam") -> bool:
        return (-self.weight, self.values) < (-other.weight, other.values)


@plainly
def fill_by_bayes(
    llm: SyncLLM,
    parts: Sequence[str],
    *,
    top: int,
    targets: Sequence[str] | None,
    width: int,
) -> Filled:
    """See ``LLM.fill``."""
    masked = _read_masked_text(llm, parts, targets)
    search, beams = _BeamSearch(llm), [_Beam(masked.before)]
    with pin_text(llm, masked.before, LATER):
        for space, part in zip(masked.spaced, masked.after, strict=True):
            beams = search.append_text(
                search.extend_beams(beams, width, masked.targets, spaced=space), part
            )
    return _to_filled(llm, sorted(beams), top, masked.targets)


class _MaskedText(NamedTuple):
    """A text with masks as token ids.

    before   the tokens before the first mask
    after    the tokens after each mask
    spaced   for each mask, whether its token begins with the space that precedes the mask
    targets  the only tokens that may fill the one mask; empty: any
    """

    before: Ids
    after: list[Ids]
    spaced: list[bool]
    targets: list[Ids]


def _read_masked_text(
    llm: SyncLLM, parts: Sequence[str], targets: Sequence[str] | None
) -> _MaskedText:
    if targets is not None and len(parts) > 2:
        raise InputError("targets", ": with this model only one mask can have them: leave one mask")
    encode, begin = llm.tokenizer.encode, llm.tokenizer.bos_id
    spaced = [part.endswith(" ") for part in parts[:-1]]
    texts = [p[:-1] if s else p for p, s in zip(parts, [*spaced, False], strict=True)]
    before = tuple(encode(texts[0])) or (() if begin is None else (begin,))
    if not before:
        raise InputError(
            "nothing is before the mask, and this model needs something: begin with it"
        )
    after = [tuple(encode(text, goes_on=True)) for text in texts[1:]]
    target_texts = (
        f" {target}" if spaced[0] and target[0] != " " else target for target in targets or ()
    )
    target_ids = [*dict.fromkeys(tuple(encode(target, goes_on=True)) for target in target_texts)]
    num_filled = len(after) - 1 + max(map(len, target_ids), default=1)
    length = len(before) + sum(map(len, after)) + num_filled
    if length > llm.model.context:
        raise InputError(
            f"the text has {length} tokens with what is filled in, and the context is "
            f"{llm.model.context}: shorten it"
        )
    return _MaskedText(before, after, spaced, target_ids)


def _to_filled(llm: SyncLLM, beams: list[_Beam], top: int, targets: Sequence[Ids]) -> Filled:
    """Return the result of a search. beams: best first."""
    shares = [exp(beam.weight - beams[0].weight) for beam in beams]
    total = fsum(shares)
    scores = [share / total for share in shares]
    masks: list[tuple[FillCandidate, ...]] = []
    for i in range(len(beams[0].values)):
        sums: dict[Ids, list[float]] = {}
        for beam, score in zip(beams, scores, strict=True):
            if not targets or beam.values[i] in targets:
                sums.setdefault(beam.values[i], []).append(score)
        candidates = [
            candidate(llm.tokenizer, ids, fsum(scores_of_ids))
            for ids, scores_of_ids in sums.items()
        ]
        masks.append(tuple(sorted(candidates, key=lambda entry: -entry.score)[:top]))
    joint = [
        Joint(tuple(candidate(llm.tokenizer, ids, score) for ids in beam.values), score)
        for beam, score in zip(beams[:top], scores, strict=False)
    ]
    single = (beam.prior for beam in beams if all(len(ids) == 1 for ids in beam.values))
    covered = min(fsum(map(exp, single)), 1.0)
    return Filled("bayes", tuple(masks), tuple(joint) if len(masks) > 1 else (), covered)


class _BeamSearch:
    """A beam search for the masks of a text, by one model."""

    def __init__(self, llm: SyncLLM) -> None:
        self._tokenizer, self._model = llm.tokenizer, Causal(llm)

    def extend_beams(
        self, beams: Sequence[_Beam], width: int, targets: Sequence[Ids], *, spaced: bool
    ) -> list[_Beam]:
        """Return the ``width`` best beams with one more mask filled.

        Each beam filled with each of the targets is returned, too.
        """
        best: list[tuple[float, int, int]] = []  # minus the weight, the beam's index, the token
        target_beams: list[_Beam] = []
        logprobs: dict[int, dict[int, float]] = {}
        allowed = adding_text(self._tokenizer, spaced=spaced)
        for index, row in self._model.following(beam.text for beam in beams):
            beam, token_logprobs = beams[index], all_logprobs(row)
            candidates = likeliest(row[0], allowed, width)
            logprobs[index] = {token_id: float(token_logprobs[token_id]) for token_id in candidates}
            best += [(-beam.weight - p, index, v) for v, p in logprobs[index].items()]
            best = nsmallest(width, best)
            target_beams += [_extend(beam, ids, float(token_logprobs[ids[0]])) for ids in targets]
        best_beams = [_extend(beams[index], (v,), logprobs[index][v]) for _, index, v in best]
        present = {beam.values for beam in best_beams}
        return best_beams + [beam for beam in target_beams if beam.values not in present]

    def append_text(self, beams: Sequence[_Beam], part: Ids) -> list[_Beam]:
        """Append the text after the mask to each beam, and add its log-probability."""
        texts = [beam.text + part for beam in beams]
        scored_texts = [
            ScoredText(
                text, len(beam.text) - len(beam.values[-1]) + 1
            )  # after a mask's first token
            for text, beam in zip(texts, beams, strict=True)
        ]
        return [
            _Beam(text, beam.values, beam.prior, beam.rest + fsum(logprobs))
            for text, beam, logprobs in zip(
                texts, beams, self._model.score_tokens(scored_texts), strict=True
            )
        ]


def _extend(beam: _Beam, ids: Ids, logprob: float) -> _Beam:
    return _Beam(beam.text + ids, (*beam.values, ids), beam.prior + logprob, beam.rest)
