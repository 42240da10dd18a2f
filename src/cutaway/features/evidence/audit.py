"""Audit a text: could this model, with these settings, have drawn it by the luck of this seed?

Knows the luck of a seed and what the chain leaves of each row. A text drawn by this luck matches
the luck's token at every position. A text written without this luck matches only by chance,
with the probability of the text's token. So the number of matches is a sum of independent coins of
known probabilities, and its tail is the false-alarm rate, without any approximation.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import exp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.api.llm import LLM
from cutaway.base.counting import count_from_1
from cutaway.engine import Step
from cutaway.errors import InputError
from cutaway.requests.base import Prompt
from cutaway.rerun.request import UNSTOPPED

_TOP = 1000
"""How many of the likeliest tokens are ranked by log-probability + luck."""
ALARM = 1e-6
"""A rate of false alarms below this is called evidence."""


@dataclass(frozen=True, slots=True)
class AuditedToken:
    """One token of the text.

    drawn_id     the token that this luck draws here
    probability  the probability of the text's token after the chain; 0.0 where the chain removes
                 the token
    rank         the rank of the text's token by log-probability + luck, where 1 is the drawn
                 token. Only those of the 1,000 likeliest tokens that survive the chain are ranked;
                 None where the text's token is not ranked
    """

    token_id: int
    drawn_id: int
    probability: float
    rank: int | None

    @property
    def matches(self) -> bool:
        """Whether the luck draws this token."""
        return self.token_id == self.drawn_id


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit of a text under a seed.

    false_alarm  the probability of as many matches or more, had the text been written without
                 this luck
    """

    tokens: tuple[AuditedToken, ...]
    false_alarm: float

    @property
    def matches(self) -> int:
        """How many of the text's tokens are those that this luck draws."""
        return sum(token.matches for token in self.tokens)

    @property
    def by_chance(self) -> float:
        """The number of matches to expect of a text written without this luck."""
        return sum(token.probability for token in self.tokens)

    @property
    def verdict(self) -> str:
        """The finding in one sentence."""
        n, matches = len(self.tokens), self.matches
        if any(token.rank is None for token in self.tokens):
            first = next(i for i, token in enumerate(self.tokens) if token.rank is None)
            removed = (
                f"the chain removes token {count_from_1(first)}: other settings, or another model"
            )
        else:
            removed = ""
        if self.false_alarm >= ALARM:
            return removed or "this luck is not shown: matches are no more than by chance, or few"
        if matches == n:
            return "every token is the one that this luck draws"
        but = f"this luck, and {n - matches} of {n} tokens by other arithmetic, settings or hands"
        return f"{but}; {removed}" if removed else but

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that can be written as JSON."""
        return {
            "tokens": [asdict(token) | {"matches": token.matches} for token in self.tokens],
            "matches": self.matches, "of": len(self.tokens), "by_chance": self.by_chance,
            "false_alarm": self.false_alarm, "verdict": self.verdict,
        }  # fmt: skip


def audit(llm: LLM, prompt: Prompt, text: Prompt, seed: int, /, **settings: Any) -> Audit:
    """Compare a text with the luck of a seed, under this model and these settings.

    text: token ids, or a text, which this model's tokenizer then encodes
    settings: those of ``LLM.generate``. InputError where a setting is wrong, or the text has no
    tokens.
    """
    ids = llm.tokenizer.encode(text, goes_on=True) if isinstance(text, str) else list(text)
    if not ids:
        raise InputError("text", ": there are no tokens to audit")
    if not settings.get("temperature", 1.0):
        raise InputError("temperature", ": a greedy text has no luck to audit; it must be above 0")
    observe = {"candidates": _TOP, **UNSTOPPED, "forced": ids, "max_tokens": len(ids)}
    with llm.stream(prompt, **settings | observe, seed=seed) as stream:
        tokens = tuple(_audit_step(step) for step in stream)
    if len(tokens) != len(ids):
        raise InputError("text", f": it ends after token {len(tokens)} under these settings")
    return Audit(
        tokens, tail([token.probability for token in tokens], sum(t.matches for t in tokens))
    )


def tail(probabilities: Sequence[float], count: int) -> float:
    """P(at least ``count`` heads) of independent coins with these probabilities of heads, exact but
    for rounding: all terms are positive, so a small tail keeps its digits."""
    mass: NDArray[np.float64] = np.zeros(len(probabilities) + 1)
    mass[0] = 1.0
    for p in probabilities:
        mass[1:] = mass[1:] * (1 - p) + mass[:-1] * p
        mass[0] *= 1 - p
    return min(1.0, float(mass[count:].sum()))


def _audit_step(step: Step) -> AuditedToken:
    assert step.observed is not None
    scores = {
        candidate.id: candidate.final_logprob + (candidate.luck or 0.0)
        for candidate in step.observed.candidates
        if candidate.final_logprob is not None
    }
    score, probability = scores.get(step.token_id), step.observed.final_logprob
    rank = None if score is None else 1 + sum(value > score for value in scores.values())
    share = 0.0 if probability is None else min(1.0, exp(probability))
    return AuditedToken(step.token_id, step.sampled_id, share, rank)
