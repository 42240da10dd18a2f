"""The chain: an ordered list of named stages, declared as data, applied to one row of logits.

Knows what each stage keeps: how many survived, how much probability mass the stage
removed, and which tokens. Works on a copy: the model's logits are never touched.
This NumPy text is the definition; a faster twin must give the same token.
Refuses to know where logits come from, and what happens to the token.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import CutawayError, InputError
from cutaway.sampling.fixed_math import exp, log_sum_exp, ordered_sum, scalar_log
from cutaway.sampling.luck import gumbel
from cutaway.sampling.params import LogitsRow, Processor, SamplingParams
from cutaway.sampling.presets import PRESETS

TOP_REMOVED = 8  # how many removed tokens a report names
_LITTLE = 2.0**-20  # of a mass: a difference is too coarse to show less


class NothingAllowedError(CutawayError):
    """A constraint allows none of the tokens that are left."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One named step of the chain and the rule it applies, e.g. ``top_k {"k": 40}``."""

    name: str
    rule: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class History:
    """The tokens that penalties look at."""

    prompt_token_ids: Sequence[int] = ()
    output_token_ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Context:
    """What a stage may look at beside the logits.

    mask  a bit per token id, in words of 32 (ceil(vocab / 32),), set where the token is allowed;
          None allows all
    """

    history: History
    mask: NDArray[np.uint32] | None = None


@dataclass(slots=True)
class Candidates:
    """Who is still in: token ids, ascending, (n,) and their processed logits, (n,)."""

    ids: NDArray[np.int64]
    logits: LogitsRow

    @classmethod
    def all_of(cls, logits: LogitsRow) -> Self:
        """Every token of a row (vocab,)."""
        return cls(np.arange(len(logits), dtype=np.int64), logits)

    def best_first(self) -> NDArray[np.int64]:
        """Indices from the highest logit down; ties go to the lowest id."""
        return np.argsort(-self.logits, kind="stable")

    def find(self, token_id: int) -> int | None:
        """The index of a token that is still in; None where it is not."""
        at = int(np.searchsorted(self.ids, token_id))
        return at if at < len(self.ids) and self.ids[at] == token_id else None

    def weights(self) -> NDArray[np.float64]:
        """exp(logit - max), (n,): probabilities before they are divided by their sum."""
        wide = self.logits.astype(np.float64)
        return exp(wide - wide.max())


@dataclass(frozen=True, slots=True)
class StageReport:
    """What one stage did.

    survivors        how many are still in
    removed_mass     the probability, before the stage, of those it removed
    top_removed      the likeliest of them, at most eight
    log_sum_exp      of the survivors' logits, after the stage
    min_kept_logit   the lowest logit that survived; None where none was removed
    """

    stage: Stage
    survivors: int
    removed_mass: float
    top_removed: tuple[int, ...]
    log_sum_exp: float
    min_kept_logit: float | None


def build_chain(params: SamplingParams, *, constrained: bool = False) -> tuple[Stage, ...]:
    """The stages that these settings put in force, in the preset's order.

    constrained: rows may come with a mask of the tokens that are allowed.

    A stage that would change nothing is left out; so are temperature and filters when
    greedy, since none of them can move the argmax.
    """
    p = params
    penalties = {
        "repetition": p.repetition_penalty,
        "presence": p.presence_penalty,
        "frequency": p.frequency_penalty,
    }
    wanted: dict[str, tuple[bool, Mapping[str, Any]]] = {
        "logit_bias": (bool(p.logit_bias), {"bias": dict(sorted(p.logit_bias.items()))}),
        "penalties": (penalties != {"repetition": 1, "presence": 0, "frequency": 0}, penalties),
        "processors": (bool(p.processors), {"processors": p.processors}),
        "constraint": (constrained, {}),
    }
    if p.temperature > 0:
        wanted |= {
            "temperature": (p.temperature != 1, {"temperature": p.temperature}),
            "top_k": (p.top_k > 0, {"k": p.top_k}),
            "top_p": (p.top_p < 1, {"p": p.top_p}),
            "min_p": (p.min_p > 0, {"p": p.min_p}),
        }
    order = [name for name in PRESETS[p.preset] if name in wanted]
    return tuple(Stage(name, wanted[name][1]) for name in order if wanted[name][0])


def _bias(c: Candidates, rule: Mapping[str, Any], _: Context) -> Candidates:
    logits = c.logits.copy()
    for token_id, bias in rule["bias"].items():
        logits[c.ids == token_id] += np.float32(bias)
    return Candidates(c.ids, logits)


def _penalties(c: Candidates, rule: Mapping[str, Any], context: Context) -> Candidates:
    history = context.history
    logits = c.logits.copy()
    seen = np.isin(c.ids, [*history.prompt_token_ids, *history.output_token_ids])
    factor = np.float32(rule["repetition"])
    logits[seen] = np.where(logits[seen] > 0, logits[seen] / factor, logits[seen] * factor)
    output, counts = np.unique(np.array(history.output_token_ids, np.int64), return_counts=True)
    found = np.isin(output, c.ids)
    where = np.searchsorted(c.ids, output[found])
    logits[where] -= np.float32(rule["presence"])
    logits[where] -= np.float32(rule["frequency"]) * counts[found].astype(np.float32)
    return Candidates(c.ids, logits)


