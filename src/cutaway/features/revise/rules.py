"""The rules of revision: their proposals, the probability of accepting them, and the settings.

Gibbs and Metropolis leave a distribution π unchanged: the model's own distribution of texts to the
power α, p^α, over texts of this length in which each token adds text. Bayes' rule gives the
distribution of one token given all other tokens. It does so over candidates: the likeliest tokens
given the tokens before.

    p(v | before, after)  is proportional to  p(v | before) · p(after | before, v)
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import fsum, inf
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from cutaway.base.arithmetic import plainly
from cutaway.base.checks import check_choice, check_int, shown
from cutaway.compute.backends import Logits
from cutaway.engine.request import randbits
from cutaway.errors import InputError
from cutaway.methods.causal import Causal, PerToken, ScoredText, all_logprobs, likeliest
from cutaway.methods.rows import Ids
from cutaway.requests.base import BaseLLM
from cutaway.requests.sync_llm import SyncLLM
from cutaway.sampling import gumbel, trial_seed
from cutaway.sampling.fixed_math import log_sum_exp
from cutaway.sampling.params import MAX_SEED


class RevisionModel(Protocol):
    """The model that a rule uses; see ``Loop``."""

    def following(self, texts: Iterable[Ids]) -> Iterator[tuple[int, Logits]]:
        """See ``Causal``."""
        ...

    def score_tokens(
        self, texts: Sequence[ScoredText], look: PerToken | None = None
    ) -> list[list[float]]:
        """See ``Causal``."""
        ...

    def draw_tokens(self, head: Ids, count: int, temperature: float, seed: int) -> Ids:
        """See ``Loop``."""
        ...


class Proposal(NamedTuple):
    """Tokens that replace a text's tokens from ``position`` to ``end``.

    logprobs   log p of all tokens of the proposed text from ``position`` on
    log_ratio  log of the probability of accepting; above 0, the proposal is always accepted
    forward, reverse  see ``RevisionTrial``
    """

    position: int
    end: int
    ids: Ids
    logprobs: tuple[float, ...]
    log_ratio: float
    forward: float | None = None
    reverse: float | None = None


@dataclass(frozen=True)
class RevisedText:
    """A text under revision.

    fixed     number of first tokens that are never replaced
    logprobs  log p of each token after the fixed ones, given all tokens before it
    """

    ids: Ids
    fixed: int
    logprobs: tuple[float, ...]

    @property
    @plainly
    def logprob(self) -> float:
        """The log-probability of all tokens after the fixed ones."""
        return fsum(self.logprobs)

    def logprobs_from(self, position: int) -> tuple[float, ...]:
        """Return log-probabilities of the tokens from ``position`` on."""
        return self.logprobs[position - self.fixed :]

    def accept(self, proposal: Proposal) -> "RevisedText":
        """Return the text with a proposal accepted."""
        at = proposal.position
        ids = (*self.ids[:at], *proposal.ids, *self.ids[proposal.end :])
        return RevisedText(ids, self.fixed, self.logprobs[: at - self.fixed] + proposal.logprobs)


# -- one token given all others --------------------------------------------------------------------


Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Place:
    """One position of a text.

    prior  log p of each token given the text before, (vocab,)
    after  maps each token that was tried to log p of each later token of the text
    """

    prior: NDArray[np.float64]
    after: dict[int, tuple[float, ...]]

    def logprobs(self, token_id: int) -> tuple[float, ...]:
        """Log-probabilities of a token that was tried, and of the tokens after it."""
        return (float(self.prior[token_id]), *self.after[token_id])

    def logprob(self, token_id: int) -> float:
        """Return the sum of the token's ``logprobs``."""
        return fsum(self.logprobs(token_id))


class PlaceReader:
    """Scores candidates for positions of a text.

    allowed     whether each token may be a candidate, (vocab,)
    candidates  number of candidates that are tried at each position
    """

    def __init__(self, model: RevisionModel, allowed: Mask, candidates: int) -> None:
        self._model, self.allowed, self._candidates = model, allowed, candidates

    def read(self, text: RevisedText, position: int) -> Place:
        """Score the candidates of a position."""
        [(_, row)] = self._model.following([text.ids[:position]])
        candidates = likeliest(row[0], self.allowed, self._candidates)
        return self.try_tokens(text, position, Place(all_logprobs(row), {}), candidates)

    def try_tokens(
        self, text: RevisedText, position: int, place: Place, token_ids: list[int]
    ) -> Place:
        """Return the place with these tokens scored, too."""
        current = text.ids[position]  # its log-probabilities are known
        untried = [v for v in token_ids if v != current and v not in place.after]
        head, rest = text.ids[:position], text.ids[position + 1 :]
        logprobs = self._model.score_tokens(
            [ScoredText((*head, v, *rest), position + 1) for v in untried]
        )
        after = dict(zip(untried, map(tuple, logprobs), strict=True))
        if current in token_ids:
            after[current] = text.logprobs_from(position + 1)
        return replace(place, after=place.after | after)

    def surprise(self, text: RevisedText, position: int) -> float:
        """Return -log p of the current token among the candidates and this token, in nats."""
        current = text.ids[position]
        place = self.try_tokens(text, position, self.read(text, position), [current])
        sums = np.array([place.logprob(v) for v in sorted(place.after)])
        return log_sum_exp(sums) - place.logprob(current)


