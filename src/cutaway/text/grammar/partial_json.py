"""Read JSON byte by byte while it is written, and tell its value so far.

Text that is not JSON raises CutawayError.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from cutaway.errors import CutawayError
from cutaway.text.grammar.json_values import parse_exact

_SPACE = frozenset(b" \t\n\r")
_KINDS = {ord('"'): "string", ord("t"): "boolean", ord("f"): "boolean", ord("n"): "null"}
_LITERALS = (b"true", b"false", b"null")
MAX_DEPTH = 64


@dataclass(frozen=True)
class BegunScalar:
    """An unfinished string, number or literal; its first byte tells its kind.

    text  the digits of a number so far; "" for a string or a literal
    """

    kind: str
    text: str = ""


class ChildFacts:
    """Facts about a container's complete children; ``before`` has facts about all but the last.

    Complete children never change, so facts about a longer text extend those about a shorter one.
    """

    __slots__ = ("before", "facts")

    def __init__(self, before: "ChildFacts | None" = None) -> None:
        self.before, self.facts = before, dict[Hashable, Any]()
        if before is not None:
            before.before = None  # older facts are not needed

    def fold(
        self, key: Hashable, value: "dict[str, Any] | list[Any]",
        add: Callable[[Any, Any, Any], Any], start: Any,
    ) -> Any:  # fmt: skip
        """Fold all complete children to a fact: ``add(fact so far, place, child)`` for each."""
        if key not in self.facts:
            before = self.before
            if before is not None and key in before.facts:
                place, child = last_child(value)
                self.facts[key] = add(before.facts[key], place, child)
            else:
                fact = start
                for place, child in children(value):
                    fact = add(fact, place, child)
                self.facts[key] = fact
        return self.facts[key]


@dataclass
class OpenContainer:
    """An unfinished object or array.

    value        its complete children
    key          the key of the open or next child; None in arrays and before a key
    child        the open child; None between two children
    child_facts  facts about the complete children
    """

    value: dict[str, Any] | list[Any]
    key: str | None = None
    child: "OpenContainer | BegunScalar | None" = None
    child_facts: ChildFacts = field(default_factory=ChildFacts, compare=False)

    def put(self, child: Any) -> None:
        """Add a complete child."""
        if isinstance(self.value, list):
            self.value.append(child)
        elif self.key is None:
            raise CutawayError("the text is no JSON")
        else:
            self.value[self.key] = child
        self.key, self.child, self.child_facts = None, None, ChildFacts(self.child_facts)

    def fork(self) -> "OpenContainer":
        """Copy the parts that may still change."""
        child = self.child.fork() if isinstance(self.child, OpenContainer) else self.child
        return OpenContainer(self.value.copy(), self.key, child, self.child_facts)

    @property
    def open_child(self) -> tuple[Any, Any] | None:
        """Place and value of the open child; None between two children."""
        if isinstance(self.value, list):
            return None if self.child is None else (len(self.value), self.child)
        if self.key is None:
            return None
        return self.key, NOT_BEGUN if self.child is None else self.child


NOT_BEGUN = BegunScalar("")
"""The value of an object's member whose key alone is known."""


def children(value: dict[str, Any] | list[Any]) -> Iterable[tuple[Any, Any]]:
    """Return place and value of each child; a place is a key or an index."""
    return value.items() if isinstance(value, dict) else enumerate(value)


def last_child(value: dict[str, Any] | list[Any]) -> tuple[Any, Any]:
    """Return place and value of the last child."""
    if isinstance(value, dict):
        return next(reversed(value.items()))
    return len(value) - 1, value[-1]


def members(value: Any) -> list[tuple[str, Any]]:
    """Return the keys of an object with their values; the last value may be open."""
    if not isinstance(value, OpenContainer):
        return [*value.items()]
    assert isinstance(value.value, dict)
    pairs = [*value.value.items()]
    if value.key is not None:
        pairs.append((value.key, NOT_BEGUN if value.child is None else value.child))
    return pairs


def entries(value: Any) -> list[Any]:
    """Return the items of an array; the last item may be open."""
    if not isinstance(value, OpenContainer):
        return list(value)
    return [*value.value, *([] if value.child is None else [value.child])]


