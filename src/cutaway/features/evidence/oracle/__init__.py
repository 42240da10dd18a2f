"""The oracle: another engine's answers held against the model, token by token.

Where the figures do not tell with which settings the tokens were drawn, their likelihood does: an
engine that tells its model's own log-probabilities tells nothing of temperature and truncation,
but the tokens themselves are likelier under the settings that they were drawn with.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from pathlib import Path
from typing import Any

from cutaway.api.llm import LLM
from cutaway.base.progress import Progress, silent
from cutaway.errors import InputError
from cutaway.features.evidence.oracle.hypotheses import (
    SENTENCES,
    Finding,
    Others,
    State,
    Way,
    searched,
    ways,
)
from cutaway.features.evidence.oracle.reading import (
    KINDS,
    Distance,
    Fit,
    Kind,
    TokenReading,
    check_settings,
    clearly_less,
    read,
    rows_of,
)
from cutaway.features.evidence.oracle.told import Told, read_told, write_rows, write_told
from cutaway.sampling import SamplingParams

__all__ = [
    "Distance",
    "Finding",
    "Fit",
    "Oracle",
    "TokenReading",
    "Told",
    "oracle",
    "read_told",
    "write_rows",
    "write_told",
]  # fmt: skip

EXACT = 0.002
"""Mean |delta|, in nats: no more than the order of additions in float32 makes."""
NEAR = 0.06
"""As much as arithmetic in 16 bits, or activations in 8 bits, make."""
FAR = 0.6
"""More than any usual quantisation of the same weights makes."""
_MOST = 3  # findings at once
_CHUNK = 64  # rows of logits at once, where none is kept
_ROWS_BYTES = 2**29  # of rows that are kept while accounts are compared


@dataclass(frozen=True)
class Oracle:
    """What was found of another engine's answers.

    fit       the answers read as they were said to be made; fit.kind is what the engine told
    findings  what explains the figures better, one after the other; () where nothing does
    after     the mean |delta| that is left, in nats, under all findings
    """

    model: str
    settings: Mapping[str, Any]
    fit: Fit
    findings: tuple[Finding, ...]
    after: float

    @property
    def verdict(self) -> tuple[str, ...]:
        """Names of the findings; ("same",) where there are none."""
        return tuple(dict.fromkeys(f.name for f in self.findings)) or ("same",)

    @property
    def told(self) -> Kind:
        """Which log-probabilities the other engine told."""
        return self.fit.kind

    @property
    def importance_error(self) -> float:
        """Mean |exp(delta) - 1|, delta being what was told minus the same of this model."""
        return self.fit.distance(self.told).importance_error

    @property
    def log_mass(self) -> float:
        """The mean of ln(surviving mass), in nats: what truncation adds to a log-probability."""
        gaps = [
            one.final - one.tempered
            for each in self.fit.readings
            for one in each
            if one.final is not None
        ]
        return -fsum(gaps) / len(gaps) if gaps else 0.0

    def sentence(self) -> str:
        """The verdict in words."""
        if self.findings:
            return "; ".join(map(str, self.findings))
        if self.after <= EXACT:
            return f"{SENTENCES['same']}, to the rounding of float32"
        return (
            f"{SENTENCES['same']}, to what arithmetic in 16 bits or 8-bit activations round "
            "(weights of 8 bits cannot be excluded: --others compares)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        kinds = {kind: self.fit.distance(kind).to_dict() for kind in KINDS}
        return {
            "model": self.model, "settings": dict(self.settings), "verdict": [*self.verdict],
            "sentence": self.sentence(), "told": self.told, "told_like": self.fit.same_kinds,
            "tokens": sum(map(len, self.fit.readings)), "distances": kinds,
            "importance_error": self.importance_error, "log_mass": self.log_mass,
            "mean_abs_left": self.after,
            "findings": [finding.to_dict() for finding in self.findings],
            "answers": [
                {**told.to_dict(), "readings": [one.to_dict() for one in read]}
                for told, read in zip(self.fit.answers, self.fit.readings, strict=True)
            ],
        }  # fmt: skip


def oracle(
    llm: LLM,
    answers: Sequence[Told],
    *,
    others: Others | None = None,
    rows: str | Path | None = None,
    progress: Progress = silent,
    **settings: Any,
) -> Oracle:
    """Hold another engine's answers against this model.

    answers   what it told; at least one log-probability
    settings  of the sampler, as the other engine was told them (temperature, top_p, preset …)
    others    name -> opens the same model with other weights, tried where nothing else explains
              the figures
    rows      a safetensors file for whole rows of logits; see ``write_rows``

    Raises InputError where there is nothing to compare, a setting is wrong, or the context too
    small.
    """
    if not any(p is not None for told in answers for p in told.logprobs):
        raise InputError("the other engine told no log-probabilities: ask it for them")
    params = check_settings(llm, settings)
    if rows is not None:
        write_rows(rows, llm, answers)
    fit = Fit(tuple(answers), tuple(_read_all(llm, answers, params, progress)))
    findings, left = [*_other_prompts(llm, answers)], fit.best
    if left > EXACT or fit.kind == "raw":
        more, left = _search(State.of(llm, _some(llm, answers), params), others or {}, progress)
        findings += more
    return Oracle(llm.name, settings, fit, tuple(findings), left)


def _other_prompts(llm: LLM, answers: Sequence[Told]) -> Iterator[Finding]:
    """Where an engine told which tokens it read of a conversation, and the template has others."""
    for n, told in enumerate(answers):
        if told.messages and (own := tuple(llm.chat_ids(told.messages))) != told.prompt_token_ids:
            pairs = enumerate(zip(told.prompt_token_ids, own, strict=False))
            shorter = min(len(own), len(told.prompt_token_ids))
            at = next((at for at, (a, b) in pairs if a != b), shorter)
            figures = {"answer": n, "token": at, "read": len(told.prompt_token_ids)}
            words = f"its prompt differs from this model's template from token {at} on"
            yield Finding("template", words, {**figures, "of_the_template": len(own)})
            return


def _read_all(
    llm: LLM, answers: Sequence[Told], params: SamplingParams, progress: Progress
) -> Iterator[tuple[TokenReading, ...]]:
    """Every token of every answer, without keeping the rows."""
    done, total = 0, sum(len(told.token_ids) for told in answers)
    for told in answers:
        found: list[TokenReading] = []
        for first in range(0, len(told.token_ids), _CHUNK):
            found += read(rows_of(llm, told, first, _CHUNK), told, params, first)
            progress("reading", done + len(found), total)
        done += len(found)
        yield tuple(found)


def _some(llm: LLM, answers: Sequence[Told]) -> list[Told]:
    """The first answers, and of each the first tokens, so that their rows fit into memory."""
    room = _ROWS_BYTES // (4 * llm.tokenizer.vocab_size)
    some = answers[: max(room // 32, 1)]
    each = max(room // len(some), 1)
    return [
        replace(told, token_ids=told.token_ids[:each], logprobs=told.logprobs[:each])
        for told in some
    ]


def _search(state: State, others: Others, progress: Progress) -> tuple[list[Finding], float]:
    """The accounts that fit clearly better, best first, until none does."""
    found: list[Finding] = []
    tried = 0
    while state.fit.best > EXACT and len(found) < _MOST:
        best: Way | None = None
        for way in ways(state, others):
            progress("comparing accounts", tried := tried + 1, tried + 1)
            if _is_better(way, state) and (best is None or way[0].fit.best < best[0].fit.best):
                best = way
        if best is None or best[1].name in {finding.name for finding in found}:
            break
        found.append(best[1])
        if best[1].name == "quantisation":
            return found, best[0].fit.best  # its LLM is closed
        state = best[0]
    left = state.fit.best
    found += _rest(left)
    if not found and state.fit.kind == "raw":
        found += drawn_otherwise(state)
    return found, left


def _is_better(way: Way, state: State) -> bool:
    other, finding = way
    new, old = other.fit.sizes(other.fit.kind), state.fit.sizes(state.fit.kind)
    if finding.name == "token":  # one token may be all of it
        return sum(new) < sum(old)
    return clearly_less(new, old)


def _rest(left: float) -> Iterator[Finding]:
    figures = {"mean_abs": left}
    if left > FAR:
        yield Finding("other", f"a token is off by {left:.2f} nats on average", figures)
    elif left > NEAR:
        words = f"a token is off by {left:.2f} nats on average, and no other setting explains it"
        yield Finding("quantisation", words, figures)


def distances(result: Oracle) -> dict[Kind, Distance]:
    """Of each kind."""
    return {kind: result.fit.distance(kind) for kind in KINDS}


def worst(result: Oracle, count: int) -> list[tuple[int, int, float, TokenReading, float]]:
    """Tokens with the largest |delta|: answer, token, told, reading, delta."""
    found = []
    for n, (told, reading) in enumerate(zip(result.fit.answers, result.fit.readings, strict=True)):
        for at, (said, one) in enumerate(zip(told.logprobs, reading, strict=True)):
            own = one.logprob(result.told)
            if said is not None:
                found.append((n, at, said, one, float("inf") if own is None else said - own))
    return sorted(found, key=lambda each: -abs(each[4]))[:count]


# -- whether the tokens were drawn with these settings ---------------------------------------------


_CERTAIN = 7.7  # nats: a ratio of likelihoods whose square root has 4 as its z
_GAP = 0.1  # nats: at temperature 0 a token this far below the likeliest was no tie
_OFTEN = 0.02  # of the tokens: rounding removes single ones


def drawn_otherwise(state: State) -> Iterator[Finding]:
    """What the tokens say of the settings that they were drawn with."""
    readings = [one for each in state.fit.readings for one in each]
    said = state.params.temperature
    if said == 0:
        others = [one for one in readings if one.rank > 1]
        far = sum(gap > _GAP for gap in _gaps(state)) if others else 0
        if far:
            figures = {"tokens": len(readings), "not_the_likeliest": len(others), "far": far}
            yield Finding("temperature", f"{far} tokens are no greedy choice", figures)
        return
    removed = sum(one.final is None for one in readings)
    if removed > max(1, _OFTEN * len(readings)):
        figures = {"tokens": len(readings), "removed": removed}
        words = f"the chain removes {removed} of {len(readings)} tokens"
        yield Finding("truncation", words, figures)
    if removed == 0 and min(one.mass for one in readings) < 1:
        return  # a truncation that keeps them all makes likely tokens likelier at any temperature

    def surprise(temperature: float) -> float:
        """Minus the log-likelihood of all tokens, in nats."""
        fit = state.under(replace(state.params, temperature=temperature)).fit
        return -fsum(one.tempered for each in fit.readings for one in each)

    best = searched(surprise)
    gain = surprise(said) - surprise(best)
    if gain > _CERTAIN:
        words = f"the tokens are likeliest at {best:.2g}, not at {said:g}"
        so = {"temperature": best, "log_likelihood_ratio": gain}
        yield Finding("temperature", words, so)


def _gaps(state: State) -> Iterator[float]:
    """How far each token is below the likeliest in its place, in nats."""
    for told, rows in zip(state.answers, state.rows, strict=True):
        for row, token_id in zip(rows, told.token_ids, strict=True):
            yield float(row.max() - row[token_id])
