"""Fills masks with a causal model, by Bayes' rule.

    p(v | rest)  is proportional to  p(v | before) · p(after | before, v)

Exact over the candidates, which are the likeliest tokens given the text before. Several masks are
filled by a beam search, and the joint probabilities are exact over its beams.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest
from math import exp, fsum
from typing import NamedTuple

from cutaway.errors import InputError
from cutaway.methods.filling.causal import (
    Causal,
    Ids,
    ScoredText,
    adding_text,
    all_logprobs,
    likeliest,
)
from cutaway.methods.filling.filled import FillCandidate, Filled, Joint, candidate
from cutaway.methods.pinned import LATER, pinned
from cutaway.requests.sync_llm import SyncLLM


@dataclass(frozen=True)
class _Beam:
    """The text up to some mask, with all masks in it filled.

    text    token ids
    values  the tokens in each mask
    prior   log-probability of the first token of each mask, given what is before it
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


def fill_by_bayes(
    llm: SyncLLM,
    parts: Sequence[str],
    *,
    top: int,
    targets: Sequence[str] | None,
    width: int,
) -> Filled:
    """See ``LLM.fill``."""
    asked = _read(llm, parts, targets)
    run, beams = _Run(llm), [_Beam(asked.before)]
    with pinned(llm, asked.before, LATER):
        for space, part in zip(asked.spaced, asked.after, strict=True):
            beams = run.followed(run.grown(beams, width, asked.targets, spaced=space), part)
    return _filled(llm, sorted(beams), top, asked.targets)


class _Asked(NamedTuple):
    """A text with masks as token ids.

    before   the tokens before the first mask
    after    the tokens after each mask
    spaced   for each mask, whether its token begins with the space that was before it
    targets  the only tokens that may fill the one mask; empty: any
    """

    before: Ids
    after: list[Ids]
    spaced: list[bool]
    targets: list[Ids]


def _read(llm: SyncLLM, parts: Sequence[str], targets: Sequence[str] | None) -> _Asked:
    if targets is not None and len(parts) > 2:
        raise InputError("targets: with this model only one mask can have them: leave one mask")
    encode, begin = llm.tokenizer.encode, llm.tokenizer.bos_id
    spaced = [part.endswith(" ") for part in parts[:-1]]
    texts = [p[:-1] if s else p for p, s in zip(parts, [*spaced, False], strict=True)]
    before = tuple(encode(texts[0])) or (() if begin is None else (begin,))
    if not before:
        raise InputError(
            "nothing is before the mask, and this model needs something: begin with it"
        )
    after = [tuple(encode(text, goes_on=True)) for text in texts[1:]]
    each = (f" {one}" if spaced[0] and one[0] != " " else one for one in targets or ())
    wanted = [*dict.fromkeys(tuple(encode(one, goes_on=True)) for one in each)]
    filled = len(after) - 1 + max(map(len, wanted), default=1)
    length = len(before) + sum(map(len, after)) + filled
    if length > llm.model.context:
        raise InputError(
            f"the text has {length} tokens with what is filled in, and the context is "
            f"{llm.model.context}: shorten it"
        )
    return _Asked(before, after, spaced, wanted)


def _filled(llm: SyncLLM, beams: list[_Beam], top: int, wanted: Sequence[Ids]) -> Filled:
    """beams: best first."""
    shares = [exp(beam.weight - beams[0].weight) for beam in beams]
    total = fsum(shares)
    scores = [share / total for share in shares]
    masks: list[tuple[FillCandidate, ...]] = []
    for i in range(len(beams[0].values)):
        sums: dict[Ids, list[float]] = {}
        for beam, score in zip(beams, scores, strict=True):
            if not wanted or beam.values[i] in wanted:
                sums.setdefault(beam.values[i], []).append(score)
        found = [candidate(llm.tokenizer, ids, fsum(each)) for ids, each in sums.items()]
        masks.append(tuple(sorted(found, key=lambda one: -one.score)[:top]))
    joint = [
        Joint(tuple(candidate(llm.tokenizer, ids, score) for ids in beam.values), score)
        for beam, score in zip(beams[:top], scores, strict=False)
    ]
    single = (beam.prior for beam in beams if all(len(ids) == 1 for ids in beam.values))
    covered = min(fsum(map(exp, single)), 1.0)
    return Filled("bayes", tuple(masks), tuple(joint) if len(masks) > 1 else (), covered)


class _Run:
    """A beam search with one model."""

    def __init__(self, llm: SyncLLM) -> None:
        self._tokenizer, self._model = llm.tokenizer, Causal(llm)

    def grown(
        self, beams: Sequence[_Beam], width: int, wanted: Sequence[Ids], *, spaced: bool
    ) -> list[_Beam]:
        """The ``width`` best beams with one more mask filled, and each beam with each target."""
        best: list[tuple[float, int, int]] = []  # minus the weight, which beam, and the token
        asked: list[_Beam] = []
        logprobs: dict[int, dict[int, float]] = {}
        allowed = adding_text(self._tokenizer, spaced=spaced)
        for index, row in self._model.following(beam.text for beam in beams):
            beam, each = beams[index], all_logprobs(row)
            considered = likeliest(row[0], allowed, width)
            logprobs[index] = {token_id: float(each[token_id]) for token_id in considered}
            best += [(-beam.weight - p, index, v) for v, p in logprobs[index].items()]
            best = nsmallest(width, best)
            asked += [_with(beam, ids, float(each[ids[0]])) for ids in wanted]
        found = [_with(beams[index], (v,), logprobs[index][v]) for _, index, v in best]
        known = {beam.values for beam in found}
        return found + [beam for beam in asked if beam.values not in known]

    def followed(self, beams: Sequence[_Beam], part: Ids) -> list[_Beam]:
        """Each beam with the text after the mask, and its log-probability."""
        texts = [beam.text + part for beam in beams]
        asked = [
            ScoredText(
                text, len(beam.text) - len(beam.values[-1]) + 1
            )  # after a mask's first token
            for text, beam in zip(texts, beams, strict=True)
        ]
        return [
            _Beam(text, beam.values, beam.prior, beam.rest + fsum(each))
            for text, beam, each in zip(texts, beams, self._model.known(asked), strict=True)
        ]


def _with(beam: _Beam, ids: Ids, logprob: float) -> _Beam:
    return _Beam(beam.text + ids, (*beam.values, ids), beam.prior + logprob, beam.rest)
