"""Write a pattern with look-around as patterns without it, which masks can enforce.

A look-around that is a fixed number of characters from an end of the text is a condition on the
whole text: it becomes a pattern of its own, beside the rest. The texts of any other pattern are
those of an automaton, which is written as a pattern again.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain, islice, product
from typing import NamedTuple

from cutaway.base.checks import shown
from cutaway.errors import InputError
from cutaway.text.grammar.patterns.automaton import pattern_of
from cutaway.text.grammar.patterns.nodes import (
    ANY,
    END,
    START,
    Alternatives,
    Concatenation,
    LookAround,
    Node,
    NotPlainError,
    length,
    looks,
    parse,
    write,
)
from cutaway.text.grammar.patterns.sets import translate

_MOST_OPTIONS = 32
_FARTHEST = 256
"""Characters from an end of the text to a look-around that is a pattern of its own."""
_LOOK_AROUND = re.compile(r"\(\?<?[=!]|\\[bB]")


class Plain(NamedTuple):
    """A pattern without look-around.

    text        what it matches
    is_start    only at the start of a text, as after ``^``
    is_end      only at the end of a text, as before ``$``
    """

    text: str
    is_start: bool = True
    is_end: bool = True

    def search(self) -> str:
        """Return a pattern that matches somewhere in a text, as JSON Schema's do."""
        return f"{'^' * self.is_start}{self.text}{'$' * self.is_end}"

    def whole(self) -> str:
        """Return a regular expression of the whole text."""
        start, end = r"[\s\S]*" * (not self.is_start), r"[\s\S]*" * (not self.is_end)
        return f"{start}(?:{self.text}){end}"


_ALWAYS = Plain(r"(?:[\s\S])*")
_NEVER = Plain("[]")
"""Stands for a pattern that no text matches."""


Options = tuple[tuple[Plain, ...], ...]
"""Any of these, each of which is all of several patterns."""


@lru_cache(1024)
def without_look_around(pattern: str) -> Options | None:
    """Return patterns that together match the same texts.

    None where the pattern has no look-around. NotPlainError where they would be too many or too
    long, or where the pattern has another part that cannot be read.
    """
    if looks_around(pattern):
        return plain_options(pattern)
    try:
        if all(map(_is_bounded, _some_options(parse(pattern)))):
            return None
        return plain_options(pattern)
    except NotPlainError:
        return None  # llguidance takes it, or has a reason not to


@lru_cache(1024)
def plain_options(pattern: str) -> Options:
    """Return patterns without look-around that together match the same texts as a pattern.

    NotPlainError as in ``without_look_around``
    """
    node = parse(pattern)
    options = _some_options(node)
    if len(options) > _MOST_OPTIONS:
        options = [(node,)]
    conditions = [{*_conditions(parts)} - {_ALWAYS} for parts in options]
    return tuple(tuple(sorted(all_of)) for all_of in conditions if _NEVER not in all_of)


def looks_around(pattern: str) -> bool:
    """Return whether a pattern has the notation of look-around, which llguidance does not take."""
    return _LOOK_AROUND.search(pattern) is not None


def patterns_of(pattern: str) -> tuple[tuple[str, ...], ...]:
    """Return a schema's pattern as patterns that llguidance takes: any of (all of these)."""
    pattern = translate(pattern)
    with _refusing("json_schema", f": pattern {shown(pattern)}"):
        options = without_look_around(pattern)
    if options is None:
        return ((pattern,),)
    return tuple(tuple(plain.search() for plain in conditions) for conditions in options)


def as_single_pattern(pattern: str) -> str | None:
    """Return a schema's pattern as a pattern that llguidance takes; None if no text matches."""
    pattern = translate(pattern)
    with _refusing("json_schema", f": pattern {shown(pattern)}"):
        options = without_look_around(pattern)
        if options is None:
            return pattern
        if len(options) == 1 and len(options[0]) == 1:
            return options[0][0].search()
        single = _automaton((parse(pattern),))
        return None if single == _NEVER else single.search()


def lark_of_regex(regex: str) -> str | None:
    """Return Lark's expression of the texts of a regular expression; None without look-around."""
    with _refusing("regex"):
        options = without_look_around(f"^(?:{regex})$")
        return None if options is None else _lark(options)


def lark_of_pattern(pattern: str) -> str:
    """Return Lark's expression of the texts in which a pattern matches."""
    with _refusing("pattern", f" {shown(pattern)}"):
        return _lark(plain_options(translate(pattern)))


def whole_texts(pattern: str) -> str:
    """Return a regular expression of the whole texts in which a pattern matches.

    NotPlainError if it is not a single pattern without look-around.
    """
    options = plain_options(pattern)
    if any(len(conditions) != 1 for conditions in options):
        raise NotPlainError("it is several patterns")
    return "|".join(plain.whole() for (plain,) in options)


