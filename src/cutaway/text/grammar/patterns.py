r"""Patterns of strings: as llguidance reads them without letting a wrong character through.

llguidance 1.9.1 writes a set with all control characters, such as ``[^"]``, as if it held ``"`` and
``\``, too. So where such a set could come about, one control character is taken out of it.
"""

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from cutaway.base.checks import shown
from cutaway.errors import InputError

if TYPE_CHECKING:
    from llguidance import LLTokenizer

CONTROL = "".join(map(chr, range(32)))
_PLAIN = re.compile(
    r"\[[^\x00-\x1f\[\]\\^](?:[^\x00-\x1f\[\]\\]|\\[^a-zA-Z0-9]|\\[dw])*\]|\\[^a-zA-Z0-9]|\\[dw]"
)
"""Sets that hold no control character whatever else is in them."""
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
def masked(pattern: str, without: str = "\0") -> str:
    """A pattern that llguidance can quote.

    It matches the same strings, but where it has a set of all control characters without ``"`` or
    ``\\``, strings that hold the character ``without`` may be left out.
    """
    sets = [(start, end) for start, end in _sets(pattern) if _lacks_quotes(pattern[start:end])]
    controls = {c for start, end in sets for c in _held(pattern[start:end]) if c in CONTROL}
    if not controls >= {*CONTROL} - {"\n"}:
        return pattern
    made, done = "", 0
    for start, end in sets:
        if without in _held(pattern[start:end]):
            made += f"{pattern[done:start]}[{pattern[start:end]}--[\\x{ord(without):02x}]]"
            done = end
    return made + pattern[done:]


def check_repetition(name: str, pattern: str) -> None:
    """InputError for a possessive repetition such as ``a++``, which llguidance takes for (a+)+."""
    plain = "".join(
        "x" * (end - start) if end - start > 1 else pattern[start]
        for start, end in _pieces(pattern)
    )
    if found := _POSSESSIVE.search(plain):
        raise InputError(
            f"{name}: {shown(pattern[: found.end()])} repeats a repetition, which may mean "
            "possessive: leave out the last +, or group what it repeats"
        )


def _sets(pattern: str) -> Iterator[tuple[int, int]]:
    """Where the sets of characters in a pattern begin and end, escapes among them."""
    for start, end in _pieces(pattern):
        if end - start > 1 or pattern[start] in CONTROL:
            yield start, end


def _pieces(pattern: str) -> Iterator[tuple[int, int]]:
    """Where classes, escapes and all other characters begin and end."""
    at = 0
    while at < len(pattern):
        start, at = at, _end(pattern, at)
        yield start, at


def _end(pattern: str, at: int) -> int:
    """Where the class, escape or other character ends that begins here."""
    if pattern[at] == "[":
        return _behind_class(pattern, at)
    escape = _ESCAPE.match(pattern, at)
    return escape.end() if escape else at + 1


def _behind_class(pattern: str, at: int) -> int:
    """Where a class ends that begins with ``[`` here; it may hold others."""
    at += 1 + pattern.startswith("^", at + 1)
    while pattern.startswith("-", at):
        at += 1
    at += pattern.startswith("]", at)  # the first is a character
    while at < len(pattern) and pattern[at] != "]":
        at = _end(pattern, at)
    return at + 1


def _lacks_quotes(characters: str) -> bool:
    held = _held(characters)
    return not {'"', "\\"} <= held


@lru_cache(1024)
def _held(characters: str) -> frozenset[str]:
    """The control characters and quotes in a set; none where it has no control characters."""
    from llguidance import LLMatcher, regex_to_lark

    if _PLAIN.fullmatch(characters):
        return frozenset()
    source = LLMatcher.grammar_from_regex(regex_to_lark(characters, "dw"))
    matcher = LLMatcher(byte_tokenizer(), source, log_level=0)
    if matcher.is_error():
        return frozenset()
    return frozenset(c for c in CONTROL + '"\\' if matcher.validate_tokens([ord(c)]))
