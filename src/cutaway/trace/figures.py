"""Figures that several views of a trace share, and how they are written for people."""

from collections.abc import Iterable
from math import exp, isnan, log, log10
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from cutaway.engine.events import Step
from cutaway.sampling import STAGES, Candidate
from cutaway.trace.record import Json
from cutaway.trace.steps import observed

_Nats = TypeVar("_Nats", float, NDArray[np.float64])


def probability(logprob: float) -> float:
    """exp, where rounding may have left the logarithm a hair above zero."""
    return exp(min(logprob, 0.0))


def in_bits(nats: _Nats) -> _Nats:
    """Nats, one or an array of them, in bits: 1 nat is 1.4427 bits."""
    return nats / log(2)


def bits(logprob: float) -> float:
    """Surprise: minus the logarithm to base 2; 0 where rounding left it a hair above zero."""
    return in_bits(max(-logprob, 0.0))


def chosen(step: Step) -> Candidate:
    """The candidate that is the step's token; every step has it."""
    return next(c for c in observed(step).candidates if c.id == step.token_id)


def percent(share: float | None) -> str:
    """One decimal, or for small shares at most five; a dash where there is none."""
    if share is None or isnan(share):
        return "–"
    if share >= 0.9995:
        return "100%"
    if share >= 0.001 or share == 0:
        return f"{share:.1%}"
    return f"{100 * share:.5f}".rstrip("0") + "%" if share >= 1e-7 else "<0.00001%"


def height(share: float) -> float:
    """A probability from 0.0001 to 1 on a scale of four tens, 0 to 1; below that, 0."""
    return max(1 + log10(share) / 4, 0.0) if share > 0 else 0.0


def ordinal(rank: int) -> str:
    """1st, 2nd, 3rd, 4th, … 11th, … 21st."""
    ending = "th" if rank // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(rank % 10, "th")
    return f"{rank}{ending}"


def stage_letter(stage: Json) -> str:
    """A stage's letter, by which it is told apart without colour."""
    name = str(stage["stage"])
    return STAGES[name].letter if name in STAGES else name[:1].upper()


def chain_label(chain: Iterable[Json]) -> str:
    """All of them in order: "temperature 0.7, top-p 0.9"."""
    return ", ".join(map(stage_label, chain)) or "no stages"


def stage_label(stage: Json) -> str:
    """A stage and its rule where that is one number: "top-k 40", "penalties"."""
    rule = [value for name, value in stage.items() if name != "stage"]
    name = str(stage["stage"]).replace("_", "-")
    simple = len(rule) == 1 and isinstance(rule[0], (int, float))
    return f"{name} {rule[0]:g}" if simple else name
