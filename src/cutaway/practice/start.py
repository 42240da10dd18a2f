"""Where an exercise starts: a handful of tokens with their logits, and the luck they have.

Knows the sample of the lesson, and how to take such a handful from a step of a trace.
Refuses to know what is asked about it.
"""

from dataclasses import dataclass
from math import exp

import numpy as np

from cutaway.errors import InputError
from cutaway.sampling.luck import gumbel
from cutaway.trace import Candidate, Step, Trace
from cutaway.trace.figures import printable, stage_label

TOKENS = 6  # as many as one works through by hand
_LONGEST_TEXT, _LONGEST_NAME = 60, 12


@dataclass(frozen=True, slots=True)
class Run:
    """The step of a run that a start was taken from.

    left_out   probability, under the model, of all the tokens that the start leaves out
    chain      in words
    drawn      the token that this chain drew from all tokens
    """

    step: int
    left_out: float
    chain: str
    drawn: str


@dataclass(frozen=True)
class Start:
    """The same starting point for every exercise. Tokens are told by their row, from 0.

    text       what was written so far
    names      how each token is shown
    logits     of each, float32 values
    seed, position   what luck is made of, besides the token id
    run        where it was taken from, if from a trace
    """

    text: str
    token_ids: tuple[int, ...]
    names: tuple[str, ...]
    logits: tuple[float, ...]
    seed: int
    position: int
    run: Run | None = None

    @property
    def luck(self) -> dict[int, float]:
        """The Gumbel noise of each row, as the sampler adds it."""
        noise = gumbel(self.seed, self.position, np.array(self.token_ids, np.int64))
        return dict(enumerate(noise.tolist()))


SAMPLE = Start(
    text="The cat sat on the",
    token_ids=(0, 1, 2, 3, 4, 5),
    names=("mat", "sofa", "roof", "moon", "‹eos›", "idea"),
    logits=(2.0, 1.5, 1.0, 0.0, -0.5, -1.0),
    seed=35,  # greedy, pure sampling, top-k and top-p each draw another token
    position=5,
)


def from_trace(trace: Trace, index: int | None = None) -> Start:
    """A step of a recorded run: its six likeliest tokens, the one that was drawn among them.

    index: 0 for the first new token; None takes the step that was most uncertain. InputError
    where there is no such step, or where it kept too few tokens.
    """
    step = _step(trace, index)
    kept = _handful(step)
    if len(kept) < 2:
        raise InputError(f"step {step.index} keeps 1 token: record the trace with more candidates")
    return Start(
        text=_written(trace, step),
        token_ids=tuple(candidate.id for candidate in kept),
        names=tuple(_visible(trace.name_of(candidate.id)) for candidate in kept),
        logits=tuple(candidate.logit for candidate in kept),
        seed=trace.head.seed,
        position=step.position,
        run=Run(
            step.index,
            max(0.0, 1 - sum(exp(candidate.logit - step.log_sum_exp) for candidate in kept)),
            _chain(trace),
            _visible(trace.name_of(step.own)),
        ),
    )


def _step(trace: Trace, index: int | None) -> Step:
    if not trace.steps:
        raise InputError("this trace has no steps: nothing was generated")
    if index is None:
        return max(trace.steps, key=lambda step: step.entropy)
    if not 0 <= index < len(trace.steps):
        last = len(trace.steps) - 1
        raise InputError(f"step must be one of this trace's, 0 to {last}, not {index}")
    return trace.steps[index]


def _handful(step: Step) -> list[Candidate]:
    ranked = sorted(step.candidates, key=lambda candidate: candidate.rank)
    drawn = [candidate for candidate in ranked[TOKENS:] if candidate.id == step.own]
    return [*ranked[: TOKENS - len(drawn)], *drawn]


def _chain(trace: Trace) -> str:
    stages = [stage_label(stage) for stage in trace.head.chain]
    greedy = ["greedy"] if trace.head.params.get("temperature") == 0 else []
    return " → ".join(stages + greedy) or "pure sampling"


def _written(trace: Trace, step: Step) -> str:
    new = "".join(earlier.text for earlier in trace.steps[: step.index])
    text = printable(" ".join(((trace.head.prompt or "") + new).split()))
    return text if len(text) <= _LONGEST_TEXT else "…" + text[-_LONGEST_TEXT:]


def _visible(name: str) -> str:
    """A token as one can see it, even where it is a space or nothing at all."""
    shown = printable(name.replace(" ", "␣")) or "(empty)"
    return shown if len(shown) <= _LONGEST_NAME else shown[: _LONGEST_NAME - 1] + "…"
