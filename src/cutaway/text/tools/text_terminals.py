"""Strings and plain values without quotes, as terminals of llguidance's Lark.

Knows what JSON Schema says of strings. What it cannot say here is an InputError.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from cutaway.errors import InputError
from cutaway.text.grammar import calendar_formats
from cutaway.text.grammar.patterns import check_repetition
from cutaway.text.grammar.subschemas import STANDARD_FORMATS
from cutaway.text.tools.schema_types import NUMBER, STRING, narrowed, resolved, types_of

SPELLINGS = {"true": ("true", "True"), "false": ("false", "False"), "null": ("null", "None")}
"""A plain value -> its words, JSON's and Python's: templates write one or the other."""

NUMBER_REGEX = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"
_INTEGER_REGEX = r"-?(0|[1-9][0-9]*)"
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")

_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL = r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HOST = rf"{_LABEL}(\.{_LABEL})*"
_FORMATS = {
    **calendar_formats.PATTERNS,
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "uuid": "[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}",
    "hostname": _HOST,
    "email": rf"[a-zA-Z0-9_+-]+(\.[a-zA-Z0-9_+-]+)*@{_HOST}",
    "uri": r"[a-zA-Z][a-zA-Z0-9+.-]*:[a-zA-Z0-9._~:/?#@!$&'()*+,;=%\[\]-]+",
}

Define = Callable[[str], str]  # an expression -> the name of the terminal that it becomes


def text(schema: Any, root: Mapping[str, Any], define: Define) -> str:
    """The terminal of a schema's strings."""
    here = resolved(schema, root)
    parts = [one for name, value in here.items() if (one := _keyword(name, value, define))]
    for one in here.get("allOf", ()):
        parts.append(text(one, root, define))
    for name in ("anyOf", "oneOf"):
        if name in here:
            ways = [one for one in here[name] if STRING in types_of(one, root)]
            parts.append(define(" | ".join(text(one, root, define) for one in ways)))
    shortest, longest = here.get("minLength", 0), here.get("maxLength")
    if shortest or longest is not None:
        until = "" if longest is None else longest
        parts.append(define(f"/(?s:.){{{shortest},{until}}}/"))
    return define(" & ".join(parts)) if parts else "ANY"


def _keyword(name: str, value: Any, define: Define) -> str:
    """The terminal of one keyword; "" of one that says nothing of a string by itself."""
    if name == "enum":
        return define(alternatives([one for one in value if isinstance(one, str)]))
    if name == "const":
        return define(alternatives([value]))
    if name == "pattern":
        check_repetition("pattern", value)
        return define(" | ".join(f"/{_ascii(way)}/" for way in _unanchored(value)))
    if name == "format" and value in STANDARD_FORMATS:
        if value not in _FORMATS:
            known = ", ".join(_FORMATS)
            raise InputError(f'the format "{value}" is none of {known}; give a pattern')
        return define(f"/{slashes(_FORMATS[value])}/")
    if name in ("not", "if"):
        raise InputError(f'"{name}" of a string is not supported; give a pattern')
    return ""


def alternatives(texts: Sequence[str]) -> str:
    """An expression of the texts."""
    return " | ".join(json.dumps(one, ensure_ascii=False) for one in texts)


def slashes(regex: str) -> str:
    """A regex between slashes."""
    return re.sub(r"\\.|/", lambda m: r"\/" if m[0] == "/" else m[0], regex, flags=re.S)


def _ascii(regex: str) -> str:
    r"""A regex between slashes, whose ``\d`` and ``\w`` are ASCII, as ECMA 262 has them."""
    from llguidance import regex_to_lark  # only here: most requests have no pattern

    return regex_to_lark(regex, "dw")


def _unanchored(pattern: str) -> list[str]:
    """The regexes of the whole texts in which ``pattern``, with its anchors, is found."""
    ways = []
    for way in _ways(pattern):
        begins, ends = way.startswith("^"), re.search(r"(?<!\\)(\\\\)*\$$", way) is not None
        middle = way[begins : len(way) - ends]
        ways.append(f"{'' if begins else '(?s:.*)'}({middle}){'' if ends else '(?s:.*)'}")
    return ways


def _ways(pattern: str) -> list[str]:
    """A regex cut where it has a | outside of brackets."""
    ways, depth, in_class = [""], 0, False
    for piece in re.findall(r"\\.|.", pattern, re.S):
        in_class = piece != "]" if in_class else piece == "["
        depth += (piece == "(") - (piece == ")") if not in_class else 0
        if piece == "|" and not depth and not in_class:
            ways.append("")
        else:
            ways[-1] += piece
    return ways


def words(types: Set[str]) -> list[str]:
    """All spellings of true, false and null, as far as these are among the types."""
    return [word for name, spelled in SPELLINGS.items() if name in types for word in spelled]


def numbers(schema: Any, root: Mapping[str, Any]) -> list[str]:
    """Expressions of a schema's numbers.

    InputError for bounds: beside a string without quotes a number is a matter of characters.
    """
    here = resolved(narrowed(schema, {NUMBER}, root), root)
    found: list[str] = []
    for name in ("anyOf", "oneOf", "allOf"):
        for one in here.get(name, ()):
            found += numbers(one, root)
    if found:
        return found
    if "enum" in here:
        return [json.dumps(json.dumps(value)) for value in here["enum"]]
    if bound := next((name for name in _BOUNDS if name in here), ""):
        raise InputError(f'"{bound}" beside a string is not supported; leave it out')
    is_integer = here.get("type") in ("integer", ["integer"])
    return [f"/{_INTEGER_REGEX if is_integer else NUMBER_REGEX}/"]
