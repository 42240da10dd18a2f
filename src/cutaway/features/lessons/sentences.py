"""A lesson's sentences: the places that they open, and figures of a run in words."""

from math import exp
from typing import Any

from cutaway.engine.events import Step
from cutaway.sampling import Candidate
from cutaway.trace import Point, Trace


def point(text: str, step: int | None = None, *, run: int = 1, **shows: Any) -> Point:
    """Return a sentence, and the place that it opens."""
    return Point(text, run, ({} if step is None else {"step": step}) | shows)


def quote(token: str) -> str:
    """Quote a token within a sentence, without the space that most tokens begin with."""
    return f"“{token.replace(chr(10), '↵').removeprefix(' ')}”"


def token_at(trace: Trace, step: int) -> str:
    """Return the token of a step."""
    return trace.name_of(trace.steps[step].token_id)


def candidate(trace: Trace, step: int, token: str) -> Candidate:
    """Return a recorded candidate of a step. StopIteration if there is none of this name."""
    observed = trace.steps[step].observed
    assert observed is not None
    return next(c for c in observed.candidates if trace.name_of(c.id) == token)


def chance(trace: Trace, step: int, token: str) -> str:
    """Return the probability of a candidate after the chain, in words."""
    logprob = candidate(trace, step, token).final_logprob
    return "no chance" if logprob is None else percent(exp(logprob))


def own_chance(step: Step) -> str:
    """Return the probability that the model itself gave to the token of a step."""
    return percent(exp(step.logprob))


def percent(p: float) -> str:
    """Return a probability in words: 12%, 0.4%."""
    return f"{100 * p:.0f}%" if p >= 0.0995 else f"{100 * p:.1f}%" if p >= 0.001 else "<0.1%"


def tokens(trace: Trace, mark: int = -1, limit: int = 14) -> list[tuple[str, str]]:
    """Return the first tokens of a text for a figure; the one at ``mark`` stands out."""
    return [
        (token_at(trace, step.index), "hot" if step.index == mark else "")
        for step in trace.steps[:limit]
    ]


def first_difference(a: Trace, b: Trace) -> int:
    """Return the first step at which two texts differ."""
    pairs = zip(a.output_token_ids, b.output_token_ids, strict=False)
    return next(i for i, (x, y) in enumerate(pairs) if x != y)
