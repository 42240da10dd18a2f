"""Whole words of a draft: the filler, a bidirectional model, proposes words; the model judges them.

The vocabularies of the two models differ, so they exchange text: the filler reads a text with a
mask, and the judge reads the text with the filler's word in the mask's place.
"""

import re
from collections.abc import Sequence
from itertools import accumulate
from math import fsum, inf, log
from typing import TYPE_CHECKING, NamedTuple

from cutaway.errors import InputError
from cutaway.features.revise.rules import Proposal, RevisedText, RevisionModel
from cutaway.methods.causal import ScoredText
from cutaway.methods.filling import MARK, Filled, fill
from cutaway.methods.rows import Ids

if TYPE_CHECKING:
    from cutaway.requests.sync_llm import SyncLLM

_WORD = re.compile(r"\w+")
_MAX_CANDIDATES = 1000  # the filler's likeliest tokens, among which whole words are searched


class _Word(NamedTuple):
    """A word: its characters from start to end, and its tokens from first to last, exclusive."""

    start: int
    end: int
    first: int
    last: int


class WordRule:
    """A rule: the best of the filler's words replaces a word, if the judge's likelihood rises.

    A word is identified by the position of its first token in the draft. One word replaces one
    word, so the n-th word stays the n-th.
    """

    def __init__(
        self,
        judge: RevisionModel,
        llm: "SyncLLM",
        filler: "SyncLLM",
        candidates: int,
        draft: RevisedText,
    ) -> None:
        if filler.config.attention != "bidirectional":
            raise InputError(
                "filler",
                " must be a model that sees a text as a whole, such as BERT; without one the "
                "model itself fills in, by Bayes' rule",
            )
        self._judge, self._filler, self._candidates = judge, filler, candidates
        self._tokenizer, self._context = llm.tokenizer, llm.model.context
        adds_text = [bool(self._tokenizer.token_bytes(i)) for i in draft.ids]
        with_text = [i for i in range(draft.fixed, len(draft.ids)) if adds_text[i]]
        end = with_text[-1] + 1 if with_text else len(draft.ids)
        if with_text != [*range(draft.fixed, end)]:
            raise InputError("filler", ": the draft must be text, without special tokens in it")
        self._tail = draft.ids[end:]
        self._numbers = {word.first: n for n, word in reversed([*enumerate(self._words(draft))])}

    def cells(self) -> list[int]:
        """The positions at which words begin in the draft."""
        return sorted(self._numbers)

    def surprise(self, draft: RevisedText, position: int) -> float:
        """The judge's -log p of a word, given the text before the word; in nats."""
        word = self._words(draft)[self._numbers[position]]
        return -fsum(draft.logprobs[word.first - draft.fixed : word.last - draft.fixed])

    def masked_surprise(self, draft: RevisedText, position: int) -> float:
        """The filler's -log p of a word, given all other words; in nats."""
        whole, word = self._text(draft), self._words(draft)[self._numbers[position]]
        [[fill_choice]] = self._fill(whole, word, [whole[word.start : word.end]]).masks
        return -log(fill_choice.score) if fill_choice.score else inf

    def propose(self, text: RevisedText, position: int, seed: int) -> Proposal:  # noqa: ARG002
        """See ``RevisionRule``."""
        whole, word = self._text(text), self._words(text)[self._numbers[position]]
        current = whole[word.start : word.end]
        texts = [
            ids
            for candidate in self._choose_words(self._fill(whole, word), current)
            if len(ids := self._read(text, whole[: word.start] + candidate + whole[word.end :]))
            <= self._context
        ]
        if not texts:
            return Proposal(word.first, word.first, (), text.logprobs_from(word.first), -inf)
        starts = [_first_difference(text.ids, ids, text.fixed) for ids in texts]
        logprob_lists = self._judge.score_tokens([*map(ScoredText, texts, starts)])
        proposals = [
            _proposal(text, ids, first, tuple(logprobs))
            for ids, first, logprobs in zip(texts, starts, logprob_lists, strict=True)
        ]
        sums = [text.accept(candidate).logprob for candidate in proposals]
        best = max(range(len(proposals)), key=sums.__getitem__)
        return proposals[best]._replace(log_ratio=0.0 if sums[best] > text.logprob else -inf)

    def _text(self, text: RevisedText) -> str:
        end = len(text.ids) - len(self._tail)
        data = b"".join(map(self._tokenizer.token_bytes, text.ids[text.fixed : end]))
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise InputError("filler", ": the draft must not end within a character") from None

    def _words(self, text: RevisedText) -> list[_Word]:
        whole = self._text(text)
        lengths = (len(self._tokenizer.token_bytes(i)) for i in text.ids[text.fixed :])
        ends = [*accumulate(lengths)]
        words = []
        for match in _WORD.finditer(whole):
            start, end = (len(whole[:at].encode()) for at in match.span())
            first = next((n for n, x in enumerate(ends) if x > start), len(ends) - 1)
            last = next((n for n, x in enumerate(ends) if x >= end), len(ends) - 1)
            words.append(_Word(*match.span(), text.fixed + first, text.fixed + last + 1))
        return words

    def _read(self, text: RevisedText, draft: str) -> Ids:
        ids = self._tokenizer.encode(draft, add_bos=False, goes_on=True)
        return (*text.ids[: text.fixed], *ids, *self._tail)

    def _fill(self, whole: str, word: _Word, targets: Sequence[str] | None = None) -> Filled:
        before, after = whole[: word.start], whole[word.end :]
        if MARK in before + after:
            raise InputError("filler", f": the draft must not have {MARK} in it")
        text = f"{before}{MARK}{after}"
        return fill(
            self._filler, text, top=_MAX_CANDIDATES, targets=targets, candidates=_MAX_CANDIDATES
        )

    def _choose_words(self, fills: "Filled", current: str) -> list[str]:
        """Choose other whole words, best first; capitalise them where the current word is."""
        names = (choice.token[1:] for choice in fills.masks[0] if choice.token.startswith(" "))
        words = [name for name in names if _WORD.fullmatch(name)]
        if current[0].isupper():
            words = [name[0].upper() + name[1:] for name in words]
        return [word for word in dict.fromkeys(words) if word != current][: self._candidates]


def _first_difference(ids: Ids, other_ids: Ids, fixed: int) -> int:
    """Find the first position, from ``fixed`` on, at which two texts differ."""
    pairs = enumerate(zip(ids, other_ids, strict=False))
    shorter = min(len(ids), len(other_ids))
    return max(fixed, next((i for i, (a, b) in pairs if a != b), shorter))


def _proposal(text: RevisedText, ids: Ids, first: int, logprobs: tuple[float, ...]) -> Proposal:
    """Make a proposal of the tokens in which a text differs from the current one."""
    length = min(len(ids), len(text.ids)) - first
    same = next((n for n in range(length) if ids[-1 - n] != text.ids[-1 - n]), length)
    return Proposal(
        first, len(text.ids) - same, ids[first : len(ids) - same], logprobs, log_ratio=-inf
    )