def _as_row(made: Any, shape: tuple[int, ...]) -> LogitsRow:
    try:
        with np.errstate(over="ignore"):  # a float64 beyond float32 becomes an infinity
            row: LogitsRow = np.asarray(made, np.float32)
    except (TypeError, ValueError):
        row = np.empty(0, np.float32)
    if row.shape != shape or np.isnan(row).any() or np.isposinf(row).any():
        raise InputError(
            "processors must return one logit per token, none of them NaN or plus infinity"
        )
    return row


def _processors(c: Candidates, rule: Mapping[str, Any], context: Context) -> Candidates:
    tokens = [*context.history.prompt_token_ids, *context.history.output_token_ids]
    logits = c.logits
    processors: tuple[Processor, ...] = rule["processors"]
    for processor in processors:  # each gets copies of its own, to change as it likes
        logits = _as_row(processor(list(tokens), logits.copy()), c.logits.shape)
    if np.isneginf(logits).all():
        raise InputError("processors must leave at least one token above minus infinity")
    return _keep(Candidates(c.ids, logits), ~np.isneginf(logits))


def _constraint(c: Candidates, _: Mapping[str, Any], context: Context) -> Candidates:
    if context.mask is None:
        return c
    word, bit = np.divmod(c.ids, 32)
    allowed = context.mask[word] >> bit.astype(np.uint32) & np.uint32(1)
    if not allowed.any():
        raise NothingAllowedError
    return _keep(c, allowed == 1)


def _temperature(c: Candidates, rule: Mapping[str, Any], _: Context) -> Candidates:
    return Candidates(c.ids, c.logits / np.float32(rule["temperature"]))


def _keep(c: Candidates, kept: NDArray[Any]) -> Candidates:
    return Candidates(c.ids[kept], c.logits[kept])


def _top_k(c: Candidates, rule: Mapping[str, Any], _: Context) -> Candidates:
    return _keep(c, np.sort(c.best_first()[: rule["k"]]))


def _top_p(c: Candidates, rule: Mapping[str, Any], _: Context) -> Candidates:
    weights, order = c.weights(), c.best_first()
    reached = np.cumsum(weights[order]) >= rule["p"] * ordered_sum(weights)
    count = int(np.argmax(reached)) + 1 if reached.any() else len(order)  # the crossing token stays
    return _keep(c, np.sort(order[:count]))


def _min_p(c: Candidates, rule: Mapping[str, Any], _: Context) -> Candidates:
    wide = c.logits.astype(np.float64)
    return _keep(c, wide - wide.max() >= scalar_log(rule["p"]))


_STAGES: Mapping[str, Callable[[Candidates, Mapping[str, Any], Context], Candidates]] = {
    "logit_bias": _bias,
    "penalties": _penalties,
    "processors": _processors,
    "constraint": _constraint,
    "temperature": _temperature,
    "top_k": _top_k,
    "top_p": _top_p,
    "min_p": _min_p,
}


def _report(stage: Stage, before: Candidates, after: Candidates) -> StageReport:
    gone = ~np.isin(before.ids, after.ids)
    log_sum = log_sum_exp(after.logits.astype(np.float64))
    if not gone.any():
        return StageReport(stage, len(after.ids), 0.0, (), log_sum, None)
    lost, weights = _keep(before, gone), before.weights()
    total = ordered_sum(weights)
    mass = total - ordered_sum(weights[~gone])
    if mass < total * _LITTLE:
        mass = ordered_sum(weights[gone])
    top_removed = tuple(lost.ids[lost.best_first()[:TOP_REMOVED]].tolist())
    min_kept_logit = float(after.logits.min()) + 0.0  # one zero, not two
    return StageReport(stage, len(after.ids), mass / total, top_removed, log_sum, min_kept_logit)


def states(chain: Sequence[Stage], logits: LogitsRow, context: Context) -> list[Candidates]:
    """Who is in before the first stage, and after each, of a row of finite logits (vocab,)."""
    passed = [Candidates.all_of(logits)]
    for stage in chain:
        passed.append(_STAGES[stage.name](passed[-1], stage.rule, context))
    return passed


def reports(chain: Sequence[Stage], passed: Sequence[Candidates]) -> tuple[StageReport, ...]:
    """The ledger, from who was in before the first stage and after each."""
    return tuple(map(_report, chain, passed, passed[1:]))


def apply(
    chain: Sequence[Stage], logits: LogitsRow, history: History, *, ledger: bool = False
) -> tuple[Candidates, tuple[StageReport, ...]]:
    """Run the stages over one row of finite logits (vocab,), which is left as it is."""
    passed = states(chain, logits, Context(history))
    return passed[-1], reports(chain, passed) if ledger else ()


def choose(c: Candidates, params: SamplingParams, seed: int, position: int) -> int:
    """The token id among the survivors: argmax of processed logit + luck, or greedy."""
    score = c.logits.astype(np.float64)
    if params.temperature > 0:
        score = score + gumbel(seed, position, c.ids)
    return int(c.ids[np.argmax(score)])


def logprob(logits: LogitsRow, token_id: int) -> float:
    """Natural log-probability of a token under the model's own logits (vocab,)."""
    wide = logits.astype(np.float64)
    return float(wide[token_id]) - log_sum_exp(wide)
