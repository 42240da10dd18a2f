"""The chain: an ordered list of named stages, declared as data, applied to one row of logits.

The ledger has the effect of each stage: how many tokens survived, how much probability mass it
removed, and which tokens. The model's logits are never changed. This NumPy code is the definition;
the native sampler gives the same bits.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cutaway.errors import InputError
from cutaway.sampling.definitions import Candidates, Context, History, LogitsRow
from cutaway.sampling.fixed_math import log_sum_exp, ordered_sum
from cutaway.sampling.luck import gumbel
from cutaway.sampling.params import SamplingParams
from cutaway.sampling.stages import STAGES

TOP_REMOVED = 8  # how many removed tokens a report names
_LITTLE = 2.0**-20  # a smaller share would be lost in a difference; it is summed directly


class Stage(NamedTuple):
    """One named step of the chain and the rule it applies, e.g. ``top_k {"k": 40}``."""

    name: str
    rule: Mapping[str, Any]


class StageReport(NamedTuple):
    """The effect of one stage.

    survivors        how many tokens are left
    removed_mass     the probability, before the stage, of the tokens that it removed
    top_removed      the likeliest tokens that it removed, at most eight
    log_sum_exp      of the survivors' logits, after the stage
    min_kept_logit   the lowest logit that survived; None if no token was removed
    """

    stage: Stage
    survivors: int
    removed_mass: float
    top_removed: tuple[int, ...]
    log_sum_exp: float
    min_kept_logit: float | None


def build_chain(
    params: SamplingParams, *, constrained: bool = False, scheduled: bool = False
) -> tuple[Stage, ...]:
    """Return the stages that these settings need, in order.

    constrained: draws may have a mask of allowed tokens.
    scheduled: later draws have another temperature, so that its stage is there even at 1.

    A stage that would change nothing is left out. Temperature and filters are left out at
    temperature 0, too: the draw takes the likeliest of the tokens that the other stages leave.
    """
    if constrained and "constraint" not in params.order:
        raise InputError("chain", " has no 'constraint', which this request needs: add it")
    chain = []
    for name in params.order:
        spec = STAGES[name]
        is_on = (spec.at_zero or params.temperature) and not all(map(params.is_off, spec.switches))
        is_needed = {"constraint": constrained, "temperature": scheduled}.get(name, False)
        if is_on or is_needed:
            chain.append(Stage(name, {key: getattr(params, of) for key, of in spec.rule.items()}))
    return tuple(chain)


def _report(stage: Stage, before: Candidates, after: Candidates) -> StageReport:
    is_removed = ~np.isin(before.ids, after.ids)
    log_sum = log_sum_exp(after.logits.astype(np.float64))
    if not is_removed.any():
        return StageReport(stage, len(after.ids), 0.0, (), log_sum, None)
    removed, weights = before.keep(is_removed), before.weights()
    total = ordered_sum(weights)
    mass = total - ordered_sum(weights[~is_removed])
    if mass < total * _LITTLE:
        mass = ordered_sum(weights[is_removed])
    top_removed = tuple(removed.ids[removed.best_first()[:TOP_REMOVED]].tolist())
    min_kept_logit = float(after.logits.min()) + 0.0  # one zero, not two
    return StageReport(stage, len(after.ids), mass / total, top_removed, log_sum, min_kept_logit)


def run_stages(chain: Sequence[Stage], logits: LogitsRow, context: Context) -> list[Candidates]:
    """Return the candidates before the first stage and after each, of finite logits (vocab,)."""
    states = [Candidates.all_of(logits)]
    for stage in chain:
        states.append(STAGES[stage.name].apply(states[-1], stage.rule, context))
    return states


def reports(chain: Sequence[Stage], states: Sequence[Candidates]) -> tuple[StageReport, ...]:
    """Return the ledger, from the candidates before the first stage and after each."""
    return tuple(map(_report, chain, states, states[1:]))


def apply(
    chain: Sequence[Stage], logits: LogitsRow, history: History
) -> tuple[Candidates, tuple[StageReport, ...]]:
    """Return the candidates that the stages leave of finite logits (vocab,), and the ledger."""
    states = run_stages(chain, logits, Context(history))
    return states[-1], reports(chain, states)


def choose(c: Candidates, params: SamplingParams, seed: int, place: int) -> int:
    """Return the drawn survivor's id: argmax of processed logit + luck, without luck if greedy."""
    score = c.logits.astype(np.float64)
    if params.temperature > 0:
        score = score + gumbel(seed, place, c.ids)
    return int(c.ids[np.argmax(score)])


def logprob(logits: LogitsRow, token_id: int) -> float:
    """Return the natural log-probability of a token under the model's own logits (vocab,)."""
    wide = logits.astype(np.float64)
    return float(wide[token_id]) - log_sum_exp(wide)
