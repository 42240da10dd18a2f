"""How a dialect writes the arguments of a call where they are not one JSON object.

Knows the texts around keys and values. Refuses to know schemas and calls.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ParameterList:
    """before KEY opening VALUE closing  (between  before KEY opening VALUE closing)…

    before:  precedes each key
    text:    (opening, closing) of a string, which stands between them as it is
    other:   the same of any other value, which is JSON
    between: between two parameters
    nested:  whether objects and lists within are in the same form, in { } and [ ], and not JSON
    """

    before: str
    text: tuple[str, str]
    other: tuple[str, str]
    between: str = ""
    nested: bool = False

    @property
    def tells_strings(self) -> bool:
        """Whether what is around a value says if it is a string."""
        return self.text != self.other

    @property
    def escapes(self) -> bool:
        """Whether strings have backslashes, as Python writes them, and may be JSON, too."""
        return self.text[1] == "'"

    @property
    def quotes(self) -> tuple[str, str]:
        """What is around a string alone."""
        return self.text[0].removeprefix(self.other[0]), self.text[1].removesuffix(self.other[1])

    @property
    def texts(self) -> tuple[str, ...]:
        """All literal texts."""
        return (self.before, *self.text, *self.other, self.between)

    def write(self, arguments: Mapping[str, Any]) -> str:
        """The text of ``arguments``."""
        return self.between.join(
            self.before + key + self._value(value) for key, value in arguments.items()
        )

    def _value(self, value: Any) -> str:
        if self.nested:
            return self.nested_text(value).join(self.other)
        if not isinstance(value, str):
            return json.dumps(value, ensure_ascii=False).join(self.other)
        if self.escapes:
            value = json.dumps(value, ensure_ascii=False)[1:-1].replace(r"\"", '"')
            value = value.replace("'", r"\'")
        return str(value).join(self.text)

    def nested_text(self, value: Any) -> str:
        """A value as it is within a list."""
        if isinstance(value, str):
            return value.join(self.quotes)
        if isinstance(value, Mapping):
            return f"{{{self.write(value)}}}"
        if isinstance(value, list):
            return f"[{self.between.join(map(self.nested_text, value))}]"
        return json.dumps(value)
