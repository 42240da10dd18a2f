"""Figures and phrases of a trace for people, which several views and the page share."""

from collections.abc import Iterable
from math import exp, isnan, log, log10
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from cutaway.engine.events import Step
from cutaway.sampling import STAGES, Candidate
from cutaway.trace.record import Json
from cutaway.trace.steps import observation_of

_Nats = TypeVar("_Nats", float, NDArray[np.float64])


def probability(logprob: float) -> float:
    """Return exp(logprob), at most 1: rounding may leave a log-probability just above zero."""
    return exp(min(logprob, 0.0))


def to_bits(nats: _Nats) -> _Nats:
    """Convert nats, a number or an array, to bits: 1 nat is 1.4427 bits."""
    return nats / log(2)


def bits(logprob: float) -> float:
    """Return the surprise in bits, -log2 of the probability; never below 0."""
    return to_bits(max(-logprob, 0.0))


def chosen_candidate(step: Step) -> Candidate:
    """Return the candidate of the step's token, which every observed step has."""
    return next(c for c in observation_of(step).candidates if c.id == step.token_id)


def final_logprob(step: Step, c: Candidate) -> float | None:
    """Return the log-probability with which a candidate was drawn; None if it could not be.

    At temperature 0, where a candidate has no luck, the likeliest survivor is taken for certain.
    """
    if c.luck is None and c.final_logprob is not None:
        return 0.0 if c.id == step.sampled_id else None
    return c.final_logprob


def final_probability(step: Step, c: Candidate) -> float | None:
    """Return the probability with which a candidate was drawn; None if a stage removed it."""
    if c.final_logprob is None:
        return None
    logprob = final_logprob(step, c)
    return 0.0 if logprob is None else probability(logprob)


def percent(share: float | None) -> str:
    """Format a share as a percentage, with more decimals if it is small; a dash for None or NaN."""
    if share is None or isnan(share):
        return "–"
    if share >= 0.9995:
        return "100%"
    if share >= 0.001 or share == 0:
        return f"{share:.1%}"
    return f"{100 * share:.5f}".rstrip("0") + "%" if share >= 1e-7 else "<0.00001%"


def height(share: float) -> float:
    """Map a probability to a height on a logarithmic scale: 1 to 1, and 0.0001 or less to 0."""
    return max(1 + log10(share) / 4, 0.0) if share > 0 else 0.0


def ordinal(rank: int) -> str:
    """Return 1st, 2nd, 3rd, 4th, … 11th, … 21st."""
    ending = "th" if rank // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(rank % 10, "th")
    return f"{rank}{ending}"


def stage_letter(stage: Json) -> str:
    """Return a stage's letter, which identifies the stage without colour."""
    name = str(stage["stage"])
    return STAGES[name].letter if name in STAGES else name[:1].upper()


def chain_label(chain: Iterable[Json]) -> str:
    """Return the labels of all stages in order: "temperature 0.7, top-p 0.9"."""
    return ", ".join(map(stage_label, chain)) or "no stages"


def stage_label(stage: Json) -> str:
    """Return a stage's name, and its rule if that is a single number: "top-k 40", "penalties"."""
    rule = [value for name, value in stage.items() if name != "stage"]
    name = str(stage["stage"]).replace("_", "-")
    simple = len(rule) == 1 and isinstance(rule[0], (int, float))
    return f"{name} {rule[0]:g}" if simple else name


# -- phrases, with places for figures ----------------------------------------------------------

_PHRASES = {
    # The fate of the end token at a step: "the end token was chosen".
    "drawn": "was chosen",
    "forced": "was not in play, since the token was forced",
    "lost": "survived and lost the draw",
    "outranked": "was not the likeliest",
    "removed": "was removed by {stage}",
    # One step: how likely the end token was, and its fate.
    "status": "step {step}: the end token was the {rank} with {share}{changed}{became}",
    "likeliest": "likeliest",
    "nth likeliest": "{nth} likeliest",
    "changed": " (bias and penalties added {delta})",
    "it was drawn": ", and was chosen",
    "drawn and passed": ", and was chosen; the text went on past it",
    "given": "; the token of this step was given, not chosen",
    "given instead": "; another token was given, or it would have been chosen",
    "a stage removed it": "; {stage} removed it",
    "lost the draw": ", and survived the chain with {share}; it lost the draw by {margin}",
    "outranked by": "; after the chain another token was the likeliest, by {margin}",
    # The condition that ended the text.
    "unfinished": "The record has no end: the run was cut short, or is still going on.",
    "ended": "It ended because {reason}.",
    "end_token": "the end token {name} was {came}",
    "stop_token": "the stop token {name} was {came}",
    "stop_string": "the text reached the stop string {name}",
    "max_tokens": "it had {tokens}, which is max_tokens",
    "context_full": "the context was full after {tokens}",
    "constraint": "the constraint allows nothing but the end after {tokens}",
    "scored": "its prompt was scored, and nothing was to be written",
    "aborted": "it was aborted after {tokens}",
    "error": "of an error after {tokens}: {error}",
    "one token": "1 token",
    "many tokens": "{count} tokens",
    "reached": "reached",
    # The effect of a constraint: at one step, and on the whole text.
    "grammar": "the grammar",
    "no grammar": "the constraint",
    "budget": "the thinking budget",
    "wanted": "the model wanted “{wanted}”; {rule} left “{left}”",
    "bent": (
        "The sum of −ln Z, where Z is the probability that {rule} left, is {nats} nats; most of it "
        "at step {step}{at}."
    ),
    "bent nothing": (
        "The sum of −ln Z, where Z is the probability that {rule} left, is 0: it removed nothing."
    ),
    "differed": "At {count} of {steps} steps the model wanted another token.",
    # The inside of a step: its proof, and the limits of each figure.
    "same row": "recomputed bit for bit: row hash {row}",
    "other row": "row hash {row} is not the recorded one: another arithmetic computed it",
    "logit above": (
        "At step {step} the logit of {token} was {total} above that of {other}: {parts}; {count} "
        "others {rest}. {proof}."
    ),
    "logit below": (
        "At step {step} the logit of {token} was {total} below that of {other}: {parts}; {count} "
        "others {rest}. {proof}."
    ),
    "attention is no effect": (
        "Attention is not effect: a token with much attention may matter nothing, one with little "
        "most."
    ),
    "attribution is no effect": (
        "Attribution is not the effect of an ablation: later layers may erase it, or make up for "
        "what is ablated."
    ),
    "not said": ("Only the last layer feeds the output head: ignore guesses until they settle."),
    "not because": (
        "This is an effect, not a cause: repeated words mask each other, and the text becomes odd."
    ),
    "drawn at": "chosen at step {step}",
    "given at": "given at step {step}",
}


def phrase(name: str, /, **figures: object) -> str:
    """Return the phrase of this name, with its figures."""
    return _PHRASES[name].format(**figures)


def phrases() -> dict[str, str]:
    """Return all phrases by name, with each place for a figure as "{name}"."""
    return dict(_PHRASES)
