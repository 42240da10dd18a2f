"""A part of a server's answer, which is JSON: read as what it should be, or an error that names it.

Knows no protocol. What a server sends is whatever it likes: every reader of it says here what it
takes for what, and nobody meets a list where a text should be.
"""

from collections.abc import Iterator
from math import isfinite
from typing import Any

from cutaway.base.checks import shown
from cutaway.errors import CutawayError


class UnreadableError(CutawayError):
    """A server's answer is no JSON, has no end, or is not of the form that was asked for."""


class AnswerPart:
    """A value in an answer; where: the server's address, and the way to the value, for errors.

    Every method but ``value``, ``has`` and ``get`` raises ``UnreadableError`` where the server sent
    something else.
    """

    def __init__(self, value: Any, where: str) -> None:
        self.value, self.where = value, where

    def __getitem__(self, name: str | int) -> "AnswerPart":
        """A field of an object, or an item of a list."""
        if isinstance(name, str):
            if name not in self.fields:
                raise UnreadableError(f"{self.where}: it has no {name}")
            return AnswerPart(self.value[name], f"{self.where}.{name}")
        if not -len(self.items) <= name < len(self.value):
            raise UnreadableError(f"{self.where}: it has {len(self.value)} items, and no {name}")
        return AnswerPart(self.value[name], f"{self.where}[{name}]")

    def __iter__(self) -> Iterator["AnswerPart"]:
        """The items of a list."""
        return (self[i] for i in range(len(self.items)))

    def has(self, name: str) -> bool:
        """Whether this is an object with the field, which is not null."""
        return isinstance(self.value, dict) and self.value.get(name) is not None

    def get(self, name: str) -> "AnswerPart | None":
        """The field of an object; None where there is none, or null."""
        return self[name] if self.has(name) else None

    def each(self, name: str) -> list["AnswerPart"]:
        """The items of a list that is a field; none where there is no field, or null."""
        return [*self[name]] if self.has(name) else []

    @property
    def fields(self) -> dict[str, Any]:
        """An object."""
        fields: dict[str, Any] = self._of(dict, "an object")
        return fields

    @property
    def items(self) -> list[Any]:
        """A list."""
        items: list[Any] = self._of(list, "a list")
        return items

    @property
    def text(self) -> str:
        """A text, without halves of surrogate pairs."""
        text: str = self._of(str, "a text")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise self.unlike("a text of whole characters") from None
        return text

    @property
    def whole(self) -> int:
        """A whole number; no bool."""
        number: int = self._of(int, "a whole number")
        return number

    @property
    def number(self) -> float:
        """A finite number; no bool."""
        number: float = self._of((int, float), "a number")
        try:
            if isfinite(number):
                return float(number)
        except OverflowError:  # a whole number beyond float64
            pass
        raise self.unlike("a finite number")

    @property
    def logprob(self) -> float | None:
        """A number, or null."""
        return None if self.value is None else self.number

    @property
    def byte_string(self) -> bytes:
        """A list of whole numbers, 0 to 255."""
        try:
            return bytes(part.whole for part in self)
        except ValueError:
            raise self.unlike("a list of bytes") from None

    def unlike(self, kind: str) -> UnreadableError:
        """The error of a value that is not what it should be."""
        return UnreadableError(f"{self.where}: it should be {kind}, and is {shown(self.value)}")

    def _of(self, kind: Any, name: str) -> Any:
        if not isinstance(self.value, kind) or isinstance(self.value, bool):
            raise self.unlike(name)
        return self.value
