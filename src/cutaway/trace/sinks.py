"""Where a trace goes while its run is recorded: the order of its records, as lines or as data.

Knows in which order records come, and how the engine's events become records; files are for
``write``.
"""

import json
from collections.abc import Callable, Iterable
from json.encoder import encode_basestring
from typing import Protocol

from cutaway.engine.events import Ended, Pass, Step
from cutaway.errors import CutawayError
from cutaway.trace import passes, steps
from cutaway.trace.record import End, Head, Json, Token
from cutaway.trace.renames import VERSION, to_version

TokenOf = Callable[[int], Token]
"""The token of an id; called once for each id that occurs."""


class TraceSink(Protocol):
    """Where a trace goes whose head is already written."""

    @property
    def closed(self) -> bool:
        """Whether nothing can follow."""

    def add(self, event: Step | Pass) -> None:
        """Append a step, which the engine was asked to observe, or a pass over a canvas."""

    def end(self, end: End) -> None:
        """Append why the text ended; nothing follows."""


class _Records:
    """Records of events. A token's record comes before the first step or pass that names it."""

    def __init__(self, token_of: TokenOf, written: Iterable[int] = ()) -> None:
        self._token_of, self._written = token_of, {*written}

    def new_tokens(self, ids: Iterable[int]) -> list[Token]:
        """Those that have no record yet, by id."""
        new = sorted({*ids} - self._written)
        self._written.update(new)
        return [self._token_of(token_id) for token_id in new]

    def of(self, event: Step | Pass) -> tuple[list[Token], Json]:
        """The new tokens of a step or a pass, and its record."""
        if isinstance(event, Pass):
            return self.new_tokens(passes.tokens_of(event)), passes.pass_to_json(event)
        return self.new_tokens(steps.tokens_of(event)), steps.step_to_json(event)


class TraceLines:
    """Records as lines of JSON.

    written, version: when a trace is continued, the tokens that have a line already, and the
    version of its format
    """

    def __init__(
        self, token_of: TokenOf, written: Iterable[int] = (), version: int = VERSION
    ) -> None:
        self._records, self._version = _Records(token_of, written), version

    def head(self, head: Head) -> list[bytes]:
        """The first lines: the head and its tokens."""
        return [self._line(head.to_json()), *self.tokens(head)]

    def tokens(self, head: Head) -> list[bytes]:
        """Lines of the head's tokens that have none yet."""
        return [*map(token_line, self._records.new_tokens(head.token_ids))]

    def add(self, event: Step | Pass) -> list[bytes]:
        """Lines of a step, which the engine was asked to observe, or of a pass over a canvas."""
        tokens, record = self._records.of(event)
        return [*map(token_line, tokens), self._line(record)]

    def end(self, end: End) -> list[bytes]:
        """The last line."""
        return [self._line(end.to_json())]

    def _line(self, record: Json) -> bytes:
        return line(to_version(record, self._version))


class TraceBuffer:
    """A trace in memory, which is sent on while it grows."""

    def __init__(self, head: Head, token_of: TokenOf) -> None:
        self._records, self.closed = _Records(token_of), False
        tokens = self._records.new_tokens(head.token_ids)
        self._pending = [head.to_json(), *(token.to_json() for token in tokens)]

    def add(self, event: Step | Pass) -> None:
        """Append a step, which the engine was asked to observe, or a pass over a canvas."""
        tokens, record = self._records.of(event)
        self._pending += [*(token.to_json() for token in tokens), record]

    def end(self, end: End) -> None:
        """Append why the text ended; nothing follows."""
        self._pending.append(end.to_json())
        self.closed = True

    def take(self) -> list[Json]:
        """The records since the last call."""
        taken, self._pending = self._pending, []
        return taken


_encode = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False
).encode


def line(record: Json) -> bytes:
    """A record as its line. CutawayError where a figure is not finite."""
    try:
        text = _encode(record)
    except ValueError:
        raise CutawayError("trace: a figure is not finite, for which JSON has no form") from None
    return text.encode("utf-8", "replace") + b"\n"  # a model's name may be no Unicode


def token_line(token: Token) -> bytes:
    """``line(token.to_json())``, faster for plain text: a step has many new tokens."""
    try:
        text = encode_basestring(token.bytes.decode())
    except UnicodeDecodeError:
        return line(token.to_json())
    if token.name:
        return line(token.to_json())
    return f'{{"kind":"tok","id":{token.id},"text":{text}}}\n'.encode()


def end_of(ended: Ended) -> End:
    """What a trace keeps of the event that ends a text."""
    return End(
        reason="error" if ended.error else str(ended.reason),
        matched=ended.matched,
        usage=ended.usage._asdict(),
        fingerprint=f"{ended.fingerprint:016x}",
        text=ended.held_text,
        error=str(ended.error) if ended.error else None,
        speculation=ended.speculation._asdict(),
    )
