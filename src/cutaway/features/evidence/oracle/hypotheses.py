"""Hypotheses of how an engine's answers came to be, compared by |delta|.

Knows other prompts, tokens, settings and weights that an engine may have used, and how well each
explains its figures. ``reading`` reads the tokens.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from math import exp, log
from statistics import median
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cutaway.api.llm import LLM
from cutaway.compute.backends import Logits
from cutaway.errors import CutawayError, InputError
from cutaway.features.evidence.oracle.answers import EngineAnswer
from cutaway.features.evidence.oracle.reading import Fit, Kind, TokenReading, read, rows_of
from cutaway.sampling import PRESETS, SamplingParams

Name = Literal["temperature", "truncation", "order", "template", "token", "quantisation", "other"]

SENTENCES: Mapping[str, str] = {
    "same": "the same model and settings",
    "temperature": "another temperature",
    "truncation": "another truncation",
    "order": "another order of the chain",
    "template": "another template, or another beginning of the prompt",
    "token": "a changed token",
    "quantisation": "another quantisation of the weights",
    "other": "another model, or a prompt that was not told",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference between what the other engine did and what it was claimed to do.

    name         a key of SENTENCES
    description  what the engine did instead, in words
    evidence     figures that show the difference, by name; log-probabilities are in nats
    """

    name: Name
    description: str
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{SENTENCES[self.name]}: {self.description}"

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that can be written as JSON."""
        return {"name": self.name, "what": self.description, "evidence": dict(self.evidence)}


# -- other prompts: begin tokens, templates, white space at the end --------------------------------


Ids = tuple[int, ...]
Prompt = Callable[[LLM, EngineAnswer], Ids | None]


def variants(
    llm: LLM, answers: Sequence[EngineAnswer]
) -> Iterator[tuple[str, tuple[EngineAnswer, ...]]]:
    """Yield (description, answers) for other prompts that the engine may have read."""
    seen = {tuple(answer.prompt_token_ids for answer in answers)}
    for words, make in _WAYS.items():
        prompts = [_try_prompt(make, llm, answer) for answer in answers]
        ids = tuple(
            was.prompt_token_ids if p is None else p
            for p, was in zip(prompts, answers, strict=True)
        )
        if not any(prompts) or ids in seen or not all(ids):
            continue
        seen.add(ids)
        yield (
            words,
            tuple(replace(t, prompt_token_ids=i) for t, i in zip(answers, ids, strict=True)),
        )


def _try_prompt(make: Prompt, llm: LLM, answer: EngineAnswer) -> Ids | None:
    with suppress(CutawayError):  # a template may refuse such messages: then nobody sent them
        return make(llm, answer)
    return None


def _no_begin(llm: LLM, answer: EngineAnswer) -> Ids | None:
    first, *rest = answer.prompt_token_ids
    return (
        tuple(rest)
        if not llm.tokenizer.token_bytes(first) or first == llm.tokenizer.bos_id
        else None
    )


def _begin(llm: LLM, answer: EngineAnswer) -> Ids | None:
    begin = llm.tokenizer.bos_id
    return None if begin is None else (begin, *answer.prompt_token_ids)


def _bare(llm: LLM, answer: EngineAnswer) -> Ids | None:
    """Tokenize the messages' contents without a template; None where there are no messages."""
    if answer.messages:
        return tuple(llm.tokenize("\n".join(str(m.get("content", "")) for m in answer.messages)))
    return None


def _as_message(llm: LLM, answer: EngineAnswer) -> Ids | None:
    if answer.messages or llm.template is None:
        return None
    text = llm.detokenize(answer.prompt_token_ids)
    return tuple(llm.chat_ids([{"role": "user", "content": text}]))


def _messages(change: Callable[[list[Mapping[str, Any]]], list[Mapping[str, Any]]]) -> Prompt:
    def make(llm: LLM, answer: EngineAnswer) -> Ids | None:
        return tuple(llm.chat_ids(change([*answer.messages]))) if answer.messages else None

    return make


