"""JSON that is still being written, read byte by byte: its value so far.

Text that is not JSON raises CutawayError.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from cutaway.errors import CutawayError
from cutaway.text.grammar.json_values import parsed

_SPACE = frozenset(b" \t\n\r")
_KINDS = {ord('"'): "string", ord("t"): "boolean", ord("f"): "boolean", ord("n"): "null"}
_LITERALS = (b"true", b"false", b"null")
MAX_DEPTH = 64


@dataclass(frozen=True)
class BegunScalar:
    """A string, number or literal that is not whole; its kind is known by its first byte.

    text  of a number: what is there of it
    """

    kind: str
    text: str = ""


class ChildFacts:
    """What was found out about some whole children of a container, and about all but the last.

    Children do not change, so that a longer text need not be judged from its beginning.
    """

    __slots__ = ("before", "facts")

    def __init__(self, before: "ChildFacts | None" = None) -> None:
        self.before, self.facts = before, dict[Hashable, Any]()
        if before is not None:
            before.before = None  # of what is further back nobody asks

    def fold(
        self, key: Hashable, value: "dict[str, Any] | list[Any]",
        add: Callable[[Any, Any, Any], Any], start: Any,
    ) -> Any:  # fmt: skip
        """A fact of all children, ``add``ed up: (the fact before it, its place, the child)."""
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
    """An object or array that is not whole.

    value  what is whole of it
    key    of the child that comes next, or is begun
    child  the value that is begun; None between two
    known  what was found out about what is whole of it
    """

    value: dict[str, Any] | list[Any]
    key: str | None = None
    child: "OpenContainer | BegunScalar | None" = None
    known: ChildFacts = field(default_factory=ChildFacts, compare=False)

    def put(self, child: Any) -> None:
        """A child is whole."""
        if isinstance(self.value, list):
            self.value.append(child)
        elif self.key is None:
            raise CutawayError("the text is no JSON")
        else:
            self.value[self.key] = child
        self.key, self.child, self.known = None, None, ChildFacts(self.known)

    def fork(self) -> "OpenContainer":
        """A copy of what may still change."""
        child = self.child.fork() if isinstance(self.child, OpenContainer) else self.child
        return OpenContainer(self.value.copy(), self.key, child, self.known)

    @property
    def begun(self) -> tuple[Any, Any] | None:
        """Place and value of the child that is begun; None between two."""
        if isinstance(self.value, list):
            return None if self.child is None else (len(self.value), self.child)
        if self.key is None:
            return None
        return self.key, NOT_BEGUN if self.child is None else self.child


NOT_BEGUN = BegunScalar("")
"""In the place of a member whose key alone is known."""


def children(value: dict[str, Any] | list[Any]) -> Iterable[tuple[Any, Any]]:
    """Place and value of each child of a container: keys of an object, numbers in an array."""
    return value.items() if isinstance(value, dict) else enumerate(value)


def last_child(value: dict[str, Any] | list[Any]) -> tuple[Any, Any]:
    """Place and value of the child that came last."""
    if isinstance(value, dict):
        return next(reversed(value.items()))
    return len(value) - 1, value[-1]


def members(value: Any) -> list[tuple[str, Any]]:
    """Keys of an object with what is known of their values."""
    if not isinstance(value, OpenContainer):
        return [*value.items()]
    assert isinstance(value.value, dict)
    known = [*value.value.items()]
    if value.key is not None:
        known.append((value.key, NOT_BEGUN if value.child is None else value.child))
    return known


def entries(value: Any) -> list[Any]:
    """Items of an array with what is known of the last."""
    if not isinstance(value, OpenContainer):
        return list(value)
    return [*value.value, *([] if value.child is None else [value.child])]


@dataclass
class PartialJson:
    """One value, read as far as it has come.

    value       the whole value, ``OpenContainer`` or ``BegunScalar``; None while ``begun`` is false
    repeated    whether an object has a key twice
    exponent    whether a number has an exponent
    """

    value: Any = None
    begun: bool = False
    repeated: bool = False
    exponent: bool = False
    _stack: list[OpenContainer] = field(default_factory=list)
    _raw: bytearray | None = None  # of the string, number or literal that is begun

    def fork(self) -> Self:
        """An independent copy."""
        value = self.value.fork() if isinstance(self.value, OpenContainer) else self.value
        stack, one = [], value
        while isinstance(one, OpenContainer):
            stack.append(one)
            one = one.child
        raw = None if self._raw is None else bytearray(self._raw)
        return type(self)(value, self.begun, self.repeated, self.exponent, stack, raw)

    @property
    def in_string(self) -> bool:
        """Whether a string or a key is begun."""
        return self._raw is not None and self._raw[0] == ord('"')

    @property
    def in_key(self) -> bool:
        """Whether the string that is begun is a key."""
        return self.in_string and self._wants_key

    @property
    def key(self) -> bytes:
        """What is there of the key that is begun."""
        return bytes(self._raw[1:]) if self._raw is not None and self.in_key else b""

    @property
    def latest_key(self) -> str | None:
        """The key whose value comes next, or is begun."""
        return self._stack[-1].key if self._stack else None

    @property
    def is_whole(self) -> bool:
        """Whether nothing is open."""
        return self.begun and not isinstance(self.value, (OpenContainer, BegunScalar))

    def read(self, data: bytes) -> Iterator[None]:
        """Take bytes; stops wherever more of the value is known than before."""
        for byte in data:
            if self.in_string:
                yield from self._in_string(byte)
            elif self._raw is not None and byte not in b",]} \t\n\r":
                yield from self._in_plain(byte)
            else:
                yield from self.finish()
                yield from self._between(byte)

    def finish(self) -> Iterator[None]:
        """End the number or literal that is begun: the text ends here, or something follows."""
        if self._raw is not None and not self.in_string:
            yield from self._close(_parsed(bytes(self._raw)))

    @property
    def _wants_key(self) -> bool:
        top = self._stack[-1] if self._stack else None
        return top is not None and isinstance(top.value, dict) and top.key is None

    def _in_plain(self, byte: int) -> Iterator[None]:
        """Within a number or literal."""
        raw = self._raw
        assert raw is not None
        raw.append(byte)
        if raw in _LITERALS:
            yield from self.finish()
        elif chr(raw[0]) in "-0123456789":
            self.exponent = self.exponent or byte in b"eE"
            self._begin(BegunScalar("number", raw.decode(errors="replace")))
            yield

    def _in_string(self, byte: int) -> Iterator[None]:
        raw = self._raw
        assert raw is not None
        raw.append(byte)
        if byte != ord('"') or _escaped(raw):
            return
        said = _parsed(bytes(raw))
        if not self._wants_key:
            yield from self._close(said)
            return
        self._raw, top = None, self._stack[-1]
        self.repeated = self.repeated or said in top.value
        top.key = said
        yield

    def _between(self, byte: int) -> Iterator[None]:
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
            self.value, self.begun = value, True

    def _close(self, value: Any) -> Iterator[None]:
        self._raw = None
        if self._stack:
            self._stack[-1].put(value)
        else:
            self.value = value
        yield


def _escaped(raw: bytearray) -> bool:
    """Whether the last byte is escaped by a backslash, or is the opening quote."""
    before = raw[1:-1]
    return len(raw) == 1 or (len(before) - len(before.rstrip(b"\\"))) % 2 == 1


def _parsed(raw: bytes) -> Any:
    try:
        return parsed(raw.decode())
    except (ValueError, RecursionError):
        raise CutawayError("the text is no JSON") from None
