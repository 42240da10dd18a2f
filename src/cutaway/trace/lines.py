"""The lines of a trace, in order, wherever they go.

Knows their order and how the engine's events become records. Refuses to know files
and how the engine works.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, fields
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Protocol

from cutaway.errors import CutawayError
from cutaway.trace.record import End, Head, Json, StageRecord, Step, Token

if TYPE_CHECKING:
    from cutaway.engine import Ended, Phases
    from cutaway.engine import Step as NewStep

TokenOf = Callable[[int], Token]
"""What a token id stands for; called once for each that occurs."""

_MS = 1e3
_PHASE_DIGITS = 4  # of a millisecond


class TraceSink(Protocol):
    """Where a trace goes whose head is written already."""

    @property
    def closed(self) -> bool:
        """Whether nothing can follow."""

    def step(self, step: "NewStep") -> None:
        """Append a step, which the engine was asked to observe."""

    def end(self, end: End) -> None:
        """Append why it ended; nothing follows."""


class _Records:
    """Records in their order; every token comes before the first record that names it."""

    def __init__(self, token_of: TokenOf) -> None:
        self._token_of = token_of
        self._written: set[int] = set()

    def head(self, head: Head) -> tuple[list[Token], Json]:
        """Of the head, which comes before the tokens that it names."""
        return self._new_tokens(
            (*head.prompt_token_ids, *head.watch, *head.end_ids)
        ), head.to_json()

    def step(self, step: "NewStep") -> tuple[list[Token], Json]:
        """Of a step, which the engine was asked to observe."""
        record = record_of(step)
        ids = {record.own, *(c.id for c in record.candidates)}
        ids.update(*(stage.victims for stage in record.stages))
        return self._new_tokens(ids), record.to_json()

    def _new_tokens(self, ids: Iterable[int]) -> list[Token]:
        new = sorted({*ids} - self._written)
        self._written.update(new)
        return [self._token_of(token_id) for token_id in new]


class TraceLines:
    """Records as lines of JSON."""

    def __init__(self, token_of: TokenOf) -> None:
        self._records = _Records(token_of)

    def head(self, head: Head) -> list[bytes]:
        """The first lines."""
        tokens, record = self._records.head(head)
        return [line(record), *map(token_line, tokens)]

    def step(self, step: "NewStep") -> list[bytes]:
        """Those of a step, which the engine was asked to observe."""
        tokens, record = self._records.step(step)
        return [*map(token_line, tokens), line(record)]

    def end(self, end: End) -> list[bytes]:
        """The last."""
        return [line(end.to_json())]


class TraceBuffer:
    """A trace in memory, to be sent on while it grows."""

    def __init__(self, head: Head, token_of: TokenOf) -> None:
        self._records, self.closed = _Records(token_of), False
        tokens, record = self._records.head(head)
        self._pending = [record, *(token.to_json() for token in tokens)]

    def step(self, step: "NewStep") -> None:
        """Append a step, which the engine was asked to observe."""
        tokens, record = self._records.step(step)
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


def _milliseconds(phases: "Phases") -> dict[str, float]:
    ms = {f.name: round(getattr(phases, f.name) * _MS, _PHASE_DIGITS) for f in fields(phases)}
    return {name: value for name, value in ms.items() if value or name != "draft"}


def record_of(step: "NewStep") -> Step:
    """What a trace keeps of a step. ValueError where it was not observed."""
    seen = step.observed
    if seen is None:
        raise ValueError("a trace needs steps that were observed: ask for candidates")
    return Step(
        index=step.index,
        position=step.position,
        token_id=step.token_id,
        own=step.sampled_id,
        source=step.source,
        text=step.text,
        candidates=seen.candidates,
        maximum=seen.maximum,
        log_sum_exp=seen.log_sum_exp,
        entropy=seen.entropy,
        rank=seen.rank,
        logprob=seen.logprob,
        final_rank=seen.final_rank,
        final_logprob=seen.final_logprob,
        final_log_sum_exp=seen.final_log_sum_exp,
        stages=tuple(
            StageRecord(s.survivors, s.removed_mass, s.log_sum_exp, s.min_kept_logit, s.top_removed)
            for s in seen.stages
        ),
        sketch=seen.logit_histogram,
        kv_tokens=step.position,  # the row's own and all before it
        ms=_milliseconds(step.phases),
        row=f"{step.logits_hash:016x}",
        fingerprint=f"{step.fingerprint:016x}",
    )


def end_of(ended: "Ended") -> End:
    """What a trace keeps of an end."""
    return End(
        reason="error" if ended.error else str(ended.reason),
        matched=ended.matched,
        usage=asdict(ended.usage),
        fingerprint=f"{ended.fingerprint:016x}",
        text=ended.held_text,
        error=str(ended.error) if ended.error else None,
        speculation=asdict(ended.speculation),
    )
