"""JSON that arrives in pieces: where a value ends, and the text of a string."""

import json
import re


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
