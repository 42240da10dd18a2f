"""Conformance: whether a server gives equal answers where it should, tested over HTTP alone.

Knows the pairs of requests that should have equal answers, and how to shrink a pair that fails.
Refuses to know the model. ``conform_client`` asks the server.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from cutaway.base.progress import Progress, silent
from cutaway.features.evidence.conform_client import Client, ServerAnswer
from cutaway.rerun.asking import RefusedError

# -- the pairs, by what differs between the two ----------------------------------------------------


_COMPANY = (
    "Once upon a time", "The price of bread rose in the winter of that year, and", "2, 3, 5, 7,",
    "A list of rivers in Europe, from the longest to the shortest, and the sea each flows to:",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """A request, and how many requests are sent at once. If a pair fails, a smaller case is tried.

    size  the number of requests sent at once, or of samples (n) of one request
    """

    prompt: str
    settings: Mapping[str, Any]
    size: int = 4

    @property
    def smaller(self) -> Iterator["Case"]:
        """Cases that halve one thing each: ``size``, the prompt's words, the answer's tokens."""
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
        """Whether all log-probabilities are equal numbers; None where one side gave none."""
        a, b = self.first.logprobs, self.second.logprobs
        return None if a is None or b is None else a == b

    @property
    def is_equal(self) -> bool:
        """Whether the texts are equal, and the log-probabilities where both sides gave them."""
        return self.same_text and self.same_logprobs is not False

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that can be written as JSON."""
        return {
            "check": self.check, "differs": self.differs, "prompt": self.case.prompt,
            "settings": dict(self.case.settings), "size": self.case.size,
            "same_text": self.same_text, "same_logprobs": self.same_logprobs,
            "texts": [self.first.text, self.second.text],
            "logprobs": [self.first.logprobs, self.second.logprobs],
        }  # fmt: skip


Comparisons = Iterator[tuple[str, ServerAnswer, ServerAnswer]]
Check = Callable[[Client, Case], Comparisons]


def _repeat(client: Client, case: Case) -> Comparisons:
    first = client.ask(case.prompt, case.settings)
    for number in range(2):
        again = client.ask(case.prompt, case.settings)
        yield f"alone, and alone again ({number + 1})", first, again


def _batch(client: Client, case: Case) -> Comparisons:
    alone = client.ask(case.prompt, case.settings)
    requests = [(case.prompt, case.settings)] * case.size
    for number, answer in enumerate(_ask_at_once(client, requests)):
        yield f"alone, and {number + 1} of {case.size} equal requests at once", alone, answer


def _company(client: Client, case: Case) -> Comparisons:
    alone = client.ask(case.prompt, case.settings)
    neighbours = [(_COMPANY[i % len(_COMPANY)], case.settings) for i in range(case.size - 1)]
    [answer, *_] = _ask_at_once(client, [(case.prompt, case.settings), *neighbours])
    yield f"alone, and beside {case.size - 1} other prompts", alone, answer


