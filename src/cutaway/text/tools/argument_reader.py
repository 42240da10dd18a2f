"""Read a call's arguments while they are written, and return them as JSON.

Knows the forms of arguments and the schema's types, which decide whether a text without quotes is a
string. A returned piece is final. Joined, the pieces are the JSON of the arguments, or the text of
a custom tool.
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
        """Return how many of these bytes belong to the value; None if it continues."""
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


# Whole characters and escapes; a surrogate pair has both halves.
_WHOLE = re.compile(
    r'(?:[^\\"]|\\[^u]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}'
    r"|\\u(?![dD][89abAB])[0-9a-fA-F]{4})*"
)


class Unescape:
    """Decodes a JSON string that arrives in pieces."""

    def __init__(self) -> None:
        self._pending = ""
        self._is_past_quote = False

    def push(self, text: str) -> str:
        """Return the text that these characters of the JSON complete; "" if none."""
        self._pending += text
        if not self._is_past_quote and self._pending:
            self._is_past_quote, self._pending = True, self._pending.removeprefix('"')
        match = _WHOLE.match(self._pending)
        size = match.end() if match else 0
        whole, self._pending = self._pending[:size], self._pending[size:]
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
    """Reads arguments that are JSON: an object, or the string of a custom tool."""

    def __init__(self, tool: Tool) -> None:
        self._has_bytes = False
        self._value, self._text = ValueEnd(), TextStream()
        self._unescape = Unescape() if tool.format is not None else None

    def push(self, data: bytes) -> tuple[str, bytes | None]:
        """Return (new text, the bytes after the arguments; None before the arguments end)."""
        if not self._has_bytes:
            data = data.lstrip(_BLANK)  # grammars allow white space before a value
            self._has_bytes = bool(data)
        size = self._value.push(data)
        text = self._text.push(data[:size])
        if self._unescape:
            text = self._unescape.push(text)
        return text, None if size is None else data[size:]


class ParameterReader:
    """Reads arguments that are a list of parameters. tail: the text after the last parameter."""

    def __init__(self, form: ParameterList, tool: Tool, tail: bytes) -> None:
        self._form, self._tail = form, tail
        self._text, self._other = _encode_pair(form.text), _encode_pair(form.other)
        self._schema = tool.parameters_schema()
        self._plain = Unescape() if tool.format is not None else None
        self._pending, self._has_parameter, self._is_over = b"", False, False
        self._state: Callable[[], str] = self._next_parameter
        self._types, self._depth = ANY, 0
        self._stream, self._value = TextStream(), ValueEnd()

    def push(self, data: bytes) -> tuple[str, bytes | None]:
        """Return (new text, the bytes after the arguments; None before the arguments end)."""
        self._pending += data
        texts = []
        while not self._is_over:
            before = (self._state, len(self._pending))
            texts.append(self._state())
            if before == (self._state, len(self._pending)):
                break
        return "".join(texts), self._pending if self._is_over else None

    def _structure(self, text: str) -> str:
        """Return JSON between values; "" for a custom tool, whose client gets the text alone."""
        return "" if self._plain else text

    def _certain(self, text: str) -> str:
        """Return JSON of a value, unescaped for a custom tool."""
        return self._plain.push(text) if self._plain else text

    def _next_parameter(self) -> str:
        """Read up to the key of the next parameter, or to the end of the list."""
        ahead = (self._form.between if self._has_parameter else "") + self._form.before
        start = ahead.encode()
        if not self._pending.startswith(self._tail):
            is_short = len(self._pending) < len(start) and start.startswith(self._pending)
            if is_short or self._tail.startswith(self._pending):
                return ""
            if self._pending.startswith(start):
                self._pending, self._state = self._pending[len(start) :], self._key
                return ""
        self._is_over = True
        return self._structure("}" if self._has_parameter else "{}")

    def _key(self) -> str:
        """Read a key and the text between key and value."""
        openings = sorted({self._text[0], self._other[0]}, key=len, reverse=True)
        at = self._pending.find(openings[0][:1])
        while at >= 0:
            behind = self._pending[at:]
            opening = next((o for o in openings if _may_match(o, behind)), b"")
            if len(opening) > len(behind):
                return ""
            if opening:
                key, self._pending = (
                    self._pending[:at].decode(errors="replace"),
                    behind[len(opening) :],
                )
                return self._value_of(key, opening)
            at = self._pending.find(openings[0][:1], at + 1)
        return ""

    def _value_of(self, key: str, opening: bytes) -> str:
        """Return the start of a parameter. opening: the text between key and value."""
        properties = self._schema.get("properties") or {}
        rest = self._schema.get("additionalProperties", True)
        self._types = types_of(properties.get(key, rest), self._schema)
        before = "," if self._has_parameter else "{"
        self._has_parameter, self._stream, self._value = True, TextStream(), ValueEnd()
        start = self._structure(f"{before}{json.dumps(key, ensure_ascii=False)}:")
        tells_strings = self._form.tells_strings
        is_text = opening == self._text[0] if tells_strings else self._types == {STRING}
        if is_text:
            self._state = self._quoted_string if self._form.escapes else self._string
            return start + self._certain('"')
        self._state = (
            self._plain_value if tells_strings or STRING not in self._types else self._mixed_value
        )
        return start

    def _string(self) -> str:
        """Read a string up to its closing, or to a possible beginning of its closing."""
        closing = self._text[1]
        at = self._pending.find(closing)
        if at >= 0:
            text, self._pending = self._pending[:at], self._pending[at + len(closing) :]
            self._state = self._next_parameter
            return self._certain(_escape(self._stream.push(text) + self._stream.flush()) + '"')
        size = len(self._pending) - _overlap(self._pending, closing)
        text, self._pending = self._pending[:size], self._pending[size:]
        return self._certain(_escape(self._stream.push(text)))

    def _quoted_string(self) -> str:
        """Read a string in Python's quotes, and write its escapes as JSON."""
        match = _QUOTED.match(self._pending)
        size = match.end() if match else 0
        text, self._pending = self._stream.push(self._pending[:size]), self._pending[size:]
        json_text = _ESCAPES.sub(_as_json, text)
        if self._pending.startswith(self._text[1]):
            self._pending, self._state = self._pending[len(self._text[1]) :], self._next_parameter
            json_text += '"'
        return self._certain(json_text)

    def _plain_value(self) -> str:
        """Read a value other than a bare string, up to its end."""
        self._pending = self._pending.lstrip(_BLANK)
        if self._pending[:1] in (b"{", b"[", b'"'):
            self._state = self._nested_value if self._form.nested else self._json
            return ""
        match = _PLAIN.match(self._pending)
        if match is None or match.end() == len(self._pending):
            return ""
        self._pending, self._state = self._pending[match.end() :], self._closing
        word = match[0].decode(errors="replace")
        return self._certain(_plain(word))

    def _nested_value(self) -> str:
        """Read the next sign, string or word of an object or list whose keys have no quotes."""
        opening = self._form.quotes[0].encode()
        if self._pending.startswith(opening):
            self._pending, self._state = self._pending[len(opening) :], self._nested_string
            return self._certain('"')
        if opening.startswith(self._pending):
            return ""
        sign = self._pending[:1].decode(errors="replace")
        if sign in "{}[],:":
            self._pending = self._pending[1:]
            self._depth += (sign in "{[") - (sign in "}]")
            self._state = self._nested_value if self._depth else self._closing
            return self._certain(sign)
        match = _WORD.match(self._pending)
        if match is None or match.end() == len(self._pending):
            return ""
        word = match[0].strip().decode(errors="replace")
        is_key = self._pending[match.end() :].startswith(self._other[0])
        self._pending = self._pending[match.end() :]
        return self._certain(json.dumps(word, ensure_ascii=False) if is_key else _plain(word))

    def _nested_string(self) -> str:
        text = self._string()
        self._state = self._nested_value if self._state == self._next_parameter else self._state
        return text

    def _json(self) -> str:
        size = self._value.push(self._pending)
        text, self._pending = self._pending[:size], self._pending[len(self._pending[:size]) :]
        if size is not None:
            self._state = self._closing
        return self._certain(self._stream.push(text))

    def _mixed_value(self) -> str:
        """Read a string or another value; only the complete text tells which."""
        nested = {
            name for sign, name in ((b"{", OBJECT), (b"[", ARRAY)) if self._pending[:1] == sign
        }
        if nested & self._types:
            self._state = self._json
            return ""
        at = self._pending.find(self._text[1])
        if at < 0:
            return ""
        text, self._pending = self._pending[:at].decode(errors="replace"), self._pending[at:]
        self._state = self._closing
        if _JSON.get(text) in self._types:
            return self._certain(_JSON[text])
        if NUMBER in self._types and _NUMBER.fullmatch(text):
            return self._certain(text)
        return self._certain(f'"{_escape(text)}"')

    def _closing(self) -> str:
        closing = self._other[1]
        if _may_match(closing, self._pending) and len(self._pending) < len(closing):
            return ""
        self._pending, self._state = self._pending.removeprefix(closing), self._next_parameter
        return ""


def reader(form: ParameterList | None, tool: Tool, tail: bytes) -> JsonReader | ParameterReader:
    """Return a reader of one call's arguments. tail: the text after them."""
    return JsonReader(tool) if form is None else ParameterReader(form, tool, tail)


def _plain(word: str) -> str:
    """Return JSON of a word: a number, or true, false or null in one of their spellings."""
    return _JSON.get(word, word)


def _encode_pair(pair: tuple[str, str]) -> tuple[bytes, bytes]:
    return pair[0].encode(), pair[1].encode()


def _may_match(text: bytes, data: bytes) -> bool:
    """Return whether one text begins with the other."""
    return text.startswith(data) or data.startswith(text)


def _overlap(data: bytes, closing: bytes) -> int:
    """Return how many last bytes of ``data`` may be the beginning of ``closing``."""
    return next(n for n in range(len(closing) - 1, -1, -1) if data.endswith(closing[:n]))


def _escape(text: str) -> str:
    """Escape a text as within a string of JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _as_json(match: re.Match[str]) -> str:
    """Return JSON's escape for one of Python's, or for a character that JSON escapes."""
    return {"\\'": "'"}.get(match[0], match[0]) if match[0][0] == "\\" else _escape(match[0])
