"""The pairs of requests that should have equal answers, by what differs between the two."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from cutaway.features.evidence.conform.answers import Client, ServerAnswer
from cutaway.rerun.asking import RefusedError

_COMPANY = (
    "Once upon a time", "The price of bread rose in the winter of that year, and", "2, 3, 5, 7,",
    "A list of rivers in Europe, from the longest to the shortest, and the sea each flows to:",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """A request and how it is varied; a smaller one is looked for where a pair fails.

    size  requests at once, or samples of one request
    """

    prompt: str
    settings: Mapping[str, Any]
    size: int = 4

    @property
    def smaller(self) -> Iterator["Case"]:
        """Cases with less of one thing: company, prompt, tokens."""
        if self.size > 2:
            yield replace(self, size=self.size // 2)
        words = self.prompt.split(" ")
        if len(words) > 4:
            yield replace(self, prompt=" ".join(words[: len(words) // 2]))
        if (tokens := self.settings["max_tokens"]) > 1:
            yield replace(self, settings={**self.settings, "max_tokens": tokens // 2})


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers that should be equal, and what differs between their requests."""

    check: str
    case: Case
    differs: str
    first: ServerAnswer
    second: ServerAnswer

    @property
    def same_text(self) -> bool:
        """Whether the texts are equal."""
        return self.first.text == self.second.text

    @property
    def same_logprobs(self) -> bool | None:
        """Whether all log-probabilities are equal numbers; None where one side told none."""
        a, b = self.first.logprobs, self.second.logprobs
        return None if a is None or b is None else a == b

    @property
    def passed(self) -> bool:
        """Whether nothing differs that was told."""
        return self.same_text and self.same_logprobs is not False

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "check": self.check, "differs": self.differs, "prompt": self.case.prompt,
            "settings": dict(self.case.settings), "size": self.case.size,
            "same_text": self.same_text, "same_logprobs": self.same_logprobs,
            "texts": [self.first.text, self.second.text],
            "logprobs": [self.first.logprobs, self.second.logprobs],
        }  # fmt: skip


Found = Iterator[tuple[str, ServerAnswer, ServerAnswer]]
Check = Callable[[Client, Case], Found]


def _repeated(client: Client, case: Case) -> Found:
    first = client.ask(case.prompt, case.settings)
    for number in range(2):
        again = client.ask(case.prompt, case.settings)
        yield f"alone, and alone again ({number + 1})", first, again


def _batch(client: Client, case: Case) -> Found:
    alone = client.ask(case.prompt, case.settings)
    asked = [(case.prompt, case.settings)] * case.size
    for number, answer in enumerate(_at_once(client, asked)):
        yield f"alone, and {number + 1} of {case.size} equal requests at once", alone, answer


def _company(client: Client, case: Case) -> Found:
    alone = client.ask(case.prompt, case.settings)
    others = [(_COMPANY[i % len(_COMPANY)], case.settings) for i in range(case.size - 1)]
    [answer, *_] = _at_once(client, [(case.prompt, case.settings), *others])
    yield f"alone, and beside {case.size - 1} other prompts", alone, answer


def _cache(client: Client, case: Case) -> Found:
    """The prompt's beginning is asked first: the cache has a part of it, and then all of it."""
    for part in (1, 2, 3):
        fresh = client.fresh(case.prompt)
        words = fresh.split(" ")
        client.ask(" ".join(words[: max(len(words) * part // 4, 1)]), case.settings)
        cut = client.ask(fresh, case.settings)
        yield f"{part} of 4 parts in the cache, and all", cut, client.ask(fresh, case.settings)


def _streaming(client: Client, case: Case) -> Found:
    whole = client.ask(case.prompt, case.settings)
    yield "whole, and streamed", whole, client.stream(case.prompt, case.settings)


def _samples(client: Client, case: Case) -> Found:
    """Greedy samples of one request are all the same text."""
    if case.settings.get("temperature") != 0:
        return
    alone = client.ask(case.prompt, case.settings)
    samples = client.each(case.prompt, {**case.settings, "n": case.size})
    if len(samples) != case.size:
        raise RefusedError(f"it was asked for n={case.size} samples and wrote {len(samples)}")
    for number, answer in enumerate(samples):
        yield f"n=1, and sample {number + 1} of n={case.size}", alone, answer


def _speculation(client: Client, case: Case) -> Found:
    """By request, as cutaway has it; of other servers --against compares two that run."""
    if client.ignores("speculate"):
        raise RefusedError("it does not read the field 'speculate'")
    plain = client.ask(case.prompt, case.settings)
    spoken = client.ask(case.prompt, {**case.settings, "speculate": "ngram"})
    yield "without, and with drafts from n-grams", plain, spoken


def _at_once(client: Client, asked: Sequence[tuple[str, Mapping[str, Any]]]) -> list[ServerAnswer]:
    with ThreadPoolExecutor(len(asked)) as pool:
        return [*pool.map(lambda each: client.ask(*each), asked)]


CHECKS: Mapping[str, Check] = {
    "repeated": _repeated, "batch": _batch, "company": _company, "cut by cache": _cache,
    "streaming": _streaming, "n": _samples, "speculation": _speculation,
}  # fmt: skip
"""What differs -> the pairs."""


def against(other: Client) -> Check:
    """The same requests at another server of the same model, such as one that speculates."""

    def check(client: Client, case: Case) -> Found:
        first, second = (each.ask(case.prompt, case.settings) for each in (client, other))
        yield f"here, and at {other.server.url}", first, second

    return check
