"""Revise a draft: its most surprising tokens are drawn again, one place at a time.

Knows the sequence (draft, rank, try, accept), and its record as plain data. The draft alone decides
which tokens are tried, and in which order: choices that depended on the changing text would break
the invariance of the rules' distribution.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from difflib import SequenceMatcher
from functools import partial
from math import ceil, inf, log
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from cutaway.base.arithmetic import plainly
from cutaway.base.progress import Progress, silent
from cutaway.errors import InputError
from cutaway.features.revise.rules import (
    RULES,
    SURPRISES,
    Better,
    Gibbs,
    Loop,
    Mask,
    Metropolis,
    PlaceReader,
    Proposal,
    RevisedText,
    RevisionModel,
    RevisionRule,
    RevisionSettings,
    draft,
)
from cutaway.features.revise.words import WordRule
from cutaway.methods.causal import ScoredText, Stopped, adding_text
from cutaway.methods.rows import Ids
from cutaway.requests.base import Prompt, check_prompt, limits_of
from cutaway.requests.sync_llm import SyncLLM
from cutaway.sampling import coin, trial_seed
from cutaway.sampling.fixed_math import exp
from cutaway.text import Tokenizer

__all__ = [
    "RULES",
    "SURPRISES",
    "Piece",
    "Revised",
    "RevisionCost",
    "RevisionSettings",
    "RevisionTrial",
    "revise",
]


@dataclass(frozen=True, slots=True)
class RevisionTrial:
    """One attempt to replace tokens. Logarithms are natural.

    index           0 for the first trial
    position        the position of the first of the replaced tokens, prompt included
    was, proposed   ids of the tokens before the trial, and of the proposed tokens
    was_text, proposed_text  the texts that these tokens add
    logprob_before  log p of the draft before the trial, given the prompt
    logprob_after   log p of the draft with the proposed tokens
    forward         log p of drawing the proposal: among the tokens that were tried (gibbs), or by
                    the loop (metropolis); None if nothing is drawn
    reverse         log p of drawing the tokens that were there
    chance          the probability of accepting. "gibbs": 1. "metropolis": min(1, e^r), r being
                    power · (after - before) + reverse - forward. "better": 1 if likelier, else 0
    luck            a number from 0 to 1; the proposal was accepted if ``luck`` is below ``chance``
    """

    index: int
    position: int
    was: Ids
    proposed: Ids
    was_text: str
    proposed_text: str
    logprob_before: float
    logprob_after: float
    forward: float | None
    reverse: float | None
    chance: float
    luck: float

    @property
    def accepted(self) -> bool:
        """Whether the proposal was accepted; it may equal the tokens that were there."""
        return self.luck < self.chance

    @property
    @plainly
    def gain(self) -> float:
        """The bits by which the proposal lowers the surprise of the draft."""
        return (self.logprob_after - self.logprob_before) / log(2)

    @property
    def now(self) -> Ids:
        """The tokens after the trial."""
        return self.proposed if self.accepted else self.was

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self) | {"now": self.now, "accepted": self.accepted}


class RevisionCost(NamedTuple):
    """The cost of a revision, without drafting.

    passes  steps of the engine, which other texts may have shared
    rows    tokens computed, without those in the prefix cache
    """

    passes: int
    rows: int
    seconds: float


class Piece(NamedTuple):
    """A part of the draft that stayed or changed as a whole, and its text now."""

    was: str
    now: str
    changed: bool


@dataclass(frozen=True, kw_only=True)
class Revised:
    """A draft and its revision. Both have equally many tokens, or with a filler equally many words.

    settings     rule, power, and all other settings of the revision
    surprises    the surprise of each token of the draft, in bits, as ``settings["surprise"]`` says;
                 with a filler, the surprise of each word, at its first token. None for a token that
                 is never replaced, and so is not ranked
    bits_before  the surprise of the whole draft, given the prompt, by the loop
    bits_after   the surprise of the whole revision, given the prompt, by the loop
    planned      the number of planned trials: more than ``trials`` if the revision was stopped
    """

    model: str
    prompt_token_ids: Ids
    draft_token_ids: Ids
    token_ids: Ids
    draft: str
    text: str
    settings: Mapping[str, Any]
    surprises: tuple[float | None, ...]
    trials: tuple[RevisionTrial, ...]
    planned: int
    bits_before: float
    bits_after: float
    cost: RevisionCost

    @property
    def seed(self) -> int:
        """The seed that repeats the revision."""
        seed: int = self.settings["seed"]
        return seed

    def pieces(self, tokenizer: Tokenizer) -> Iterator[Piece]:
        """Cut both texts into parts that are equal or differ."""
        was, now = self.draft_token_ids, self.token_ids
        for kind, *(a, b, c, d) in SequenceMatcher(None, was, now, False).get_opcodes():
            texts = text_of(tokenizer, was[a:b]), text_of(tokenizer, now[c:d])
            yield Piece(*texts, changed=kind != "equal")

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        first, last = ("text", "token_ids"), ("settings",)
        middle = (f.name for f in fields(self) if f.name not in (*first, *last))
        document = {name: getattr(self, name) for name in (*first, *middle, *last)}
        document["trials"] = [trial.to_dict() for trial in self.trials]
        document["cost"] = self.cost._asdict()
        return document


def text_of(tokenizer: Tokenizer, ids: Ids) -> str:
    """The text that these tokens add to the text before them."""
    return b"".join(map(tokenizer.token_bytes, ids)).decode("utf-8", "replace")


@plainly
def to_bits(logprob: float) -> float:
    """Convert a natural log-probability to a surprise in bits."""
    return max(-logprob, 0.0) / log(2)


# -- revising --------------------------------------------------------------------------------------


@plainly
def revise(
    llm: SyncLLM,
    prompt: Prompt,
    given_draft: Prompt | None,
    settings: RevisionSettings,
    *,
    filler: SyncLLM | None,
    options: Mapping[str, Any],
    progress: Progress | None,
    stopped: Callable[[], bool],
) -> Revised:
    """See ``LLM.revise``."""
    limits_of(llm.model).check_causal()
    head, drafted = _read_texts(
        llm, prompt, given_draft, options, seed=settings.seed, stopped=stopped
    )
    ids = (*head, *drafted)
    _check_length(llm, len(drafted), len(ids))
    began, passes = perf_counter(), llm.engine.steps
    allowed = adding_text(llm.tokenizer)
    first = max(len(head), 1)  # the very first token has no context: it stays
    model = Loop(llm, allowed, first)
    [logprobs] = model.score_tokens([ScoredText(ids, first)])
    start, model.stopped = RevisedText(ids, first, tuple(logprobs)), stopped
    plan = (
        _plan(model, allowed, settings, start)
        if filler is None
        else _plan_of_words(model, llm, filler, settings, start)
    )
    done = _Revision(plan, settings, progress or silent)
    text = done.run(start)
    to_text = partial(text_of, llm.tokenizer) if len(prompt) else llm.detokenize
    return Revised(
        model=llm.name,
        prompt_token_ids=head,
        draft_token_ids=drafted,
        token_ids=text.ids[len(head) :],
        draft=to_text(drafted),
        text=to_text(text.ids[len(head) :]),
        settings=settings._asdict(),
        surprises=tuple(done.surprises.get(i) for i in range(len(head), len(ids))),
        trials=tuple(_trial(llm, n, trial) for n, trial in enumerate(done.trials)),
        planned=done.planned,
        bits_before=to_bits(start.logprob),
        bits_after=to_bits(text.logprob),
        cost=RevisionCost(llm.engine.steps - passes, model.rows, perf_counter() - began),
    )


def _read_texts(
    llm: SyncLLM, prompt: Prompt, given_draft: Prompt | None, options: Mapping[str, Any],
    *, seed: int, stopped: Callable[[], bool],
) -> tuple[Ids, Ids]:  # fmt: skip
    """Return the prompt's and the draft's tokens; the model writes a draft where none is given."""
    head = _read(llm, "prompt", prompt, add_bos=None)
    if given_draft is None:
        return head, draft(llm, head, {"seed": seed, **options}, stopped)
    if options:
        raise InputError(
            min(options), ": leave it out, since the draft is given and nothing is drafted"
        )
    return head, _read(llm, "draft", given_draft, add_bos=False, goes_on=bool(len(prompt)))


class _Trial(NamedTuple):
    """A trial: the text before, the proposal, the chance to accept it, and the luck."""

    text: RevisedText
    proposal: Proposal
    chance: float
    luck: float


class _Plan(NamedTuple):
    """A rule, the positions that it may try, and the surprise at a position, in nats."""

    rule: RevisionRule
    cells: list[int]
    surprise: Callable[[RevisedText, int], float]


class _Revision:
    """The revision of one draft by one rule; if stopped, the trials so far are kept."""

    def __init__(self, plan: _Plan, settings: RevisionSettings, progress: Progress) -> None:
        self._plan, self._settings, self._progress = plan, settings, progress
        self.surprises: dict[int, float] = {}
        self.trials: list[_Trial] = []
        self.planned = 0

    def run(self, text: RevisedText) -> RevisedText:
        """Make all sweeps over the most surprising positions, in order; return the revised text."""
        cells = self._plan.cells
        if not cells:
            raise InputError(
                "nothing of the draft can be replaced: tokens without text stay, and so does the "
                "first of a text that nothing is before"
            )
        worst = max(1, ceil(self._settings.share * len(cells) - 1e-9))  # 0.07 · 100 is above 7
        self.planned = worst * self._settings.sweeps
        try:
            for n, i in enumerate(cells):
                if self._settings.surprise != "loop":  # ranking by the loop takes no time
                    self._progress("ranking", n, len(cells))
                self.surprises[i] = to_bits(-self._plan.surprise(text, i))
            order = sorted(cells, key=lambda i: (-self.surprises[i], i))[:worst]
            for position in order * self._settings.sweeps:
                text = self._try(text, position)
            self._progress("revising", self.planned, self.planned)
        except Stopped:
            pass
        return text

    def _try(self, text: RevisedText, position: int) -> RevisedText:
        index = len(self.trials)
        self._progress("revising", index, self.planned)
        seed = trial_seed(self._settings.seed, index)
        proposal = self._plan.rule.propose(text, position, seed)
        least = np.array([min(proposal.log_ratio, 0.0)])
        chance = 0.0 if proposal.log_ratio == -inf else float(exp(least)[0])
        luck = coin(seed, position)
        self.trials.append(_Trial(text, proposal, chance, luck))
        return text.accept(proposal) if luck < chance else text


def _plan(
    model: RevisionModel, allowed: Mask, settings: RevisionSettings, draft: RevisedText
) -> _Plan:
    places = PlaceReader(model, allowed, settings.candidates)
    rules: Mapping[str, RevisionRule] = {
        "gibbs": Gibbs(places, settings.power),
        "metropolis": Metropolis(model, allowed, settings.power, settings.span),
        "better": Better(places),
    }
    cells = [i for i in range(draft.fixed, len(draft.ids)) if allowed[draft.ids[i]]]
    surprises = {
        "loop": lambda text, i: -text.logprobs_from(i)[0],
        "leave_one_out": places.surprise,
    }
    return _Plan(rules[settings.rule], cells, surprises[settings.surprise])


def _plan_of_words(
    model: RevisionModel,
    llm: SyncLLM,
    filler: SyncLLM,
    settings: RevisionSettings,
    draft: RevisedText,
) -> _Plan:
    words = WordRule(model, llm, filler, settings.candidates, draft)
    surprises = {"loop": words.surprise, "leave_one_out": words.masked_surprise}
    return _Plan(words, words.cells(), surprises[settings.surprise])


def _trial(llm: SyncLLM, index: int, trial: _Trial) -> RevisionTrial:
    text, proposal = trial.text, trial.proposal
    at, ids = proposal.position, proposal.ids
    was = text.ids[at : proposal.end]
    texts = text_of(llm.tokenizer, was), text_of(llm.tokenizer, ids)
    return RevisionTrial(
        index, at, was, ids, *texts, text.logprob,
        text.accept(proposal).logprob, proposal.forward, proposal.reverse, trial.chance, trial.luck,
    )  # fmt: skip


def _read(
    llm: SyncLLM, name: str, prompt: Prompt, *, add_bos: bool | None, goes_on: bool = False
) -> Ids:
    """Token ids of a prompt, or of a draft that continues one."""
    checked = check_prompt(prompt, name)
    if not isinstance(checked, str):
        limits_of(llm.model).check_ids(name, checked)
        return tuple(map(int, checked))
    llm.check_length(checked)
    return tuple(llm.tokenizer.encode(checked, add_bos=add_bos, goes_on=goes_on))


def _check_length(llm: SyncLLM, drafted: int, length: int) -> None:
    if not drafted:
        raise InputError("the draft has no tokens: give one that has, or let the loop write one")
    if length > llm.model.context:
        raise InputError(
            "prompt",
            f" and draft have {length} tokens, and the context is {llm.model.context}: "
            "shorten them",
        )
