"""The start of an exercise: a few tokens with their logits and luck; and the draws from them.

A start comes from the sample, a step of a trace, or plain values. The engine's own sampler draws
from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.base.checks import check_int
from cutaway.base.counting import count_from_1
from cutaway.engine.events import Step
from cutaway.errors import InputError
from cutaway.sampling import History, SamplingParams, apply, build_chain, derive_seed
from cutaway.sampling.chain import StageReport, choose
from cutaway.sampling.definitions import Candidates, LogitsRow
from cutaway.sampling.fixed_math import entropy, ordered_sum
from cutaway.sampling.luck import gumbel
from cutaway.sampling.params import MAX_SEED
from cutaway.text.characters import printable
from cutaway.trace import Trace
from cutaway.trace.figures import stage_label, to_bits
from cutaway.trace.steps import observation_of

TOKENS = 6  # the most that a person works through by hand
_LONGEST_TEXT, _LONGEST_NAME = 60, 12
_MOST_TOKENS = 1 << 19  # of a vocabulary: the sampler gets a row with a place for each token
_MOST_POSITIONS = 1 << 32  # the luck's counter has 32 bits for the position
_LARGEST_LOGIT = 1e4  # far above any model's; differences must stay exact in float32


@dataclass(frozen=True, slots=True)
class RunStep:
    """The step of a run that a start comes from.

    step         from 0
    log_sum_exp  the log-sum-exp of all logits of the step, in nats
    chain        the stages of the sampling chain, in words
    own, drawn   the token that the chain drew from all tokens, and its name
    """

    step: int
    log_sum_exp: float
    chain: str
    own: int
    drawn: str


@dataclass(frozen=True)
class Start:
    """The starting point of all exercises. Other modules refer to a token by its row, from 0.

    text       the text before the step
    names      the visible names of the tokens
    logits     float32 values
    seed, position   determine the luck, together with the token id
    run        the step of the trace that the start comes from, if any
    """

    text: str
    token_ids: tuple[int, ...]
    names: tuple[str, ...]
    logits: tuple[float, ...]
    seed: int
    position: int
    run: RunStep | None = None

    @property
    def luck(self) -> dict[int, float]:
        """The Gumbel noise of each row, as the sampler adds it."""
        noise = gumbel(self.seed, self.position, np.array(self.token_ids, np.int64))
        return dict(enumerate(noise.tolist()))

    @property
    def left_out(self) -> float:
        """The model's probability of all tokens that are not in the start; 0 without a run."""
        norm = self.run.log_sum_exp if self.run else -inf
        return max(0.0, 1 - sum(exp(min(logit - norm, 0.0)) for logit in self.logits))


SAMPLE = Start(
    text="The cat sat on the",
    token_ids=(0, 1, 2, 3, 4, 5),
    names=("mat", "sofa", "roof", "moon", "‹eos›", "idea"),
    logits=(2.0, 1.5, 1.0, 0.0, -0.5, -1.0),
    seed=35,  # greedy, pure sampling, top-k and top-p each draw another token
    position=5,
)


def from_trace(trace: Trace, index: int | None = None) -> Start:
    """Make a start of a step of a recorded run: its six likeliest tokens.

    If the drawn token is not among the six, it takes the place of the last. index: 0 for the first
    new token; None takes the step of highest entropy. InputError if there is no such step, or too
    few of its tokens were recorded.
    """
    step = step_of(trace, index)
    seen = observation_of(step)
    if len(seen.candidates) < 2:
        raise InputError(
            "step",
            f" {count_from_1(step.index)} keeps 1 token: record the trace with more candidates",
        )
    return from_values(
        text=(trace.head.prompt or "") + "".join(s.text for s in trace.steps[: step.index]),
        token_ids=[c.id for c in seen.candidates],
        names=[trace.name_of(c.id) for c in seen.candidates],
        logits=[c.logit for c in seen.candidates],
        seed=trace.head.seed,
        position=step.position,
        run=RunStep(
            step.index,
            seen.log_sum_exp,
            _chain(trace),
            step.sampled_id,
            trace.name_of(step.sampled_id),
        ),
    )


def from_values(
    *,
    text: str,
    token_ids: Sequence[int],
    names: Sequence[str],
    logits: Sequence[float],
    seed: int,
    position: int,
    run: RunStep | None = None,
) -> Start:
    """Make a start of two tokens or more: the six likeliest.

    If the drawn token is not among the six, it takes the place of the last. InputError if a value
    is out of range, or the columns differ in length.
    """
    ids = _check_columns(token_ids, names, logits)
    ranked = sorted(range(len(ids)), key=lambda row: (-logits[row], ids[row]))
    rows = _handful(ranked, [ids[row] == run.own for row in ranked] if run else [])
    return Start(
        text=shorten(text),
        token_ids=tuple(ids[row] for row in rows),
        names=tuple(visible(names[row]) for row in rows),
        logits=tuple(float(np.float32(logits[row])) for row in rows),
        seed=check_int("seed", seed, 0, MAX_SEED),
        position=check_int("position", position, 0, _MOST_POSITIONS - 1),
        run=None if run is None else _checked_run(run),
    )


def _check_columns(
    token_ids: Sequence[int], names: Sequence[str], logits: Sequence[float]
) -> tuple[int, ...]:
    ids = tuple(check_int("token_ids", i, 0, _MOST_TOKENS - 1) for i in token_ids)
    if len(ids) < 2:
        raise InputError("token_ids", f" must have two tokens or more, not {len(ids)}")
    if len({*ids}) < len(ids):
        raise InputError("token_ids", " names a token twice; name each once")
    for column, name in ((names, "names"), (logits, "logits")):
        if len(column) != len(ids):
            raise InputError(name, f" must have one for each of the {len(ids)} token_ids")
    if not all(abs(logit) <= _LARGEST_LOGIT for logit in logits):  # nor is any NaN
        raise InputError("logits", f" must lie between -{_LARGEST_LOGIT:g} and {_LARGEST_LOGIT:g}")
    return ids