# -- the rules -------------------------------------------------------------------------------------


class RevisionRule(Protocol):
    """A rule of revision."""

    def propose(self, text: RevisedText, position: int, seed: int) -> Proposal:
        """Propose tokens from this position on; seed: the seed of this trial alone."""
        ...


class Gibbs:
    """A rule that draws a token from its distribution given all others, and always accepts it.

    The rule tries the candidates and one other token w: the current token, if it is no candidate,
    else a token drawn from the rest with r(w) ~ p(w | before)^α. It draws among all of these, with
    w's weight divided by r(w). The draw is the exact conditional of the pair's distribution

        π(v, w) = π(v) · r(w) for a candidate v, and π(w) where v is w itself

    whose sum over w is π(v). So any number of candidates has the same target, and the rule can
    reach every token.
    """

    def __init__(self, places: PlaceReader, power: float) -> None:
        self._places, self._power = places, power

    def propose(self, text: RevisedText, position: int, seed: int) -> Proposal:
        """See ``RevisionRule``."""
        place, current = self._places.read(text, position), text.ids[position]
        other, log_r = self._other(place, current, position, trial_seed(seed, 0))
        place = self._places.try_tokens(text, position, place, [other])
        ids = np.array(sorted(place.after))
        weights = np.array([self._power * place.logprob(v) for v in ids.tolist()])
        weights -= np.where(ids == other, log_r, 0.0)
        best = int(np.argmax(weights + gumbel(seed, position, ids)))
        shares, drawn_id = weights - log_sum_exp(weights), int(ids[best])
        return Proposal(
            position, position + 1, (drawn_id,), place.logprobs(drawn_id), log_ratio=0.0,
            forward=float(shares[best]), reverse=float(shares[ids == current][0]),
        )  # fmt: skip

    def _other(self, place: Place, current: int, position: int, seed: int) -> tuple[int, float]:
        """Choose the other token, and its log r; ``current`` and 0 if no other token exists."""
        rest = np.flatnonzero(self._places.allowed)
        rest = rest[~np.isin(rest, [*place.after])]
        if not len(rest):
            return current, 0.0
        weights = self._power * place.prior[rest]
        drawn_id = int(rest[np.argmax(weights + gumbel(seed, position, rest))])
        other = drawn_id if current in place.after else current
        return other, self._power * float(place.prior[other]) - log_sum_exp(weights)


class Better:
    """A rule that takes the best candidate if it makes the text likelier. It draws nothing."""

    def __init__(self, places: PlaceReader) -> None:
        self._places = places

    def propose(self, text: RevisedText, position: int, seed: int) -> Proposal:  # noqa: ARG002
        """See ``RevisionRule``."""
        place, current = self._places.read(text, position), text.ids[position]
        best = max(sorted(place.after), key=place.logprob)
        place = self._places.try_tokens(text, position, place, [current])
        ratio = 0.0 if place.logprob(best) > place.logprob(current) else -inf
        return Proposal(position, position + 1, (best,), place.logprobs(best), ratio)


class Metropolis:
    """A rule that draws the tokens from a position on again, by the loop at temperature 1 / α.

    The rule accepts the new tokens with probability min(1, (p(new) / p(old))^α · q(old) / q(new)),
    where q is the probability of that draw (Karan & Du, "Reasoning with Sampling", arXiv
    2510.14901).

    span  number of tokens drawn at once; None: all to the end
    """

    def __init__(self, model: RevisionModel, allowed: Mask, power: float, span: int | None) -> None:
        self._model, self._allowed, self._power, self._span = model, allowed, power, span
        self._places_of = np.cumsum(allowed) - 1  # each token's index among the allowed tokens

    def propose(self, text: RevisedText, position: int, seed: int) -> Proposal:
        """See ``RevisionRule``."""
        head, end = text.ids[:position], self._end(text, position)
        ids = self._model.draw_tokens(head, end - position, 1 / self._power, seed)
        [logprobs] = self._model.score_tokens(
            [ScoredText((*head, *ids, *text.ids[end:]), position)]
        )
        q = self._model.score_tokens(
            [ScoredText((*head, *ids), position), ScoredText(text.ids[:end], position)],
            self._drawn_as,
        )
        forward, reverse = map(fsum, q)
        gain = fsum(logprobs) - fsum(text.logprobs_from(position))
        ratio = self._power * gain + reverse - forward
        return Proposal(position, end, ids, tuple(logprobs), ratio, forward, reverse)

    def _end(self, text: RevisedText, position: int) -> int:
        """The end of the span, which stops before a token that may not be replaced."""
        last = len(text.ids) if self._span is None else position + self._span
        within = range(position, min(last, len(text.ids)))
        return next((i for i in within if not self._allowed[text.ids[i]]), within.stop)

    def _drawn_as(self, logits: Logits, token_ids: Sequence[int]) -> list[float]:
        """Return log q of each token among those allowed, with the temperature stage's division."""
        return [
            self._log_share(row[self._allowed] / np.float32(1 / self._power), token_id)
            for row, token_id in zip(logits, token_ids, strict=True)
        ]

    def _log_share(self, logits: NDArray[np.float32], token_id: int) -> float:
        wide = logits.astype(np.float64)
        return float(wide[self._places_of[token_id]]) - log_sum_exp(wide)


