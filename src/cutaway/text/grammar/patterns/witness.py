"""A text that a pattern matches, which proves to llguidance that there is one.

llguidance asks whether any text has both a pattern and a length, and gives up where the search is
long. A pattern with one of its texts as an alternative has the same texts, and is decided at once.
"""

import json
import re
from functools import lru_cache

from cutaway.text.grammar.patterns.look_around import whole_texts
from cutaway.text.grammar.patterns.nodes import (
    Alternatives,
    Characters,
    Concatenation,
    Node,
    NotPlainError,
    Repeat,
    parse,
)
from cutaway.text.grammar.patterns.sets import byte_tokenizer, some_member

_LONGEST = 4096
"""Characters of a text."""


@lru_cache(1024)
def with_witness(pattern: str, least: int, limit: int | None) -> str:
    """Return a pattern that has the same texts, where llguidance cannot tell if one has a length.

    The pattern itself if it can, or if no such text is found.
    """
    if not _is_undecided(pattern, least, limit):
        return pattern
    try:
        whole = whole_texts(pattern)
        text = _Writer(max(least, 0)).write(parse(whole))
    except NotPlainError:
        return pattern
    proven = f"^(?:{re.sub('[^a-zA-Z0-9]', _escape, text)}|{whole})$"
    fits = least <= len(text) <= (_LONGEST if limit is None else limit)
    return proven if fits and not _is_undecided(proven, least, limit) else pattern


def _escape(match: re.Match[str]) -> str:
    return f"\\x{ord(match[0]):02x}"


def _is_undecided(pattern: str, least: int, limit: int | None) -> bool:
    from llguidance import LLMatcher

    schema = {"type": "string", "pattern": pattern, "minLength": least}
    if limit is not None:
        schema["maxLength"] = limit
    source = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"lenient": False})
    matcher = LLMatcher(byte_tokenizer(), source, log_level=0)
    return matcher.is_error() and "Unable to determine" in matcher.get_error()


class _Writer:
    """Writes a short text of a node that has no look-around, of a least length if it can.

    missing  characters that are still to be added by repetitions
    """

    def __init__(self, least: int) -> None:
        self._least = least

    def write(self, node: Node) -> str:
        """Return a text; NotPlainError if none is found."""
        shortest = self._text(node)
        self._missing = self._least - len(shortest)
        return self._text(node) if self._missing > 0 else shortest

    _missing = 0

    def _text(self, node: Node) -> str:
        match node:
            case Characters(characters):
                if (member := some_member(characters)) is None:
                    raise NotPlainError("a set has no character that is simple")
                return member
            case Concatenation(parts):
                return "".join(map(self._text, parts))
            case Alternatives(options):
                return min(map(self._text, options), key=len)
            case Repeat(body, least, limit):
                return self._repeat(body, least, limit)
            case _:
                raise NotPlainError("it looks around")

    def _repeat(self, body: Node, least: int, limit: int | None) -> str:
        if limit == 0:
            return ""
        missing, self._missing = self._missing, 0
        piece = self._text(body)
        self._missing = missing
        more = -(-missing // len(piece)) if piece and missing > 0 else 0
        if limit is not None:
            more = min(more, limit - least)
        self._missing -= more * len(piece)
        if (least + more) * len(piece) > _LONGEST:
            raise NotPlainError("its texts are too long")
        return piece * (least + more)