def _cache(client: Client, case: Case) -> Comparisons:
    """Send the prompt's beginning, then the prompt twice: first part of it is cached, then all."""
    for part in (1, 2, 3):
        fresh = client.fresh(case.prompt)
        words = fresh.split(" ")
        client.ask(" ".join(words[: max(len(words) * part // 4, 1)]), case.settings)
        cut = client.ask(fresh, case.settings)
        yield f"{part} of 4 parts in the cache, and all", cut, client.ask(fresh, case.settings)


def _streaming(client: Client, case: Case) -> Comparisons:
    whole = client.ask(case.prompt, case.settings)
    yield "whole, and streamed", whole, client.stream(case.prompt, case.settings)


def _samples(client: Client, case: Case) -> Comparisons:
    """Compare greedy samples of one request: all must be the same text."""
    if case.settings.get("temperature") != 0:
        return
    alone = client.ask(case.prompt, case.settings)
    samples = client.ask_choices(case.prompt, {**case.settings, "n": case.size})
    if len(samples) != case.size:
        raise RefusedError(f"it was asked for n={case.size} samples and wrote {len(samples)}")
    for number, answer in enumerate(samples):
        yield f"n=1, and sample {number + 1} of n={case.size}", alone, answer


def _speculation(client: Client, case: Case) -> Comparisons:
    """Ask for drafts by cutaway's field ``speculate``; other servers need ``--against``."""
    if client.ignores("speculate"):
        raise RefusedError("it does not read the field 'speculate'")
    plain = client.ask(case.prompt, case.settings)
    speculative = client.ask(case.prompt, {**case.settings, "speculate": "ngram"})
    yield "without, and with drafts from n-grams", plain, speculative


def _ask_at_once(
    client: Client, requests: Sequence[tuple[str, Mapping[str, Any]]]
) -> list[ServerAnswer]:
    with ThreadPoolExecutor(len(requests)) as pool:
        return [*pool.map(lambda request: client.ask(*request), requests)]


CHECKS: Mapping[str, Check] = {
    "repeated": _repeat, "batch": _batch, "company": _company, "cut by cache": _cache,
    "streaming": _streaming, "n": _samples, "speculation": _speculation,
}  # fmt: skip
"""What differs between two requests -> the check that sends them."""


def compare_with(other: Client) -> Check:
    """Make a check that sends the same requests to another server of the same model."""

    def check(client: Client, case: Case) -> Comparisons:
        first, second = (side.ask(case.prompt, case.settings) for side in (client, other))
        yield f"here, and at {other.server.url}", first, second

    return check


# -- all checks ------------------------------------------------------------------------------------


PROMPT = (
    "The lighthouse keeper climbed the stairs each evening, lit the lamp, and wrote into the book "
    "what he saw: ships, weather, birds. On the third of October he wrote"
)
_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 0.8, "seed": 7},
}
_MAX_TRIES = 8  # cases that are tried for a smaller pair


@dataclass
class Conformance:
    """The results of all checks of one server.

    pairs     (settings, pair) of every pair that was compared
    smallest  check and settings -> the smallest pair found that fails
    refusals  check and settings -> the server's message, where it refused the check's requests
    """

    url: str
    model: str
    form: str
    pairs: list[tuple[str, Pair]] = field(default_factory=list)
    smallest: dict[tuple[str, str], Pair] = field(default_factory=dict)
    refusals: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def all_equal(self) -> bool:
        """Whether every pair is equal."""
        return all(pair.is_equal for _, pair in self.pairs)

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Rows of the table: check, settings, pairs equal in text, and in log-probabilities."""
        for key in dict.fromkeys([*((p.check, s) for s, p in self.pairs), *self.refusals]):
            pairs = [p for s, p in self.pairs if (p.check, s) == key]
            if key in self.refusals and not pairs:
                yield (*key, "not taken", "not taken")
                continue
            texts = sum(p.same_text for p in pairs)
            logprob_matches = [p.same_logprobs for p in pairs if p.same_logprobs is not None]
            numbers = (
                f"{sum(logprob_matches)} of {len(logprob_matches)}"
                if logprob_matches
                else "not told"
            )
            yield (*key, f"{texts} of {len(pairs)}", numbers)

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that can be written as JSON."""
        return {
            "url": self.url, "model": self.model, "form": self.form, "passed": self.all_equal,
            "pairs": [{"set": name, **pair.to_dict()} for name, pair in self.pairs],
            "smallest": [{"set": key[1], **pair.to_dict()} for key, pair in self.smallest.items()],
            "refused": [
                {"check": check, "set": name, "said": message}
                for (check, name), message in self.refusals.items()
            ],
        }  # fmt: skip


def conform(
    client: Client,
    *,
    prompt: str = PROMPT,
    max_tokens: int = 24,
    size: int = 4,
    other: Client | None = None,
    progress: Progress = silent,
) -> Conformance:
    """Ask a server pairs of requests whose answers should be equal, and compare them.

    size   the number of requests at once, and of samples of one request
    other  another server of the same model, such as one that speculates

    CutawayError where the server fails. If the server refuses a check's requests, the check is
    noted and skipped.
    """
    checks: dict[str, Check] = {
        **CHECKS,
        **({"other server": compare_with(other)} if other else {}),
    }
    conformance = Conformance(client.server.url, client.model, client.form)
    tasks = [(check, name) for check in checks for name in _SETTINGS]
    for number, (check, name) in enumerate(tasks):
        progress("asking", number, len(tasks))
        case = Case(prompt, {**_SETTINGS[name], "max_tokens": max_tokens}, size)
        try:
            pairs = _pairs(client, check, checks[check], case)
        except RefusedError as error:
            conformance.refusals[check, name] = str(error)
            continue
        conformance.pairs += [(name, pair) for pair in pairs]
        if failing := _first_failing(pairs):
            conformance.smallest[check, name] = _smallest(client, check, checks[check], failing)
    return conformance


def _pairs(client: Client, name: str, check: Check, case: Case) -> list[Pair]:
    return [Pair(name, case, *comparison) for comparison in check(client, case)]


def _first_failing(pairs: Sequence[Pair]) -> Pair | None:
    return next((pair for pair in pairs if not pair.is_equal), None)


def _smallest(client: Client, name: str, check: Check, failing: Pair) -> Pair:
    """Find a smaller pair that still fails, in about ``_MAX_TRIES`` tries; or keep ``failing``."""
    tries = _MAX_TRIES
    while tries > 0:
        for case in failing.case.smaller:
            tries -= 1
            if smaller := _first_failing(_pairs(client, name, check, case)):
                failing = smaller
                break
        else:
            break
    return failing
