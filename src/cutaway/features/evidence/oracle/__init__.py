"""The oracle: compare another engine's answers with the model, token by token.

Some engines give log-probabilities of the model alone, which do not depend on temperature and
truncation. Then the tokens show the settings: the tokens are likeliest under the settings that
drew them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from pathlib import Path
from typing import Any

from cutaway.api.llm import LLM
from cutaway.base.progress import Progress, silent
from cutaway.errors import InputError
from cutaway.features.evidence.oracle.answers import (
    EngineAnswer,
    read_answers,
    write_answers,
    write_rows,
)
from cutaway.features.evidence.oracle.hypotheses import (
    SENTENCES,
    Finding,
    OtherWeights,
    State,
    Way,
    search_temperature,
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
from cutaway.sampling import SamplingParams

__all__ = [
    "Distance",
    "EngineAnswer",
    "Finding",
    "Fit",
    "Oracle",
    "TokenReading",
    "oracle",
    "read_answers",
    "write_answers",
    "write_rows",
]  # fmt: skip

EXACT = 0.002
"""The largest mean |delta|, in nats, that the order of additions in float32 causes."""
NEAR = 0.06
"""The largest mean |delta| that arithmetic in 16 bits, or activations in 8 bits, cause."""
FAR = 0.6
"""The largest mean |delta| that a usual quantisation of the same weights causes."""
_MAX_FINDINGS = 3  # findings at once
_CHUNK = 64  # rows of logits at once, where none is kept
_ROWS_BYTES = 2**29  # of rows kept while hypotheses are compared


@dataclass(frozen=True)
class Oracle:
    """The result of comparing another engine's answers with the model.

    fit       the answers, read under the given settings; fit.kind: the kind of the answers'
              log-probabilities
    findings  other settings, prompts, tokens or weights that explain the figures better, in the
              order found; () where none do
    after     the mean |delta|, in nats, that remains under all findings
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
    def kind(self) -> Kind:
        """Which log-probabilities the other engine gave."""
        return self.fit.kind

    @property
    def importance_error(self) -> float:
        """Mean |exp(delta) - 1|, delta being the engine's log-probability minus this model's."""
        return self.fit.distance(self.kind).importance_error

    @property
    def log_mass(self) -> float:
        """The mean ln(surviving mass), in nats: truncation subtracts it from a log-probability."""
        gaps = [
            reading.final - reading.tempered
            for readings in self.fit.readings
            for reading in readings
            if reading.final is not None
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
        """Return a dict that can be written as JSON."""
        kinds = {kind: self.fit.distance(kind).to_dict() for kind in KINDS}
        return {
            "model": self.model, "settings": dict(self.settings), "verdict": [*self.verdict],
            "sentence": self.sentence(), "told": self.kind, "told_like": self.fit.same_kinds,
            "tokens": sum(map(len, self.fit.readings)), "distances": kinds,
            "importance_error": self.importance_error, "log_mass": self.log_mass,
            "mean_abs_left": self.after,
            "findings": [finding.to_dict() for finding in self.findings],
            "answers": [
                {**answer.to_dict(), "readings": [reading.to_dict() for reading in readings]}
                for answer, readings in zip(self.fit.answers, self.fit.readings, strict=True)
            ],
        }  # fmt: skip


def oracle(
    llm: LLM,
    answers: Sequence[EngineAnswer],
    *,
    other_weights: OtherWeights | None = None,
    rows: str | Path | None = None,
    progress: Progress = silent,
    **settings: Any,
) -> Oracle:
    """Compare another engine's answers with this model.

    answers   the engine's answers, with at least one log-probability
    settings  the sampler's settings that the other engine was given (temperature, top_p, preset …)
    other_weights  name -> a function that opens the same model with other weights; tried where the
              figures do not fit
    rows      a safetensors file for whole rows of logits; see ``write_rows``

    Raises InputError where there is nothing to compare, a setting is wrong, or the context is too
    small.
    """
    if not any(p is not None for answer in answers for p in answer.logprobs):
        raise InputError("the other engine told no log-probabilities: ask it for them")
    params = check_settings(llm, settings)
    if rows is not None:
        write_rows(rows, llm, answers)
    fit = Fit(tuple(answers), tuple(_read_all(llm, answers, params, progress)))
    findings, remaining = [*_other_prompts(llm, answers)], fit.best
    if remaining > EXACT or fit.kind == "raw":
        other_findings, remaining = _search(
            State.run(llm, _take_first(llm, answers), params), other_weights or {}, progress
        )
        findings += other_findings
    return Oracle(llm.name, settings, fit, tuple(findings), remaining)


def _other_prompts(llm: LLM, answers: Sequence[EngineAnswer]) -> Iterator[Finding]:
    """Find the first answer to a prompt with other ids than this model's template gives."""
    for n, answer in enumerate(answers):
        if (
            answer.messages
            and (template_ids := tuple(llm.chat_ids(answer.messages))) != answer.prompt_token_ids
        ):
            pairs = enumerate(zip(answer.prompt_token_ids, template_ids, strict=False))
            shorter = min(len(template_ids), len(answer.prompt_token_ids))
            at = next((at for at, (a, b) in pairs if a != b), shorter)
            figures = {"answer": n, "token": at, "read": len(answer.prompt_token_ids)}
            words = f"its prompt differs from this model's template from token {at} on"
            yield Finding("template", words, {**figures, "of_the_template": len(template_ids)})
            return


def _read_all(
    llm: LLM, answers: Sequence[EngineAnswer], params: SamplingParams, progress: Progress
) -> Iterator[tuple[TokenReading, ...]]:
    """Read every token of every answer, without keeping the rows."""
    done, total = 0, sum(len(answer.token_ids) for answer in answers)
    for answer in answers:
        readings: list[TokenReading] = []
        for first in range(0, len(answer.token_ids), _CHUNK):
            readings += read(rows_of(llm, answer, first, _CHUNK), answer, params, first)
            progress("reading", done + len(readings), total)
        done += len(readings)
        yield tuple(readings)


def _take_first(llm: LLM, answers: Sequence[EngineAnswer]) -> list[EngineAnswer]:
    """Return the first answers, and the first tokens of each, whose rows fit into memory."""
    room = _ROWS_BYTES // (4 * llm.tokenizer.vocab_size)
    first_answers = answers[: max(room // 32, 1)]
    token_count = max(room // len(first_answers), 1)
    return [
        replace(
            answer, token_ids=answer.token_ids[:token_count], logprobs=answer.logprobs[:token_count]
        )
        for answer in first_answers
    ]


def _search(
    state: State, other_weights: OtherWeights, progress: Progress
) -> tuple[list[Finding], float]:
    """Adopt the best hypothesis until none fits clearly better.

    Returns the findings, and the mean |delta| that remains.
    """
    findings: list[Finding] = []
    tries = 0
    while state.fit.best > EXACT and len(findings) < _MAX_FINDINGS:
        best: Way | None = None
        for way in ways(state, other_weights):
            progress("comparing accounts", tries := tries + 1, tries + 1)
            if _is_better(way, state) and (best is None or way[0].fit.best < best[0].fit.best):
                best = way
        if best is None or best[1].name in {finding.name for finding in findings}:
            break
        findings.append(best[1])
        if best[1].name == "quantisation":
            return findings, best[0].fit.best  # its LLM is closed
        state = best[0]
    left = state.fit.best
    findings += _explain_rest(left)
    if not findings and state.fit.kind == "raw":
        findings += find_other_settings(state)
    return findings, left


def _is_better(way: Way, state: State) -> bool:
    other, finding = way
    new, old = other.fit.sizes(other.fit.kind), state.fit.sizes(state.fit.kind)
    if finding.name == "token":  # one token may be the whole difference
        return sum(new) < sum(old)
    return clearly_less(new, old)


def _explain_rest(left: float) -> Iterator[Finding]:
    figures = {"mean_abs": left}
    if left > FAR:
        yield Finding("other", f"a token is off by {left:.2f} nats on average", figures)
    elif left > NEAR:
        words = f"a token is off by {left:.2f} nats on average, and no other setting explains it"
        yield Finding("quantisation", words, figures)


def distances(result: Oracle) -> dict[Kind, Distance]:
    """Return the distance for each kind of log-probability."""
    return {kind: result.fit.distance(kind) for kind in KINDS}


def worst(result: Oracle, count: int) -> list[tuple[int, int, float, TokenReading, float]]:
    """Find the tokens with the largest |delta|: answer, token, logprob given, reading, delta."""
    tokens = []
    for n, (answer, readings) in enumerate(
        zip(result.fit.answers, result.fit.readings, strict=True)
    ):
        for at, (logprob, reading) in enumerate(zip(answer.logprobs, readings, strict=True)):
            model_logprob = reading.logprob(result.kind)
            if logprob is not None:
                tokens.append(
                    (
                        n,
                        at,
                        logprob,
                        reading,
                        float("inf") if model_logprob is None else logprob - model_logprob,
                    )
                )
    return sorted(tokens, key=lambda token: -abs(token[4]))[:count]


# -- whether the tokens were drawn with these settings ---------------------------------------------


_CERTAIN = 7.7  # nats of log-likelihood ratio, where z is about 4
_GAP = 0.1  # nats: at temperature 0 a token this far below the likeliest was no tie
_OFTEN = 0.02  # of the tokens: rounding removes single ones


def find_other_settings(state: State) -> Iterator[Finding]:
    """Yield findings of other settings under which the tokens seem to have been drawn."""
    readings = [reading for answer_readings in state.fit.readings for reading in answer_readings]
    given_temperature = state.params.temperature
    if given_temperature == 0:
        not_likeliest = [reading for reading in readings if reading.rank > 1]
        far = sum(gap > _GAP for gap in _gaps(state)) if not_likeliest else 0
        if far:
            figures = {"tokens": len(readings), "not_the_likeliest": len(not_likeliest), "far": far}
            yield Finding("temperature", f"{far} tokens are no greedy choice", figures)
        return
    removed = sum(reading.final is None for reading in readings)
    if removed > max(1, _OFTEN * len(readings)):
        figures = {"tokens": len(readings), "removed": removed}
        words = f"the chain removes {removed} of {len(readings)} tokens"
        yield Finding("truncation", words, figures)
    if removed == 0 and min(reading.mass for reading in readings) < 1:
        return  # a truncation that keeps all tokens makes likely tokens likelier at any temperature

    def surprise(temperature: float) -> float:
        """Minus the log-likelihood of all tokens, in nats."""
        fit = state.with_settings(replace(state.params, temperature=temperature)).fit
        return -fsum(
            reading.tempered for answer_readings in fit.readings for reading in answer_readings
        )

    likeliest = search_temperature(surprise)
    gain = surprise(given_temperature) - surprise(likeliest)
    if gain > _CERTAIN:
        words = f"the tokens are likeliest at {likeliest:.2g}, not at {given_temperature:g}"
        evidence = {"temperature": likeliest, "log_likelihood_ratio": gain}
        yield Finding("temperature", words, evidence)


def _gaps(state: State) -> Iterator[float]:
    """Yield how far each token's logit is below the largest of its row, in nats."""
    for answer, rows in zip(state.answers, state.rows, strict=True):
        for row, token_id in zip(rows, answer.token_ids, strict=True):
            yield float(row.max() - row[token_id])
