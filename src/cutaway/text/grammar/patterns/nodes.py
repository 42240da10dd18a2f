"""A pattern as a tree: how it is read and written.

Knows the notation that ECMAScript and llguidance share. A set of characters stays as it is written:
``[a-z]``, ``\\d``, ``x``. Nodes are equal where they are the same object, so that many are compared
in no time.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from cutaway.text.grammar.patterns.sets import end_of_piece

_LONGEST, _DEEPEST = 4_000, 40
_COUNTS = re.compile(r"\{([0-9]+)(?:(,)([0-9]*))?\}")
_OFTEN: Mapping[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_LOOKS = {"(?=": (True, False), "(?!": (True, True), "(?<=": (False, False), "(?<!": (False, True)}
"""Opening of a look-around -> (ahead, negated)."""
_GROUP = re.compile(r"\(\?(?::|P?<[A-Za-z_]\w*>)|\((?!\?)")
_LOOK = re.compile(r"\(\?<?[=!]")


class NotPlainError(ValueError):
    """A pattern has a part that cannot be written without look-around; the message names it."""


@dataclass(frozen=True, eq=False, slots=True)
class Characters:
    """One character of a set, which is written as in a pattern."""

    set: str


@dataclass(frozen=True, eq=False, slots=True)
class Concatenation:
    """Nodes that follow each other."""

    parts: tuple["Node", ...]


@dataclass(frozen=True, eq=False, slots=True)
class Alternatives:
    """Any of several nodes."""

    options: tuple["Node", ...]


@dataclass(frozen=True, eq=False)
class Repeat:
    """A node from ``least`` to ``limit`` times; None: any number of times."""

    body: "Node"
    least: int
    limit: int | None

    @cached_property
    def fewer(self) -> "Repeat":
        """What remains after one time."""
        limit = None if self.limit is None else self.limit - 1
        same = (self.least, self.limit) == (max(self.least - 1, 0), limit)
        return self if same else Repeat(self.body, max(self.least - 1, 0), limit)


@dataclass(frozen=True, eq=False, slots=True)
class LookAround:
    """A place after which (``ahead``) or before which a node matches; or, ``negated``, does not."""

    ahead: bool
    negated: bool
    body: "Node"


Node = Characters | Concatenation | Alternatives | Repeat | LookAround

ANY = Characters(r"[\s\S]")
ANYTHING = Repeat(ANY, 0, None)
START, END = LookAround(False, True, ANY), LookAround(True, True, ANY)
_WORD = Characters(r"\w")
_BOUNDARY = Alternatives(tuple(
    Concatenation((LookAround(False, negated, _WORD), LookAround(True, not negated, _WORD)))
    for negated in (False, True)
))  # fmt: skip
_INSIDE = Alternatives(tuple(
    Concatenation((LookAround(False, negated, _WORD), LookAround(True, negated, _WORD)))
    for negated in (False, True)
))  # fmt: skip
_PLACES: Mapping[str, Node] = {
    "^": START,
    "$": END,
    r"\A": START,
    r"\z": END,
    r"\b": _BOUNDARY,
    r"\B": _INSIDE,
}


def parse(pattern: str) -> Node:
    """Read a pattern; NotPlainError for a part that is none of these nodes."""
    if len(pattern) > _LONGEST:
        raise NotPlainError(f"it looks around, and is longer than {_LONGEST} characters")
    reader = _Reader(pattern)
    node = reader.alternatives()
    if reader.at < len(pattern):
        raise NotPlainError("it closes a group that is not open")
    return node


class _Reader:
    """The place in a pattern up to which it is read."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.at, self._depth = pattern, 0, 0

    def alternatives(self) -> Node:
        options = [self._concatenation()]
        while self.pattern.startswith("|", self.at):
            self.at += 1
            options.append(self._concatenation())
        return options[0] if len(options) == 1 else Alternatives(tuple(options))

    def _concatenation(self) -> Node:
        parts: list[Node] = []
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            parts.append(self._repeat(self._atom()))
        return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))

    def _atom(self) -> Node:
        if self.pattern[self.at] == "(":
            return self._group()
        start, self.at = self.at, end_of_piece(self.pattern, self.at)
        piece = self.pattern[start : self.at]
        if piece in _PLACES:
            return _PLACES[piece]
        if re.fullmatch(r"\\[1-9k]", piece):
            raise NotPlainError("it refers back to a group")
        return Characters(f"\\{piece}" if piece in "{}]" else piece)

    def _group(self) -> Node:
        look = _LOOK.match(self.pattern, self.at)
        opening = look or _GROUP.match(self.pattern, self.at)
        if opening is None:
            raise NotPlainError("it has flags, or a group that is not known")
        self.at, self._depth = opening.end(), self._depth + 1
        if self._depth > _DEEPEST:
            raise NotPlainError("its groups are nested too deep")
        body = self.alternatives()
        if not self.pattern.startswith(")", self.at):
            raise NotPlainError("it does not close a group")
        self.at, self._depth = self.at + 1, self._depth - 1
        return _look_around(*_LOOKS[opening[0]], body) if look else body

    def _repeat(self, node: Node) -> Node:
        for _ in range(_DEEPEST):
            if (counts := self._counts()) is None:
                return node
            node = Repeat(node, *counts)
        raise NotPlainError("it repeats a repetition too often")

    def _counts(self) -> tuple[int, int | None] | None:
        """Read how often a node may come; a ? behind that is read, and changes no text."""
        end = self.at + 1
        counts = _OFTEN.get(self.pattern[self.at : end])
        if match := _COUNTS.match(self.pattern, self.at):
            least = int(match[1])
            counts = least, (int(match[3]) if match[3] else None) if match[2] else least
            end = match.end()
        if counts is None:
            return None
        self.at = end + self.pattern.startswith("?", end)
        return counts


def _look_around(ahead: bool, negated: bool, body: Node) -> Node:
    """Return a look-around: START or END where it says that there is no character."""
    if negated and isinstance(body, Characters) and body.set == ANY.set:
        return END if ahead else START
    return LookAround(ahead, negated, body)


def write(node: Node) -> str:
    """Write a node that has no look-around but START and END."""
    match node:
        case Characters(characters):
            return characters
        case Concatenation(parts):
            return "".join(map(_write_part, parts))
        case Alternatives(options):
            return "|".join(map(write, options))
        case Repeat(body, least, limit):
            single = isinstance(body, Characters)
            text = write(body) if single else f"(?:{write(body)})"
            return f"{text}{{{least},{'' if limit is None else limit}}}"
        case _:
            return {START: "^", END: "$"}[node]


def _write_part(node: Node) -> str:
    return f"(?:{write(node)})" if isinstance(node, Alternatives) else write(node)


def looks(node: Node) -> Iterator[LookAround]:
    """Yield the look-arounds in a node, also those within others; START and END are such."""
    match node:
        case Concatenation(nodes) | Alternatives(nodes):
            for inner in nodes:
                yield from looks(inner)
        case Repeat(body, _, _):
            yield from looks(body)
        case LookAround(_, _, body):
            yield node
            yield from looks(body)


def length(node: Node) -> int | None:
    """Return how many characters a node has; None where texts of several lengths match."""
    match node:
        case Characters():
            return 1
        case LookAround():
            return 0
        case Concatenation(parts):
            lengths = [length(part) for part in parts]
            return None if None in lengths else sum(n for n in lengths if n is not None)
        case Alternatives(options):
            lengths = [*{length(option) for option in options}]
            return lengths[0] if len(lengths) == 1 else None
        case Repeat(body, least, limit):
            of_body = length(body)
            return least * of_body if of_body is not None and least == limit else None
