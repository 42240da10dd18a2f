"""Sets of characters in a pattern: where they are, what they have, how llguidance reads them.

Patterns are changed so that llguidance lets no wrong character through. Release 1.9.1 quotes a set
with all control characters, such as ``[^"]``, as if the set also had ``"`` and ``\\``. So one
control character is taken out of every set that may have all of them.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from cutaway.base.checks import shown
from cutaway.errors import InputError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


CONTROL = "".join(map(chr, range(32)))
_PLAIN = re.compile(
    r"\[[^\x00-\x1f\[\]\\^](?:[^\x00-\x1f\[\]\\]|\\[^a-zA-Z0-9]|\\[dw])*\]|\\[^a-zA-Z0-9]|\\[dw]"
)
"""Matches sets that certainly have no control character."""
_POSSESSIVE = re.compile(r"(?:[*+]|(?<!\()\?|\{[0-9]+(?:,[0-9]*)?\})\+")
_ESCAPE = re.compile(
    r"\\(?:[pP]\{[^}]*\}|[xuU]\{[^}]*\}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[pPc].|.)",
    re.DOTALL,
)


@cache
def byte_tokenizer() -> "LLTokenizer":
    """A vocabulary of the 256 bytes."""
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


@lru_cache(1024)
def make_quotable(pattern: str, without: str = "\0") -> str:
    """Return a pattern that llguidance quotes correctly.

    It matches the same strings, except that where a set has all control characters but not ``"``
    and ``\\``, strings with the character ``without`` may be left out.
    """
    sets = [(start, end) for start, end in _sets(pattern) if _lacks_quotes(pattern[start:end])]
    controls = {
        c for start, end in sets for c in _special_members(pattern[start:end]) if c in CONTROL
    }
    if not controls >= {*CONTROL} - {"\n"}:
        return pattern
    quotable, done = "", 0
    for start, end in sets:
        if without in _special_members(pattern[start:end]):
            quotable += f"{pattern[done:start]}[{pattern[start:end]}--[\\x{ord(without):02x}]]"
            done = end
    return quotable + pattern[done:]


_ENDS = {r"\A": "^", r"\Z": "$", r"\z": "$"}
"""Other notations' ends of a text -> ECMAScript's."""
_PROPERTIES = {r"\p{Graph}": "!-~", r"\p{Print}": " -~"}
"""Java's names of sets, which llguidance lacks -> what is between brackets."""
_HALF = r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
_HALVES = (
    (re.compile(f"{_HALF}(?:-{_HALF})"), ""), (re.compile(f"-{_HALF}"), r"-\\uD7FF"),
    (re.compile(f"{_HALF}-"), r"\\uE000-"), (re.compile(_HALF), ""),
)  # fmt: skip
"""Takes halves of characters, which no JSON text has, out of a class; in this order."""


@lru_cache(1024)
def translate(pattern: str) -> str:
    """Return a pattern in llguidance's notation, the same if it is in that already."""
    return "".join(_translate_piece(pattern[start:end]) for start, end in _pieces(pattern))


def _translate_piece(piece: str) -> str:
    if piece in _ENDS:
        return _ENDS[piece]
    if piece in _PROPERTIES:
        return f"[{_PROPERTIES[piece]}]"
    if piece.startswith("["):
        for name, members in _PROPERTIES.items():
            piece = piece.replace(name, members)
        for half, replacement in _HALVES:
            piece = half.sub(replacement, piece)
    return piece


def check_repetition(name: str, pattern: str) -> None:
    """Raise InputError for a possessive repetition: llguidance takes ``a++`` for (a+)+."""
    plain = "".join(
        "x" * (end - start) if end - start > 1 else pattern[start]
        for start, end in _pieces(pattern)
    )
    if match := _POSSESSIVE.search(plain):
        raise InputError(
            name,
            f": {shown(pattern[: match.end()])} repeats a repetition, which may mean "
            "possessive: leave out the last +, or group what it repeats",
        )