def _no_system(messages: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [m for m in messages if m.get("role") != "system"]


def _system(text: str) -> Prompt:
    return _messages(lambda m: [{"role": "system", "content": text}, *_no_system(m)])


def _without_default_system(llm: LLM, answer: EngineAnswer) -> Ids | None:
    """Leave out the system message that the template adds: templates of other engines add none."""
    if llm.template is None or not answer.messages or answer.messages[0].get("role") == "system":
        return None
    system = {"role": "system", "content": "A"}
    before = llm.template.render([system], add_generation_prompt=False)
    whole = llm.template.render([system, *answer.messages])
    if not whole.startswith(before):
        return None
    begin = _name(llm) if before.startswith(_name(llm)) else ""
    return tuple(llm.tokenize(begin + whole.removeprefix(before), special=True, add_bos=False))


def _no_generation_prompt(llm: LLM, answer: EngineAnswer) -> Ids | None:
    if llm.template is None or not answer.messages:
        return None
    text = llm.template.render(answer.messages, add_generation_prompt=False)
    return tuple(llm.tokenize(text, special=True, add_bos=False))


def _strip_end(llm: LLM, answer: EngineAnswer) -> Ids | None:
    return _change_end(llm, answer, lambda text: text.rstrip())


def _add_newline(llm: LLM, answer: EngineAnswer) -> Ids | None:
    return _change_end(llm, answer, lambda text: text + "\n")


def _change_end(llm: LLM, answer: EngineAnswer, change: Callable[[str], str]) -> Ids | None:
    text = llm.detokenize(answer.prompt_token_ids, special=True)
    if (other := change(text)) == text:
        return None
    begin = answer.prompt_token_ids[0] == llm.tokenizer.bos_id
    ids = llm.tokenize(
        other.removeprefix(_name(llm)) if begin else other, special=True, add_bos=begin
    )
    return tuple(ids)


def _name(llm: LLM) -> str:
    begin = llm.tokenizer.bos_id
    return "" if begin is None else llm.tokenizer.token_name(begin)


_WAYS: Mapping[str, Prompt] = {
    "without the first token": _no_begin,
    "with the begin token before it": _begin,
    "the messages' words alone, without the chat template": _bare,
    "as a user's message in the chat template": _as_message,
    "without the system message that the template adds": _without_default_system,
    "without the system message": _messages(_no_system),
    "with an empty system message": _system(""),
    "with the system message 'You are a helpful assistant.'": _system(
        "You are a helpful assistant."
    ),
    "without what begins the answer (add_generation_prompt)": _no_generation_prompt,
    "without white space at its end": _strip_end,
    "with a newline at its end": _add_newline,
}


# -- changed tokens: put back the token that the engine wrote --------------------------------------


_OUTLIER = 12.0  # times the median |delta| of the answer up to it
_LEAST = 0.5  # nats: no smaller |delta| is an outlier
_NEAREST = 6  # tokens whose log-probability is nearest to the engine's figure
_LATER = 4  # later tokens: where there are so many, they must fit better
_LIKELY = (
    -3.0
)  # a token near the end, which too few later ones confirm, needs a log-probability above this

Row = NDArray[Any]
Restored = tuple[tuple[EngineAnswer, ...], str, Mapping[str, Any]]


def restore_tokens(
    llm: LLM, fit: Fit, rows: Sequence[Logits], params: SamplingParams
) -> Iterator[Restored]:
    """Yield (answers with the engine's tokens, a description, figures) if tokens were changed."""
    answers, words, evidence = [*fit.answers], list[str](), list[dict[str, Any]]()
    for n, (answer, reading) in enumerate(zip(fit.answers, fit.readings, strict=True)):
        answer_fit = Fit((answer,), (reading,))
        if (at := _first_outlier(answer_fit, fit.kind)) is None:
            continue
        nearest = _log_probs(rows[n][at], params, reading[at], fit.kind)
        if replacement := _put_back(llm, answer_fit, at, nearest, params=params, kind=fit.kind):
            answers[n], figures = replacement
            was, now = (llm.tokenizer.token_name(i) for i in (answer.token_ids[at], figures["id"]))
            words.append(f"answer {n}, token {at}: {now!r} was written, {was!r} stands there")
            evidence.append({"answer": n, "token": at, **figures})
    if words:
        yield tuple(answers), "; ".join(words[:3]), {"tokens": evidence}


def _first_outlier(fit: Fit, kind: Kind) -> int | None:
    """Find the first position whose |delta| is far above the median before it; else None."""
    if None in fit.answers[0].logprobs:
        return None  # sizes are by position only where every token has a log-probability
    sizes = fit.sizes(kind)
    for at, size in enumerate(sizes):
        before = sizes[:at] if at >= 4 else sizes
        if size > max(_LEAST, _OUTLIER * median(before)):
            return at
    return None


def _put_back(
    llm: LLM, fit: Fit, at: int, row: Row, *, params: SamplingParams, kind: Kind
) -> tuple[EngineAnswer, dict[str, Any]] | None:
    [answer] = fit.answers
    logprob, old = answer.logprobs[at], fit.sizes(kind)
    assert logprob is not None
    nearest = islice(np.argsort(np.abs(row - logprob), kind="stable").tolist(), _NEAREST)
    candidates: list[tuple[float, EngineAnswer, dict[str, Any]]] = []
    for token_id in {*nearest, int(row.argmax())} - {answer.token_ids[at]}:
        ids = (*answer.token_ids[:at], token_id, *answer.token_ids[at + 1 :])
        other = replace(answer, token_ids=ids)
        new = Fit((other,), (tuple(read(rows_of(llm, other), other, params)),)).sizes(kind)
        if _explains(old, new, at, logprob):
            figures = {
                "id": token_id, "told": logprob, "of_it": float(row[token_id]),
                "of_what_stands_there": float(row[answer.token_ids[at]]),
                "later_mean_abs_as_said": _mean(old[at + 1 :]),
                "later_mean_abs_so": _mean(new[at + 1 :]),
            }  # fmt: skip
            candidates.append((sum(new), other, figures))
    best = min(candidates, key=lambda candidate: candidate[0], default=None)
    return best and best[1:]


def _explains(old: list[float], new: list[float], at: int, logprob: float) -> bool:
    if new[at] > old[at] / 4:
        return False
    before, after = old[at + 1 :], new[at + 1 :]
    if len(after) >= _LATER:
        return sum(after) < 0.6 * sum(before)
    return logprob > _LIKELY


def _mean(sizes: Sequence[float]) -> float | None:
    return sum(sizes) / len(sizes) if sizes else None


def _log_probs(row: Row, params: SamplingParams, read: TokenReading, kind: Kind) -> Row:
    """Return the row's log-probabilities of the kind, (vocab,), without penalties."""
    wide: Row = row.astype(np.float64)
    if kind != "raw":
        wide = wide / (params.temperature or 1.0)
    wide = wide - wide.max()
    wide -= np.log(np.exp(wide).sum())
    if kind == "final":
        wide -= np.log(max(read.mass, 1e-9))
    return wide


# -- the ways --------------------------------------------------------------------------------------


OtherWeights = Mapping[str, Callable[[], LLM]]
"""Name -> a function that opens the same model with other weights."""

_TEMPERATURES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
_HALVINGS = 6  # of the step around the best of these


@dataclass(frozen=True, slots=True)
class State:
    """A complete hypothesis of how the answers came to be, and how well it fits them.

    rows  the logits of each answer, (tokens, vocab)
    """

    llm: LLM
    params: SamplingParams
    rows: tuple[Logits, ...]
    fit: Fit

    @classmethod
    def run(cls, llm: LLM, answers: Sequence[EngineAnswer], params: SamplingParams) -> "State":
        """Run the model over all answers."""
        rows = tuple(rows_of(llm, answer) for answer in answers)
        return cls(llm, params, rows, _fit(rows, answers, params))

    def with_settings(self, params: SamplingParams) -> "State":
        """Read the same rows under other settings."""
        return State(self.llm, params, self.rows, _fit(self.rows, self.answers, params))

    @property
    def answers(self) -> tuple[EngineAnswer, ...]:
        """The answers under this hypothesis."""
        return self.fit.answers


def _fit(rows: Sequence[Logits], answers: Sequence[EngineAnswer], params: SamplingParams) -> Fit:
    pairs = zip(rows, answers, strict=True)
    return Fit(tuple(answers), tuple(tuple(read(r, answer, params)) for r, answer in pairs))


Way = tuple[State, Finding]
"""Another hypothesis, and the finding that reports it if it is adopted."""


def ways(state: State, other_weights: OtherWeights) -> Iterator[Way]:
    """Yield every other hypothesis. One LLM of ``other_weights`` is open at a time."""
    yield from _prompts(state)
    yield from _tokens(state)
    yield from _temperature(state)
    yield from _orders(state)
    yield from _weights(state, other_weights)


def _prompts(state: State) -> Iterator[Way]:
    for words, answers in variants(state.llm, state.answers):
        with suppress(InputError):  # the context may be too small for such a prompt
            yield _way(state, State.run(state.llm, answers, state.params), "template", words)


def _tokens(state: State) -> Iterator[Way]:
    for answers, words, evidence in restore_tokens(state.llm, state.fit, state.rows, state.params):
        changed = State.run(state.llm, answers, state.params)
        other, finding = _way(state, changed, "token", words)
        yield other, replace(finding, evidence={**evidence, **finding.evidence})


def _temperature(state: State) -> Iterator[Way]:
    given_temperature = state.params.temperature

    def cost(temperature: float) -> float:
        costs = state.with_settings(replace(state.params, temperature=temperature)).fit.costs
        return min(costs["tempered"], costs["final"])

    best = search_temperature(cost)
    other = state.with_settings(replace(state.params, temperature=best))
    yield _way(
        state, other, "temperature", f"{best:.3g}, not {given_temperature:g}", temperature=best
    )


def search_temperature(cost: Callable[[float], float]) -> float:
    """Find the temperature of least cost: the best of a grid, then halved steps around it."""
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
    params = state.params
    if params.chain is None:
        for preset in PRESETS:
            if preset != params.preset:
                words = f"that of {preset}, not that of {params.preset}"
                yield _way(
                    state, state.with_settings(replace(params, preset=preset)), "order", words
                )


def _weights(state: State, other_weights: OtherWeights) -> Iterator[Way]:
    for name, open_llm in other_weights.items():
        with open_llm() as llm:
            if not llm.tokenizer.has_tokens_of(state.llm.tokenizer):
                raise InputError(f"{name} has other tokens: name the same model in other formats")
            other = State.run(llm, state.answers, state.params)
            yield _way(state, other, "quantisation", f"{name}, not {state.llm.name}")


def _way(state: State, other: State, name: Name, description: str, **evidence: float) -> Way:
    kind = other.fit.kind
    figures = {"mean_abs_as_said": state.fit.best, "mean_abs_so": other.fit.costs[kind]}
    return other, Finding(name, description, {**figures, **evidence})
