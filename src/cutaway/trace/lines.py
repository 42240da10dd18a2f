"""The lines of a trace, in order, wherever they go.

Knows their order and how the engine's events become records.
"""

import json
from collections.abc import Callable, Iterable
from json.encoder import encode_basestring
from typing import Protocol

from cutaway.engine.events import Ended, Pass, Step
from cutaway.errors import CutawayError
from cutaway.trace.passes import pass_to_json, tokens_of
from cutaway.trace.record import End, Head, Json, Token
from cutaway.trace.renames import VERSION, to_version
from cutaway.trace.steps import observed, step_to_json

TokenOf = Callable[[int], Token]
"""What a token id stands for; called once for each that occurs."""


class TraceSink(Protocol):
    """Where a trace goes whose head is written already."""

    @property
    def closed(self) -> bool:
        """Whether nothing can follow."""

    def step(self, step: Step) -> None:
        """Append a step, which the engine was asked to observe."""

    def passed(self, made: Pass) -> None:
        """Append a pass over a canvas."""

    def end(self, end: End) -> None:
        """Append why it ended; nothing follows."""


class _Records:
    """Records in their order; every token comes before the first record that names it."""

    def __init__(self, token_of: TokenOf, written: Iterable[int] = ()) -> None:
        self._token_of, self._written = token_of, {*written}

    def head(self, head: Head) -> tuple[list[Token], Json]:
        """Of the head, which comes before the tokens that it names."""
        return self._new_tokens(head.token_ids), head.to_json()

    def step(self, step: Step) -> tuple[list[Token], Json]:
        """Of a step, which the engine was asked to observe."""
        seen = observed(step)
        ids = {step.sampled_id, *(c.id for c in seen.candidates)}
        ids.update(() if step.unconstrained_id is None else (step.unconstrained_id,))
        ids.update(*(report.top_removed for report in seen.stages))
        return self._new_tokens(ids), step_to_json(step)

    def passed(self, made: Pass) -> tuple[list[Token], Json]:
        """Of a pass over a canvas."""
        return self._new_tokens(tokens_of(made)), pass_to_json(made)

    def _new_tokens(self, ids: Iterable[int]) -> list[Token]:
        new = sorted({*ids} - self._written)
        self._written.update(new)
        return [self._token_of(token_id) for token_id in new]


class TraceLines:
    """Records as lines of JSON.

    written, version: of a trace whose rest these are, the tokens that have a line already, and
    the version of its format
    """

    def __init__(
        self, token_of: TokenOf, written: Iterable[int] = (), version: int = VERSION
    ) -> None:
        self._records, self._version = _Records(token_of, written), version

    def head(self, head: Head) -> list[bytes]:
        """The first lines."""
        tokens, record = self._records.head(head)
        return [self._line(record), *map(token_line, tokens)]

    def after_head(self, head: Head) -> list[bytes]:
        """Those of the first lines that a trace with this head may lack."""
        tokens, _ = self._records.head(head)
        return [*map(token_line, tokens)]

    def step(self, step: Step) -> list[bytes]:
        """Those of a step, which the engine was asked to observe."""
        tokens, record = self._records.step(step)
        return [*map(token_line, tokens), self._line(record)]

    def passed(self, made: Pass) -> list[bytes]:
        """Those of a pass over a canvas."""
        tokens, record = self._records.passed(made)
        return [*map(token_line, tokens), self._line(record)]

    def end(self, end: End) -> list[bytes]:
        """The last."""
        return [self._line(end.to_json())]

    def _line(self, record: Json) -> bytes:
        return line(to_version(record, self._version))


class TraceBuffer:
    """A trace in memory, to be sent on while it grows."""

    def __init__(self, head: Head, token_of: TokenOf) -> None:
        self._records, self.closed = _Records(token_of), False
        tokens, record = self._records.head(head)
        self._pending = [record, *(token.to_json() for token in tokens)]

    def step(self, step: Step) -> None:
        """Append a step, which the engine was asked to observe."""
        tokens, record = self._records.step(step)
        self._pending += [*(token.to_json() for token in tokens), record]

    def passed(self, made: Pass) -> None:
        """Append a pass over a canvas."""
        tokens, record = self._records.passed(made)
        self._pending += [*(token.to_json() for token in tokens), record]

    def end(self, end: End) -> None:
        """Append why it ended; nothing follows."""
        self._pending.append(end.to_json())
        self.closed = True

    def take(self) -> list[Json]:
        """The records that came since the last time."""
        taken, self._pending = self._pending, []
        return taken


_encode = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False
).encode


def line(record: Json) -> bytes:
    """A record as its line."""
    try:
        text = _encode(record)
    except ValueError:
        raise CutawayError("trace: a figure is not finite, for which JSON has no form") from None
    return text.encode("utf-8", "replace") + b"\n"  # a model's name may be no Unicode


def token_line(token: Token) -> bytes:
    """``line(token.to_json())``, faster where it is plain: a step has many that are new."""
    try:
        text = encode_basestring(token.bytes.decode())
    except UnicodeDecodeError:
        return line(token.to_json())
    if token.name:
        return line(token.to_json())
    return f'{{"kind":"tok","id":{token.id},"text":{text}}}\n'.encode()


def end_of(ended: Ended) -> End:
    """What a trace keeps of an end."""
    return End(
        reason="error" if ended.error else str(ended.reason),
        matched=ended.matched,
        usage=ended.usage._asdict(),
        fingerprint=f"{ended.fingerprint:016x}",
        text=ended.held_text,
        error=str(ended.error) if ended.error else None,
        speculation=ended.speculation._asdict(),
    )