# -- the causal model of the rules: it scores texts, and draws tokens by the engine's loop ---------


class Loop(Causal):
    """A causal model that scores and draws.

    allowed        whether each token may be drawn, (vocab,)
    prompt_tokens  how many first tokens are the prompt, which a model may read to both sides
    """

    def __init__(self, llm: SyncLLM, allowed: Mask, prompt_tokens: int) -> None:
        reads_ahead = llm.config.attention == "prefix-lm"
        super().__init__(llm, prompt_tokens=prompt_tokens if reads_ahead else 0)
        self._allowed = np.flatnonzero(allowed).tolist()

    def draw_tokens(self, head: Ids, count: int, temperature: float, seed: int) -> Ids:
        """Draw ``count`` tokens after a text."""
        prompt_tokens = self._prompt_tokens or len(head)
        forced = head[prompt_tokens:]
        stream = self._llm.stream(
            head[:prompt_tokens], forced=forced, max_tokens=len(forced) + count,
            temperature=temperature, top_p=1.0, seed=seed, allowed_token_ids=self._allowed,
            stop=(), ignore_eos=True,
        )  # fmt: skip
        with stream:
            done = stream.finish()
        self.rows += done.usage.prompt_tokens - done.usage.cached_tokens + len(done.token_ids)
        return done.token_ids[len(forced) :]


def draft(llm: SyncLLM, head: Ids, options: dict[str, Any], stopped: Callable[[], bool]) -> Ids:
    """Have the model write a draft after a prompt; if stopped, return the tokens so far."""
    with llm.stream(head, **options) as stream:
        for _ in stream:
            if stopped():
                break
        return tuple(step.token_id for step in stream.steps)


# -- the settings of a revision -------------------------------------------------------------------


RULES = ("gibbs", "metropolis", "better")
SURPRISES = ("loop", "leave_one_out")
"""A token's surprise is given the tokens before it, or all others, which takes a pass per token."""


class RevisionSettings(NamedTuple):
    """The checked settings of a revision; see ``LLM.revise``."""

    rule: str
    share: float
    sweeps: int
    candidates: int
    power: float
    span: int | None
    surprise: str
    filler: str | None
    seed: int

    @classmethod
    def check(cls, **settings: Any) -> "RevisionSettings":
        """Check the settings; InputError for a value out of range."""
        check_choice("rule", settings["rule"], RULES)
        check_choice("surprise", settings["surprise"], SURPRISES)
        for name, low, high in (("share", 0, 1), ("power", 0.01, 100)):
            settings[name] = _number(name, settings[name], low, high)
        for name, high in (("sweeps", 1000), ("candidates", 1000)):
            settings[name] = check_int(name, settings[name], 1, high)
        if settings["span"] is not None:
            settings["span"] = check_int("span", settings["span"], 1)
            if settings["rule"] != "metropolis":
                raise InputError("span", " is for the rule metropolis; the others try one token")
        filler = settings["filler"]
        if filler is not None:
            settings["filler"] = filler.name if isinstance(filler, BaseLLM) else _no_model(filler)
        if filler is not None and settings["rule"] != "better":
            raise InputError(
                "filler", " is for the rule better; the others draw from the model itself"
            )
        if settings["seed"] is None:
            settings["seed"] = randbits(32)
        settings["seed"] = check_int("seed", settings["seed"], 0, MAX_SEED)
        return cls(**settings)


def _no_model(value: Any) -> NoReturn:
    raise InputError("filler", f" must be an LLM, not {shown(value)}")


def _number(name: str, value: Any, low: float, high: float) -> float:
    """Return value as a float in [low, high]; a ``low`` of 0 is excluded."""
    if isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
        number = float(value)
        if low <= number <= high and number > 0:
            return number
    span = f"above 0 and at most {high}" if low == 0 else f"between {low} and {high}"
    raise InputError(name, f" must be a number {span}, not {shown(value)}")
