"""A call's arguments while they are written, given to clients as JSON.

Knows the forms of arguments and the schema's types, which say whether a text without quotes is a
string. Pieces are certain: none is taken back, and all together are the JSON of the arguments, or
the text of a custom tool.
"""

import json
import re
from collections.abc import Callable

from cutaway.text.characters import TextStream
from cutaway.text.tools.parameters import (
    ANY,
    ARRAY,
    NUMBER,
    NUMBER_REGEX,
    OBJECT,
    SPELLINGS,
    STRING,
    ParameterList,
    types_of,
)
from cutaway.text.tools.tool import Tool

# -- JSON that arrives in pieces ---------------------------------------------------------------


class ValueEnd:
    """Finds the end of one object, array or string."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False

    def push(self, data: bytes) -> int | None:
        """How many of these bytes belong to the value, if it ends here; None if it goes on."""
        for index, byte in enumerate(data):
            if self._step(byte):
                return index + 1
        return None

    def _step(self, byte: int) -> bool:
        if self._escaped:
            self._escaped = False
        elif self._in_string:
            self._escaped = byte == ord("\\")
            self._in_string = byte != ord('"')
            return not self._in_string and self._depth == 0
        elif byte == ord('"'):
            self._in_string = True
        elif byte in b"{[":
            self._depth += 1
        elif byte in b"}]":
            self._depth -= 1
            return self._depth <= 0
        return False


# Whole characters and escapes; of a surrogate pair both halves or none.
_WHOLE = re.compile(
    r'(?:[^\\"]|\\[^u]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}'
    r"|\\u(?![dD][89abAB])[0-9a-fA-F]{4})*"
)


class Unescape:
    """The text of a JSON string, as far as it has come."""

    def __init__(self) -> None:
        self._held = ""
        self._begun = False

    def push(self, text: str) -> str:
        """What these characters of the JSON add, perhaps ""."""
        self._held += text
        if not self._begun and self._held:
            self._begun, self._held = True, self._held.removeprefix('"')
        match = _WHOLE.match(self._held)
        size = match.end() if match else 0
        whole, self._held = self._held[:size], self._held[size:]
        return str(json.loads(f'"{whole}"', strict=False))


# -- readers -----------------------------------------------------------------------------------

_BLANK = b" \t\r\n"
_PLAIN = re.compile(rb"[\w.+-]+")
_WORD = re.compile(rb"[^{}\[\],:]+")
_QUOTED = re.compile(rb"(?:[^'\\]|\\.)*", re.DOTALL)
_ESCAPES = re.compile(r'\\.|["\x00-\x1f]', re.DOTALL)
_NUMBER = re.compile(NUMBER_REGEX)
_JSON = {word: name for name, spelled in SPELLINGS.items() for word in spelled}


class JsonReader:
    """Arguments that are JSON: an object, or the string of a custom tool."""

    def __init__(self, tool: Tool) -> None:
        self._begun = False
        self._value, self._text = ValueEnd(), TextStream()
        self._unescape = Unescape() if tool.format is not None else None

    def push(self, data: bytes) -> tuple[str, bytes | None]:
        """(what these bytes add, the bytes behind the arguments or None while they go on)."""
        if not self._begun:
            data = data.lstrip(_BLANK)  # which grammars let precede a value
            self._begun = bool(data)
        size = self._value.push(data)
        text = self._text.push(data[:size])
        if self._unescape:
            text = self._unescape.push(text)
        return text, None if size is None else data[size:]


class ParameterReader:
    """Arguments that are a list of parameters. tail: what follows the last one."""

    def __init__(self, form: ParameterList, tool: Tool, tail: bytes) -> None:
        self._form, self._tail = form, tail
        self._text, self._other = _encoded(form.text), _encoded(form.other)
        self._schema = tool.parameters_schema()
        self._plain = Unescape() if tool.format is not None else None
        self._held, self._begun, self._ended = b"", False, False
        self._state: Callable[[], str] = self._between
        self._types, self._depth = ANY, 0
        self._stream, self._value = TextStream(), ValueEnd()

    def push(self, data: bytes) -> tuple[str, bytes | None]:
        """(what these bytes add, the bytes behind the arguments or None while they go on)."""
        self._held += data
        found = []
        while not self._ended:
            before = (self._state, len(self._held))
            found.append(self._state())
            if before == (self._state, len(self._held)):
                break
        return "".join(found), self._held if self._ended else None

    def _structure(self, text: str) -> str:
        """JSON around values, of which a custom tool's client sees nothing."""
        return "" if self._plain else text

    def _certain(self, text: str) -> str:
        """JSON of a value, as a client sees it."""
        return self._plain.push(text) if self._plain else text

    def _between(self) -> str:
        """Before a parameter or the end of all."""
        ahead = (self._form.between if self._begun else "") + self._form.before
        start = ahead.encode()
        if not self._held.startswith(self._tail):
            is_short = len(self._held) < len(start) and start.startswith(self._held)
            if is_short or self._tail.startswith(self._held):
                return ""
            if self._held.startswith(start):
                self._held, self._state = self._held[len(start) :], self._key
                return ""
        self._ended = True
        return self._structure("}" if self._begun else "{}")

    def _key(self) -> str:
        """A key and what is between it and its value."""
        openings = sorted({self._text[0], self._other[0]}, key=len, reverse=True)
        at = self._held.find(openings[0][:1])
        while at >= 0:
            behind = self._held[at:]
            opening = next((o for o in openings if _both(o, behind)), b"")
            if len(opening) > len(behind):
                return ""
            if opening:
                key, self._held = self._held[:at].decode(errors="replace"), behind[len(opening) :]
                return self._value_of(key, opening)
            at = self._held.find(openings[0][:1], at + 1)
        return ""

    def _value_of(self, key: str, opening: bytes) -> str:
        """The beginning of a parameter. opening: what is between its key and its value."""
        properties = self._schema.get("properties") or {}
        rest = self._schema.get("additionalProperties", True)
        self._types = types_of(properties.get(key, rest), self._schema)
        before = "," if self._begun else "{"
        self._begun, self._stream, self._value = True, TextStream(), ValueEnd()
        made = self._structure(f"{before}{json.dumps(key, ensure_ascii=False)}:")
        told = self._form.tells_strings
        is_text = opening == self._text[0] if told else self._types == {STRING}
        if is_text:
            self._state = self._quoted if self._form.escapes else self._string
            return made + self._certain('"')
        self._state = self._plain_value if told or STRING not in self._types else self._mixed
        return made

    def _string(self) -> str:
        """A string up to its closing: all but what may be the closing's beginning."""
        closing = self._text[1]
        at = self._held.find(closing)
        if at >= 0:
            text, self._held = self._held[:at], self._held[at + len(closing) :]
            self._state = self._between
            return self._certain(_escaped(self._stream.push(text) + self._stream.flush()) + '"')
        size = len(self._held) - _overlap(self._held, closing)
        text, self._held = self._held[:size], self._held[size:]
        return self._certain(_escaped(self._stream.push(text)))

    def _quoted(self) -> str:
        """A string in Python's quotes: what it escapes, JSON escapes alike."""
        match = _QUOTED.match(self._held)
        size = match.end() if match else 0
        text, self._held = self._stream.push(self._held[:size]), self._held[size:]
        made = _ESCAPES.sub(_as_json, text)
        if self._held.startswith(self._text[1]):
            self._held, self._state = self._held[len(self._text[1]) :], self._between
            made += '"'
        return self._certain(made)

    def _plain_value(self) -> str:
        """What is no string, or JSON: up to where it ends by itself."""
        self._held = self._held.lstrip(_BLANK)
        if self._held[:1] in (b"{", b"[", b'"'):
            self._state = self._nested if self._form.nested else self._json
            return ""
        match = _PLAIN.match(self._held)
        if match is None or match.end() == len(self._held):
            return ""
        self._held, self._state = self._held[match.end() :], self._closing
        word = match[0].decode(errors="replace")
        return self._certain(_plain(word))

    def _nested(self) -> str:
        """The next sign or word of an object or list whose keys have no quotes."""
        opening = self._form.quotes[0].encode()
        if self._held.startswith(opening):
            self._held, self._state = self._held[len(opening) :], self._nested_string
            return self._certain('"')
        if opening.startswith(self._held):
            return ""
        sign = self._held[:1].decode(errors="replace")
        if sign in "{}[],:":
            self._held = self._held[1:]
            self._depth += (sign in "{[") - (sign in "}]")
            self._state = self._nested if self._depth else self._closing
            return self._certain(sign)
        match = _WORD.match(self._held)
        if match is None or match.end() == len(self._held):
            return ""
        word = match[0].strip().decode(errors="replace")
        is_key = self._held[match.end() :].startswith(self._other[0])
        self._held = self._held[match.end() :]
        return self._certain(json.dumps(word, ensure_ascii=False) if is_key else _plain(word))

    def _nested_string(self) -> str:
        text = self._string()
        self._state = self._nested if self._state == self._between else self._state
        return text

    def _json(self) -> str:
        size = self._value.push(self._held)
        text, self._held = self._held[:size], self._held[len(self._held[:size]) :]
        if size is not None:
            self._state = self._closing
        return self._certain(self._stream.push(text))

    def _mixed(self) -> str:
        """A string or something else, which is only seen when it is whole."""
        nested = {name for sign, name in ((b"{", OBJECT), (b"[", ARRAY)) if self._held[:1] == sign}
        if nested & self._types:
            self._state = self._json
            return ""
        at = self._held.find(self._text[1])
        if at < 0:
            return ""
        text, self._held = self._held[:at].decode(errors="replace"), self._held[at:]
        self._state = self._closing
        if _JSON.get(text) in self._types:
            return self._certain(_JSON[text])
        if NUMBER in self._types and _NUMBER.fullmatch(text):
            return self._certain(text)
        return self._certain(f'"{_escaped(text)}"')

    def _closing(self) -> str:
        closing = self._other[1]
        if _both(closing, self._held) and len(self._held) < len(closing):
            return ""
        self._held, self._state = self._held.removeprefix(closing), self._between
        return ""


def reader(form: ParameterList | None, tool: Tool, tail: bytes) -> JsonReader | ParameterReader:
    """What reads the arguments of one call. tail: the text behind them."""
    return JsonReader(tool) if form is None else ParameterReader(form, tool, tail)


def _plain(word: str) -> str:
    """JSON of a word: a number, or true, false or null in one of their spellings."""
    return _JSON.get(word, word)


def _encoded(pair: tuple[str, str]) -> tuple[bytes, bytes]:
    return pair[0].encode(), pair[1].encode()


def _both(text: bytes, data: bytes) -> bool:
    """Whether one of the two begins with the other."""
    return text.startswith(data) or data.startswith(text)


def _overlap(data: bytes, closing: bytes) -> int:
    """How many bytes at the end of ``data`` may be the beginning of ``closing``."""
    return next(n for n in range(len(closing) - 1, -1, -1) if data.endswith(closing[:n]))


def _escaped(text: str) -> str:
    """Text as it is within a string of JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _as_json(match: re.Match[str]) -> str:
    """An escape, or what JSON wants escaped."""
    return {"\\'": "'"}.get(match[0], match[0]) if match[0][0] == "\\" else _escaped(match[0])
