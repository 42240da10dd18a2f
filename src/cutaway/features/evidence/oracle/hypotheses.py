"""What explains the figures better than what was said: each way read, and compared by |delta|."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import exp, log

from cutaway.api.llm import LLM
from cutaway.compute.backends import Logits
from cutaway.errors import InputError
from cutaway.features.evidence.oracle.findings import Finding, Name
from cutaway.features.evidence.oracle.fit import Fit
from cutaway.features.evidence.oracle.prompts import variants
from cutaway.features.evidence.oracle.reading import read, rows_of
from cutaway.features.evidence.oracle.tokens import restored
from cutaway.features.evidence.oracle.told import Told
from cutaway.sampling import PRESETS, SamplingParams

Others = Mapping[str, Callable[[], LLM]]
"""Name -> opens the same model with other weights."""

_TEMPERATURES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
_HALVINGS = 6  # of the step beside the best of these


@dataclass(frozen=True, slots=True)
class State:
    """A complete account of how the answers came to be, and how well it fits them.

    rows  of each answer, (tokens, vocab)
    """

    llm: LLM
    params: SamplingParams
    rows: tuple[Logits, ...]
    fit: Fit

    @classmethod
    def of(cls, llm: LLM, answers: Sequence[Told], params: SamplingParams) -> "State":
        """Run the model over all answers."""
        rows = tuple(rows_of(llm, told) for told in answers)
        return cls(llm, params, rows, _fit(rows, answers, params))

    def under(self, params: SamplingParams) -> "State":
        """The same rows under other settings."""
        return State(self.llm, params, self.rows, _fit(self.rows, self.answers, params))

    @property
    def answers(self) -> tuple[Told, ...]:
        """As they were read."""
        return self.fit.answers


def _fit(rows: Sequence[Logits], answers: Sequence[Told], params: SamplingParams) -> Fit:
    pairs = zip(rows, answers, strict=True)
    return Fit(tuple(answers), tuple(tuple(read(r, told, params)) for r, told in pairs))


Way = tuple[State, Finding]
"""Another account, and what it says."""


def ways(state: State, others: Others) -> Iterator[Way]:
    """Each other account. An LLM of ``others`` is closed when the next one is asked for."""
    yield from _prompts(state)
    yield from _tokens(state)
    yield from _temperature(state)
    yield from _orders(state)
    yield from _weights(state, others)


def _prompts(state: State) -> Iterator[Way]:
    for words, answers in variants(state.llm, state.answers):
        with suppress(InputError):  # such a prompt may have no room
            yield _way(state, State.of(state.llm, answers, state.params), "template", words)


def _tokens(state: State) -> Iterator[Way]:
    for answers, words, evidence in restored(state.llm, state.fit, state.rows, state.params):
        changed = State.of(state.llm, answers, state.params)
        other, finding = _way(state, changed, "token", words)
        yield other, replace(finding, evidence={**evidence, **finding.evidence})


def _temperature(state: State) -> Iterator[Way]:
    said = state.params.temperature

    def cost(temperature: float) -> float:
        costs = state.under(replace(state.params, temperature=temperature)).fit.costs
        return min(costs["tempered"], costs["final"])

    best = searched(cost)
    other = state.under(replace(state.params, temperature=best))
    yield _way(state, other, "temperature", f"{best:.3g}, not {said:g}", temperature=best)


def searched(cost: Callable[[float], float]) -> float:
    """The temperature of least cost: the best of a grid, then ever smaller steps beside it."""
    costs = {t: cost(t) for t in _TEMPERATURES}
    best = min(costs, key=costs.__getitem__)
    step = log(1.2)
    for _ in range(_HALVINGS):
        for t in (best * exp(-step), best * exp(step)):
            costs[t] = cost(t)
        best = min(costs, key=costs.__getitem__)
        step /= 2
    tidy = round(best, 2)
    costs[tidy] = cost(tidy)
    return tidy if costs[tidy] <= costs[best] * 1.05 else best


def _orders(state: State) -> Iterator[Way]:
    said = state.params
    if said.chain is None:
        for preset in PRESETS:
            if preset != said.preset:
                words = f"that of {preset}, not that of {said.preset}"
                yield _way(state, state.under(replace(said, preset=preset)), "order", words)


def _weights(state: State, others: Others) -> Iterator[Way]:
    for name, opened in others.items():
        with opened() as llm:
            if not llm.tokenizer.has_tokens_of(state.llm.tokenizer):
                raise InputError(f"{name} has other tokens: name the same model in other formats")
            other = State.of(llm, state.answers, state.params)
            yield _way(state, other, "quantisation", f"{name}, not {state.llm.name}")


def _way(state: State, other: State, name: Name, what: str, **evidence: float) -> Way:
    kind = other.fit.kind
    figures = {"mean_abs_as_said": state.fit.best, "mean_abs_so": other.fit.costs[kind]}
    return other, Finding(name, what, {**figures, **evidence})