def _handful(ranked: Sequence[int], is_drawn: Sequence[bool]) -> list[int]:
    """Take the first ``TOKENS`` rows; if the drawn row is not among them, it replaces the last."""
    drawn_rows = [
        row for row, is_wanted in zip(ranked[TOKENS:], is_drawn[TOKENS:], strict=False) if is_wanted
    ]
    return [*ranked[: TOKENS - len(drawn_rows)], *drawn_rows]


def _checked_run(run: RunStep) -> RunStep:
    if not isfinite(run.log_sum_exp):
        raise InputError("log_sum_exp", f" must be a finite number, not {run.log_sum_exp}")
    return replace(run, step=check_int("step", run.step, 0), drawn=visible(run.drawn))


def step_of(trace: Trace, index: int | None) -> Step:
    """Return the trace's step at this index; for None, the step of highest entropy.

    InputError if the trace has no such step.
    """
    if not trace.steps:
        raise InputError("this trace has no steps: nothing was generated")
    if index is None:
        return max(trace.steps, key=lambda step: observation_of(step).entropy)
    if not 0 <= index < len(trace.steps):
        last = len(trace.steps) - 1
        raise InputError("step", f" must be one of this trace's, 0 to {last}, not {index}")
    return trace.steps[index]


def _chain(trace: Trace) -> str:
    stages = [stage_label(stage) for stage in trace.head.chain]
    greedy = ["greedy"] if trace.head.params.get("temperature") == 0 else []
    return " → ".join(stages + greedy) or "pure sampling"


def shorten(text: str) -> str:
    """The end of a text, on one line."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= _LONGEST_TEXT else "…" + line[-_LONGEST_TEXT:]


def visible(name: str) -> str:
    """A token's visible name; a space and an empty token have such a name, too."""
    shown_name = printable(name.replace(" ", "␣")) or "(empty)"
    return shown_name if len(shown_name) <= _LONGEST_NAME else shown_name[: _LONGEST_NAME - 1] + "…"


# -- the outcome of a start under some settings ----------------------------------------------------


K, P, COLD, HOT = 2, 0.9, 0.5, 2.0

WAYS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0},
    "pure sampling": {},
    f"top-k {K}": {"top_k": K},
    f"top-p {P:g}": {"top_p": P},
    f"temperature {COLD:g}": {"temperature": COLD},
    f"temperature {HOT:g}": {"temperature": HOT},
}
"""Map each method's name to its keywords of SamplingParams."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A sampling chain's result on a start.

    Each mapping has a figure for each row that survives, the likeliest row first.

    logits         after the chain, as the draw uses them
    weights        exp(logit - largest logit)
    shares         weight / total: the probabilities
    bits           surprise, -log2 of the share
    scores         logit + luck
    total          sum of the weights
    entropy        in bits
    removed_mass   the probability that the filters removed
    pick           the row that is drawn
    """

    logits: dict[int, float]
    weights: dict[int, float]
    shares: dict[int, float]
    bits: dict[int, float]
    scores: dict[int, float]
    total: float
    entropy: float
    removed_mass: float
    pick: int


def outcome(start: Start, **settings: Any) -> Outcome:
    """Apply the settings, keywords of SamplingParams; pure sampling where none is given."""
    params = _params(start, settings)
    c, ledger = _survivors(start, params)
    logits, weights = c.logits.astype(np.float64), c.weights()
    total, luck = ordered_sum(weights), start.luck
    rows = [start.token_ids.index(token_id) for token_id in c.ids]

    def arrange(figures: NDArray[np.float64]) -> dict[int, float]:
        return {rows[at]: float(figures[at]) for at in c.best_first()}

    return Outcome(
        arrange(logits),
        arrange(weights),
        arrange(weights / total),
        arrange(to_bits(ledger[-1].log_sum_exp - logits)),
        arrange(logits + [luck[row] for row in rows]),
        total,
        to_bits(entropy(logits)),
        sum(report.removed_mass for report in ledger[1:]),  # the first is the start's processor
        start.token_ids.index(choose(c, params, start.seed, start.position)),
    )


def draws(start: Start, times: int) -> tuple[int, ...]:
    """Count how often pure sampling draws each row, with the seeds of ``times`` samples."""
    params = _params(start, {})
    c, _ = _survivors(start, params)
    counts = dict.fromkeys(start.token_ids, 0)
    for n in range(times):
        counts[choose(c, params, derive_seed(start.seed, n), start.position)] += 1
    return tuple(counts.values())


def _survivors(start: Start, params: SamplingParams) -> tuple[Candidates, tuple[StageReport, ...]]:
    """The candidates after the chain, and the ledger."""
    row = np.zeros(max(start.token_ids) + 1, np.float32)  # (largest id + 1,)
    row[list(start.token_ids)] = start.logits
    return apply(build_chain(params), row, History())


def _params(start: Start, settings: dict[str, Any]) -> SamplingParams:
    """Make SamplingParams of settings and a processor that removes all tokens but the start's."""
    ids = list(start.token_ids)

    def only(_: list[int], logits: LogitsRow) -> LogitsRow:
        only_start = np.full_like(logits, -np.inf)
        only_start[ids] = logits[ids]
        return only_start

    pure: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0}
    return SamplingParams(**(pure | settings), processors=(only,))