def _sets(pattern: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each set of characters in a pattern; escapes are sets, too."""
    for start, end in _pieces(pattern):
        if end - start > 1 or pattern[start] in CONTROL:
            yield start, end


def _pieces(pattern: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each class, escape and other character."""
    at = 0
    while at < len(pattern):
        start, at = at, end_of_piece(pattern, at)
        yield start, at


def end_of_piece(pattern: str, at: int) -> int:
    """Return the end of the class, escape or other character that begins here."""
    if pattern[at] == "[":
        return _end_of_class(pattern, at)
    escape = _ESCAPE.match(pattern, at)
    return escape.end() if escape else at + 1


def _end_of_class(pattern: str, at: int) -> int:
    """Return the end of a class that begins here with ``[``; classes may be nested."""
    at += 1 + pattern.startswith("^", at + 1)
    at += pattern.startswith("]", at)  # a ] in the first place is a character
    while at < len(pattern) and pattern[at] != "]":
        at = end_of_piece(pattern, at)
    return at + 1


def _lacks_quotes(characters: str) -> bool:
    members = _special_members(characters)
    return not {'"', "\\"} <= members


@lru_cache(1024)
def _special_members(characters: str) -> frozenset[str]:
    """Return a set's control characters, ``"`` and ``\\``; none if ``_PLAIN`` matches the set."""
    if _PLAIN.fullmatch(characters) or (matcher := _matcher(characters)).is_error():
        return frozenset()
    return frozenset(c for c in CONTROL + '"\\' if matcher.validate_tokens([ord(c)]))


@lru_cache(1024)
def _matcher(characters: str) -> "LLMatcher":
    """Return a matcher of one character of a set, which has an error where none is known."""
    from llguidance import LLMatcher, regex_to_lark

    source = LLMatcher.grammar_from_regex(regex_to_lark(characters, "dw"))
    return LLMatcher(byte_tokenizer(), source, log_level=0)


_LIKELY = "a0A-_./:=+ "
_ASCII = (*_LIKELY, *filter(lambda c: c not in _LIKELY, map(chr, range(32, 127))))


def some_member(characters: str) -> str | None:
    """Return a character of a set, a printable one of ASCII; None if there is no such one."""
    matcher = _matcher(characters)
    if matcher.is_error():
        return None
    return next((c for c in _ASCII if matcher.validate_tokens([ord(c)])), None)


# -- what sets have in common ------------------------------------------------------------------

_ESCAPED = re.compile(r"\\([^a-zA-Z0-9])", re.DOTALL)


def only_member(characters: str) -> str | None:
    """Return the character of a set that is written as that character; None: any other set."""
    if len(characters) == 1 and characters != ".":
        return characters
    escaped = _ESCAPED.fullmatch(characters)
    return escaped[1] if escaped else None


def is_some(having: Sequence[str], lacking: Sequence[str]) -> bool:
    """Return whether some character is of these sets and not of those."""
    return _has_member(_intersect(having, lacking))


@lru_cache(4096)
def _has_member(characters: str) -> bool:
    from llguidance import LLMatcher

    schema = json.dumps({"type": "string", "pattern": f"^{characters}$"})
    source = LLMatcher.grammar_from_json_schema(schema, overrides={"lenient": False})
    return not LLMatcher(byte_tokenizer(), source, log_level=0).is_error()


def combine(ways: Iterable[tuple[Sequence[str], Sequence[str]]]) -> str:
    """Return a set of the characters of any of (sets that have it, sets that do not).

    Each of these pairs has a character: where a set has a single one, that is the pair's.
    """
    parts = []
    for having, lacking in ways:
        single = [name for name in having if only_member(name) is not None]
        parts.append(_intersect(single[:1], ()) if single else _intersect(having, lacking))
    return parts[0] if len(parts) == 1 else f"[{''.join(parts)}]"


def _intersect(having: Sequence[str], lacking: Sequence[str]) -> str:
    are, are_not = [*map(_bracket, having)], [*map(_bracket, lacking)]
    if not are:
        return f"[^{''.join(are_not)}]" if are_not else r"[\s\S]"
    if len(are) == 1 and not are_not:
        return are[0]
    return f"[{'&&'.join(are)}{''.join(f'--{other}' for other in are_not)}]"


def _bracket(characters: str) -> str:
    if characters.startswith("["):
        return characters
    if characters == ".":
        return r"[^\n]"
    only = only_member(characters)
    return f"[{characters if only is None or only.isalnum() else chr(92) + only}]"
