"""What explains the figures better than what was said: each way read, and compared by |delta|.

Knows other prompts, tokens and settings that an engine may have had, and what is told of the one
that explains. Runs no model: a reading is asked for.
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
from cutaway.features.evidence.oracle.reading import Fit, Kind, TokenReading, read, rows_of
from cutaway.features.evidence.oracle.told import Told
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
    """One thing that is not as it was said to be.

    name      a key of SENTENCES
    what      what it is instead, in words
    evidence  figures that show it, by name; nats where they are log-probabilities
    """

    name: Name
    what: str
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{SENTENCES[self.name]}: {self.what}"

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"name": self.name, "what": self.what, "evidence": dict(self.evidence)}


# -- other prompts: begin tokens, templates, white space at the end --------------------------------


Ids = tuple[int, ...]
Prompt = Callable[[LLM, Told], Ids | None]


def variants(llm: LLM, answers: Sequence[Told]) -> Iterator[tuple[str, tuple[Told, ...]]]:
    """What else the prompts may have been, in words, and the answers after these prompts."""
    seen = {tuple(told.prompt_token_ids for told in answers)}
    for words, make in _WAYS.items():
        prompts = [_made(make, llm, told) for told in answers]
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


def _made(make: Prompt, llm: LLM, told: Told) -> Ids | None:
    with suppress(CutawayError):  # a template may refuse such messages: then nobody sent them
        return make(llm, told)
    return None


def _no_begin(llm: LLM, told: Told) -> Ids | None:
    first, *rest = told.prompt_token_ids
    return (
        tuple(rest)
        if not llm.tokenizer.token_bytes(first) or first == llm.tokenizer.bos_id
        else None
    )


def _begin(llm: LLM, told: Told) -> Ids | None:
    begin = llm.tokenizer.bos_id
    return None if begin is None else (begin, *told.prompt_token_ids)


def _bare(llm: LLM, told: Told) -> Ids | None:
    """The words alone: of the messages, or of a prompt that the template seems to have made."""
    if told.messages:
        return tuple(llm.tokenize("\n".join(str(m.get("content", "")) for m in told.messages)))
    return None


def _as_message(llm: LLM, told: Told) -> Ids | None:
    if told.messages or llm.template is None:
        return None
    text = llm.detokenize(told.prompt_token_ids)
    return tuple(llm.chat_ids([{"role": "user", "content": text}]))


def _messages(change: Callable[[list[Mapping[str, Any]]], list[Mapping[str, Any]]]) -> Prompt:
    def make(llm: LLM, told: Told) -> Ids | None:
        return tuple(llm.chat_ids(change([*told.messages]))) if told.messages else None

    return make


def _no_system(messages: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [m for m in messages if m.get("role") != "system"]


def _system(text: str) -> Prompt:
    return _messages(lambda m: [{"role": "system", "content": text}, *_no_system(m)])


def _without_default_system(llm: LLM, told: Told) -> Ids | None:
    """Without what the template puts before the first message, as templates of others do not."""
    if llm.template is None or not told.messages or told.messages[0].get("role") == "system":
        return None
    system = {"role": "system", "content": "A"}
    before = llm.template.render([system], add_generation_prompt=False)
    whole = llm.template.render([system, *told.messages])
    if not whole.startswith(before):
        return None
    begin = _name(llm) if before.startswith(_name(llm)) else ""
    return tuple(llm.tokenize(begin + whole.removeprefix(before), special=True, add_bos=False))


def _no_generation_prompt(llm: LLM, told: Told) -> Ids | None:
    if llm.template is None or not told.messages:
        return None
    text = llm.template.render(told.messages, add_generation_prompt=False)
    return tuple(llm.tokenize(text, special=True, add_bos=False))


def _stripped(llm: LLM, told: Told) -> Ids | None:
    return _last(llm, told, lambda text: text.rstrip())


def _newline(llm: LLM, told: Told) -> Ids | None:
    return _last(llm, told, lambda text: text + "\n")


def _last(llm: LLM, told: Told, change: Callable[[str], str]) -> Ids | None:
    text = llm.detokenize(told.prompt_token_ids, special=True)
    if (other := change(text)) == text:
        return None
    begin = told.prompt_token_ids[0] == llm.tokenizer.bos_id
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
    "without white space at its end": _stripped,
    "with a newline at its end": _newline,
}


# -- a token that is not the one the engine wrote --------------------------------------------------


_OUTLIER = 12.0  # times the median |delta| of the answer up to it
_LEAST = 0.5  # nats: no smaller one is an outlier
_TRIED = 6  # tokens whose log-probability is nearest to what was told
_LATER = 4  # tokens after it that must fit better, if there are so many
_LIKELY = -3.0  # a token at the end, which nothing later confirms, must have been told above this

Row = NDArray[Any]
Restored = tuple[tuple[Told, ...], str, Mapping[str, Any]]


def restored(
    llm: LLM, fit: Fit, rows: Sequence[Logits], params: SamplingParams
) -> Iterator[Restored]:
    """The answers with changed tokens put back, in words, and the figures; nothing if none is."""
    answers, words, evidence = [*fit.answers], list[str](), list[dict[str, Any]]()
    for n, (told, reading) in enumerate(zip(fit.answers, fit.readings, strict=True)):
        one = Fit((told,), (reading,))
        if (at := _first_outlier(one, fit.kind)) is None:
            continue
        nearest = _log_probs(rows[n][at], params, reading[at], fit.kind)
        if found := _put_back(llm, one, at, nearest, params=params, kind=fit.kind):
            answers[n], figures = found
            was, now = (llm.tokenizer.token_name(i) for i in (told.token_ids[at], figures["id"]))
            words.append(f"answer {n}, token {at}: {now!r} was written, {was!r} stands there")
            evidence.append({"answer": n, "token": at, **figures})
    if words:
        yield tuple(answers), "; ".join(words[:3]), {"tokens": evidence}


def _first_outlier(one: Fit, kind: Kind) -> int | None:
    """Where |delta| of an answer is first far above what it was before."""
    if None in one.answers[0].logprobs:
        return None  # positions of sizes are those of tokens where all are told
    sizes = one.sizes(kind)
    for at, size in enumerate(sizes):
        before = sizes[:at] if at >= 4 else sizes
        if size > max(_LEAST, _OUTLIER * median(before)):
            return at
    return None


def _put_back(
    llm: LLM, one: Fit, at: int, row: Row, *, params: SamplingParams, kind: Kind
) -> tuple[Told, dict[str, Any]] | None:
    [told] = one.answers
    said, old = told.logprobs[at], one.sizes(kind)
    assert said is not None
    nearest = islice(np.argsort(np.abs(row - said), kind="stable").tolist(), _TRIED)
    found: list[tuple[float, Told, dict[str, Any]]] = []
    for token_id in {*nearest, int(row.argmax())} - {told.token_ids[at]}:
        ids = (*told.token_ids[:at], token_id, *told.token_ids[at + 1 :])
        other = replace(told, token_ids=ids)
        new = Fit((other,), (tuple(read(rows_of(llm, other), other, params)),)).sizes(kind)
        if _explains(old, new, at, said):
            figures = {
                "id": token_id, "told": said, "of_it": float(row[token_id]),
                "of_what_stands_there": float(row[told.token_ids[at]]),
                "later_mean_abs_as_said": _mean(old[at + 1 :]),
                "later_mean_abs_so": _mean(new[at + 1 :]),
            }  # fmt: skip
            found.append((sum(new), other, figures))
    best = min(found, key=lambda each: each[0], default=None)
    return best and best[1:]


def _explains(old: list[float], new: list[float], at: int, said: float) -> bool:
    if new[at] > old[at] / 4:
        return False
    before, after = old[at + 1 :], new[at + 1 :]
    if len(after) >= _LATER:
        return sum(after) < 0.6 * sum(before)
    return said > _LIKELY


def _mean(sizes: Sequence[float]) -> float | None:
    return sum(sizes) / len(sizes) if sizes else None


def _log_probs(row: Row, params: SamplingParams, read: TokenReading, kind: Kind) -> Row:
    """What each token would have had told there: (vocab,); penalties are left out."""
    wide: Row = row.astype(np.float64)
    if kind != "raw":
        wide = wide / (params.temperature or 1.0)
    wide = wide - wide.max()
    wide -= np.log(np.exp(wide).sum())
    if kind == "final":
        wide -= np.log(max(read.mass, 1e-9))
    return wide


# -- the ways --------------------------------------------------------------------------------------


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