@contextmanager
def _refusing(name: str, place: str = "") -> Iterator[None]:
    try:
        yield
    except NotPlainError as error:
        raise InputError(name, f"{place}: {error}") from None


def _lark(options: Options) -> str:
    from llguidance import regex_to_lark

    if not options:
        raise NotPlainError("no text matches it")
    alternatives = (
        " & ".join(f"/{regex_to_lark(plain.whole(), 'dw')}/" for plain in conditions)
        for conditions in options
    )
    return " | ".join(f"({all_of or '/(?s:.*)/'})" for all_of in alternatives)


Parts = tuple[Node, ...]


def _options(node: Node) -> Iterator[Parts]:
    """Yield what a node matches without alternatives that look around, as nodes in a row."""
    match node:
        case Concatenation(parts):
            for combination in product(*map(_some_options, parts)):
                yield tuple(chain.from_iterable(combination))
        case Alternatives(options) if any(looks(node)):
            for option in options:
                yield from _options(option)
        case _:
            yield (node,)


def _some_options(node: Node) -> list[Parts]:
    return [*islice(_options(node), _MOST_OPTIONS + 1)]


def _is_plain(parts: Parts) -> bool:
    return not any(looks(Concatenation(parts)))


def _is_bounded(parts: Parts) -> bool:
    """Return whether nodes look around at their start and their end alone, and there for these."""
    inner = parts[parts[:1] == (START,) :]
    return _is_plain(inner[: len(inner) - (inner[-1:] == (END,))])


def _conditions(parts: Parts) -> Iterator[Plain]:
    """Yield patterns that all match the texts of these nodes in a row."""
    separate: list[Parts] = []
    is_start, is_end = _is_bound(parts, START), _is_bound(parts[::-1], END)
    if is_start:
        parts, separable = _split(parts, START)
        separate += [(START, *[ANY] * distance, look) for look, distance in separable]
    if is_end:
        backwards, separable = _split(parts[::-1], END)
        parts = backwards[::-1]
        separate += [(look, *[ANY] * distance, END) for look, distance in separable]
    if parts or (is_start and is_end):
        whole = (*[START] * is_start, *parts, *[END] * is_end)
        inner = Concatenation(parts)
        yield Plain(write(inner), is_start, is_end) if _is_plain(parts) else _automaton(whole)
    for condition in separate:
        yield from _condition(condition)


def _condition(parts: Parts) -> Iterator[Plain]:
    """Yield patterns of a condition: a look-around, and how far it is from an end of the text."""
    ahead, behind = parts[-1], parts[0]
    if isinstance(ahead, LookAround) and ahead.ahead and not ahead.negated and parts[0] == START:
        inner = (*parts[:-1], ahead.body)
    elif (
        isinstance(behind, LookAround) and not (behind.ahead or behind.negated) and parts[-1] == END
    ):
        inner = (behind.body, *parts[1:])
    else:
        yield _automaton(parts)
        return
    options = _some_options(Concatenation(inner))
    if len(options) == 1:
        yield from _conditions(options[0])
    else:
        yield _automaton(parts)


def _is_bound(parts: Parts, edge: LookAround) -> bool:
    """Return whether nodes match at an end of the text alone, or where they look as far as that."""
    for node in parts:
        if node == edge:
            return True
        if not isinstance(node, LookAround):
            return False
        if node.ahead is not edge.ahead and not node.negated and _reaches(node, edge):
            return True
    return False


def _reaches(look: LookAround, edge: LookAround) -> bool:
    """Return whether a look-around reaches as far as an end of the text in each alternative."""
    options = _some_options(look.body)
    nearest = 0 if look.ahead else -1
    return len(options) <= _MOST_OPTIONS and all(
        option and option[nearest] == edge for option in options
    )


def _split(parts: Parts, edge: LookAround) -> tuple[Parts, list[tuple[LookAround, int]]]:
    """Return (nodes without look-arounds at a fixed distance from the first, those with it)."""
    inner: list[Node] = []
    separate: list[tuple[LookAround, int]] = []
    distance: int | None = 0
    for node in parts:
        if isinstance(node, LookAround) and distance is not None:
            if node != edge or distance:
                separate.append((node, distance))
        else:
            inner.append(node)
            more = length(node)
            distance = None if distance is None or more is None else distance + more
            if distance is not None and distance > _FARTHEST:
                distance = None
    return tuple(inner), separate


def _automaton(parts: Parts) -> Plain:
    pattern = pattern_of(Concatenation(parts))
    return _NEVER if pattern is None else Plain(pattern)