@dataclass
class PartialJson:
    """One JSON value, as far as it has been read.

    value       the complete value, or ``OpenContainer`` or ``BegunScalar``; None before it begins
    repeated    whether an object has a key twice
    exponent    whether a number has an exponent
    """

    value: Any = None
    has_begun: bool = False
    repeated: bool = False
    exponent: bool = False
    _stack: list[OpenContainer] = field(default_factory=list)
    _raw: bytearray | None = None  # the bytes of an open string, number or literal

    def fork(self) -> Self:
        """Return an independent copy."""
        value = self.value.fork() if isinstance(self.value, OpenContainer) else self.value
        stack, container = [], value
        while isinstance(container, OpenContainer):
            stack.append(container)
            container = container.child
        raw = None if self._raw is None else bytearray(self._raw)
        return type(self)(value, self.has_begun, self.repeated, self.exponent, stack, raw)

    @property
    def in_string(self) -> bool:
        """Whether a string or a key is open."""
        return self._raw is not None and self._raw[0] == ord('"')

    @property
    def in_key(self) -> bool:
        """Whether a key is open."""
        return self.in_string and self._wants_key

    @property
    def key(self) -> bytes:
        """The bytes of the open key."""
        return bytes(self._raw[1:]) if self._raw is not None and self.in_key else b""

    @property
    def latest_key(self) -> str | None:
        """The key whose value is open or comes next; None if there is no such key."""
        return self._stack[-1].key if self._stack else None

    @property
    def is_whole(self) -> bool:
        """Whether the value is complete."""
        return self.has_begun and not isinstance(self.value, (OpenContainer, BegunScalar))

    def read(self, data: bytes) -> Iterator[None]:
        """Take bytes, and yield each time that more of the value is known."""
        for byte in data:
            if self.in_string:
                yield from self._read_string_byte(byte)
            elif self._raw is not None and byte not in b",]} \t\n\r":
                yield from self._read_plain_byte(byte)
            else:
                yield from self.finish()
                yield from self._read_structure_byte(byte)

    def finish(self) -> Iterator[None]:
        """End the open number or literal, which has no closing character of its own."""
        if self._raw is not None and not self.in_string:
            yield from self._close(_parse_scalar(bytes(self._raw)))

    @property
    def _wants_key(self) -> bool:
        top = self._stack[-1] if self._stack else None
        return top is not None and isinstance(top.value, dict) and top.key is None

    def _read_plain_byte(self, byte: int) -> Iterator[None]:
        """Take a byte of a number or literal."""
        raw = self._raw
        assert raw is not None
        raw.append(byte)
        if raw in _LITERALS:
            yield from self.finish()
        elif chr(raw[0]) in "-0123456789":
            self.exponent = self.exponent or byte in b"eE"
            self._begin(BegunScalar("number", raw.decode(errors="replace")))
            yield

    def _read_string_byte(self, byte: int) -> Iterator[None]:
        raw = self._raw
        assert raw is not None
        raw.append(byte)
        if byte != ord('"') or _is_escaped(raw):
            return
        string = _parse_scalar(bytes(raw))
        if not self._wants_key:
            yield from self._close(string)
            return
        self._raw, top = None, self._stack[-1]
        self.repeated = self.repeated or string in top.value
        top.key = string
        yield

    def _read_structure_byte(self, byte: int) -> Iterator[None]:
        if byte in _SPACE or byte in b",:":
            return
        if byte in b"}]":
            if not self._stack:
                raise CutawayError("the text is no JSON")
            closed = self._stack.pop().value
            yield from self._close(closed)
        elif byte in b"{[":
            if len(self._stack) >= MAX_DEPTH:
                raise CutawayError(f"the text is nested deeper than {MAX_DEPTH}")
            opened = OpenContainer({} if byte == ord("{") else [])
            self._begin(opened)
            self._stack.append(opened)
            yield
        elif self._wants_key:
            self._raw = bytearray([byte])
        else:
            self._raw = bytearray([byte])
            kind = _KINDS.get(byte, "number")
            self._begin(BegunScalar(kind, chr(byte) if kind == "number" else ""))
            yield

    def _begin(self, value: OpenContainer | BegunScalar) -> None:
        if self._stack:
            self._stack[-1].child = value
        else:
            self.value, self.has_begun = value, True

    def _close(self, value: Any) -> Iterator[None]:
        self._raw = None
        if self._stack:
            self._stack[-1].put(value)
        else:
            self.value = value
        yield


def _is_escaped(raw: bytearray) -> bool:
    """Return whether the last byte is escaped by a backslash, or is the opening quote."""
    before = raw[1:-1]
    return len(raw) == 1 or (len(before) - len(before.rstrip(b"\\"))) % 2 == 1


def _parse_scalar(raw: bytes) -> Any:
    try:
        return parse_exact(raw.decode())
    except (ValueError, RecursionError):
        raise CutawayError("the text is no JSON") from None
