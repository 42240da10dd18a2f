"""All checks of a server, the smallest pair that fails, and the table: Markdown, JSON, JUnit."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree as Xml

from cutaway.features.evidence.conform.answers import Client
from cutaway.features.evidence.conform.checks import CHECKS, Case, Check, Pair, against
from cutaway.rerun.asking import RefusedError

PROMPT = (
    "The lighthouse keeper climbed the stairs each evening, lit the lamp, and wrote into the book "
    "what he saw: ships, weather, birds. On the third of October he wrote"
)
_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 0.8, "seed": 7},
}
_SHRUNK = 8  # cases that are tried for a smaller pair

Progress = Callable[[str, int, int], object]


@dataclass
class Conformance:
    """What was found of one server.

    pairs     every pair that was compared
    smallest  check and settings -> the smallest pair found that fails
    refused   check and settings -> what the server said where it cannot be asked that
    """

    url: str
    model: str
    form: str
    pairs: list[tuple[str, Pair]] = field(default_factory=list)
    smallest: dict[tuple[str, str], Pair] = field(default_factory=dict)
    refused: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether every pair is equal."""
        return all(pair.passed for _, pair in self.pairs)

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Check, settings, equal in text, equal in log-probabilities."""
        for key in dict.fromkeys([*((p.check, s) for s, p in self.pairs), *self.refused]):
            pairs = [p for s, p in self.pairs if (p.check, s) == key]
            if key in self.refused and not pairs:
                yield (*key, "not taken", "not taken")
                continue
            texts = sum(p.same_text for p in pairs)
            told = [p.same_logprobs for p in pairs if p.same_logprobs is not None]
            numbers = f"{sum(told)} of {len(told)}" if told else "not told"
            yield (*key, f"{texts} of {len(pairs)}", numbers)

    def markdown(self) -> str:
        """The table."""
        lines = ["| what differs | settings | equal texts | equal log-probabilities |"]
        lines += ["|---|---|---|---|", *(f"| {' | '.join(row)} |" for row in self.rows())]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "url": self.url, "model": self.model, "form": self.form, "passed": self.passed,
            "pairs": [{"set": name, **pair.to_dict()} for name, pair in self.pairs],
            "smallest": [{"set": key[1], **pair.to_dict()} for key, pair in self.smallest.items()],
            "refused": [
                {"check": key[0], "set": key[1], "said": said} for key, said in self.refused.items()
            ],
        }  # fmt: skip

    def junit(self) -> str:
        """A test case for each pair, as JUnit's XML."""
        failed = sum(not pair.passed for _, pair in self.pairs)
        suite = Xml.Element(
            "testsuite", name=f"cutaway conform {self.url}", tests=str(len(self.pairs)),
            failures=str(failed), skipped=str(len(self.refused)),
        )  # fmt: skip
        for name, pair in self.pairs:
            case = Xml.SubElement(
                suite, "testcase", classname=f"{pair.check}.{name}", name=pair.differs
            )
            if not pair.passed:
                Xml.SubElement(case, "failure", message=parting(pair))
        for (check, name), said in self.refused.items():
            case = Xml.SubElement(suite, "testcase", classname=f"{check}.{name}", name=check)
            Xml.SubElement(case, "skipped", message=said)
        return Xml.tostring(suite, encoding="unicode", xml_declaration=True)


def parting(pair: Pair) -> str:
    """Where two answers part, in words."""
    a, b = pair.first, pair.second
    if a.text != b.text:
        at = next((i for i, (x, y) in enumerate(zip(a.text, b.text, strict=False)) if x != y), None)
        at = min(len(a.text), len(b.text)) if at is None else at
        return f"texts part after {at} characters: {a.text[at:][:40]!r} and {b.text[at:][:40]!r}"
    x, y = a.logprobs or (), b.logprobs or ()
    if len(x) != len(y):
        return f"{len(x)} and {len(y)} log-probabilities of one text"
    differs = [i for i, (p, q) in enumerate(zip(x, y, strict=True)) if p != q]
    if not differs:
        return "nothing differs"
    most = max(abs((x[i] or 0.0) - (y[i] or 0.0)) for i in differs)
    return f"equal texts, {len(differs)} log-probabilities differ, by up to {most:.2g}"


def conform(
    client: Client,
    *,
    prompt: str = PROMPT,
    max_tokens: int = 24,
    size: int = 4,
    other: Client | None = None,
    progress: Progress = lambda *_: None,
) -> Conformance:
    """Ask a server pairs of requests whose answers should be equal, and compare them.

    size   requests at once, and samples of one request
    other  another server of the same model, such as one that speculates

    CutawayError where the server fails; a request that it refuses is noted and not asked again.
    """
    checks: dict[str, Check] = {**CHECKS, **({"other server": against(other)} if other else {})}
    done = Conformance(client.server.url, client.model, client.form)
    tasks = [(check, name) for check in checks for name in _SETTINGS]
    for number, (check, name) in enumerate(tasks):
        progress("asking", number, len(tasks))
        case = Case(prompt, {**_SETTINGS[name], "max_tokens": max_tokens}, size)
        try:
            pairs = _pairs(client, check, checks[check], case)
        except RefusedError as error:
            done.refused[check, name] = str(error)
            continue
        done.pairs += [(name, pair) for pair in pairs]
        if failing := _first_failing(pairs):
            done.smallest[check, name] = _smallest(client, check, checks[check], failing)
    return done


def _pairs(client: Client, name: str, check: Check, case: Case) -> list[Pair]:
    return [Pair(name, case, *found) for found in check(client, case)]


def _first_failing(pairs: Sequence[Pair]) -> Pair | None:
    return next((pair for pair in pairs if not pair.passed), None)


def _smallest(client: Client, name: str, check: Check, failing: Pair) -> Pair:
    """A smaller case that still fails, as far as a few tries find one."""
    tries = _SHRUNK
    while tries > 0:
        for case in failing.case.smaller:
            tries -= 1
            if found := _first_failing(_pairs(client, name, check, case)):
                failing = found
                break
        else:
            break
    return failing
