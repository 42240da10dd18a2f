"""The server's log: one line per event, as text for people or as JSON for programs.

Configures only the loggers "cutaway.server" and "cutaway.cache", uvicorn's and asyncio's, never
the root logger.
"""

import codecs
import json
import logging
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from traceback import format_exception
from typing import Any, Literal, TextIO

Mode = Literal["off", "human", "json"]

_LOGGER = logging.getLogger("cutaway.server")
_UVICORN = logging.getLogger("uvicorn.error")
_ASYNCIO = logging.getLogger("asyncio")
_CACHE = logging.getLogger("cutaway.cache")
_ACCESS = logging.getLogger("uvicorn.access")

# json.dumps does not escape these, but some programs take them for line ends or commands.
_UNSEEN = re.compile("[\x7f-\x9f\u2028\u2029]")
_STATIC = "/static/"  # the page's files
_COLOURS = {"warning": "33", "error": "31", "critical": "31"}


def configure(mode: Mode, stream: TextIO | None = None) -> None:
    """Write events to ``stream`` (default: standard error); replace an earlier configuration.

    Warnings of uvicorn, asyncio and the prompt cache are written in the same form. uvicorn's access
    lines are not written.
    """
    handler = _handler(mode, sys.stderr if stream is None else stream)
    for logger in (_LOGGER, _UVICORN, _ASYNCIO, _CACHE):
        for old in [h for h in logger.handlers if isinstance(h, _CutawayHandler)]:
            logger.removeHandler(old)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO if logger is _LOGGER else logging.WARNING)
        logger.propagate = False
    _ACCESS.propagate = False


@contextmanager
def temporary_configuration(mode: Mode) -> Iterator[None]:
    """Configure the log for a block, and restore the host's loggers after it."""
    loggers = (_LOGGER, _UVICORN, _ASYNCIO, _CACHE, _ACCESS)
    before = [([*logger.handlers], logger.level, logger.propagate) for logger in loggers]
    configure(mode)
    try:
        yield
    finally:
        for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
            logger.handlers[:], logger.propagate = handlers, propagate
            logger.setLevel(level)


def event(
    name: str,
    /,
    *,
    level: int = logging.INFO,
    error: BaseException | None = None,
    **fields: object,
) -> None:
    """Write an event; ``error`` is written with its traceback."""
    _LOGGER.log(level, "%s", name, exc_info=error, extra={"event": name, "fields": fields})


def access(
    *,
    id: str,
    client: str | None,
    method: str,
    path: str,
    status: int,
    seconds: float,
    model: str | None = None,
    prompt_tokens: int | None = None,
    cached_tokens: int | None = None,
    completion_tokens: int | None = None,
    finish_reasons: Iterable[str] | None = None,
    queue_s: float | None = None,
    ttft_s: float | None = None,
    load_s: float | None = None,
    user: str | None = None,
    replica: str | None = None,
    resumed: int | None = None,
    prompt: object = None,
) -> None:
    """Write the line of a request that was answered, without the fields that are None.

    path    the path without its query, which may contain secrets
    prompt  the prompt with --log-prompts, else None
    """
    arguments = dict(locals())
    fields = {name: value for name, value in arguments.items() if value is not None}
    if finish_reasons is not None:
        fields["finish_reasons"] = [str(reason) for reason in finish_reasons]
    for name in fields.keys() & {"seconds", "queue_s", "ttft_s", "load_s"}:
        fields[name] = round(fields[name], 4)
    level = logging.DEBUG if path.startswith(_STATIC) and status < 400 else logging.INFO
    event("request", level=level if status < 500 else logging.WARNING, **fields)


# -- handlers ----------------------------------------------------------------------------------


class _CutawayHandler:
    """Marks the handlers that ``configure`` added and may remove."""


class _Silence(_CutawayHandler, logging.NullHandler):
    """A handler that drops every record: without one, Python writes warnings to standard error."""


class _Lines(_CutawayHandler, logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Drop the line if the stream is full or closed, instead of failing the request."""
        if not isinstance(sys.exc_info()[1], (OSError, ValueError)):
            super().handleError(record)


def _handler(mode: Mode, stream: TextIO) -> logging.Handler:
    if mode == "off":
        return _Silence()
    handler = _Lines(stream)
    handler.setFormatter(_Json(stream) if mode == "json" else _Human(stream))
    return handler


# -- lines -------------------------------------------------------------------------------------


def _head(record: logging.LogRecord) -> dict[str, Any]:
    """Return the time, level and event name of a record from cutaway's or another logger."""
    when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    name = getattr(record, "event", record.name)
    return {
        "time": when.replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "event": name,
    }


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields: Mapping[str, Any] | None = getattr(record, "fields", None)
    return {"message": record.getMessage().rstrip()} if fields is None else fields


def _failure(record: logging.LogRecord) -> dict[str, str]:
    """Return the exception in one line, and its traceback."""
    error = record.exc_info[1] if record.exc_info else None
    if error is None:
        return {}
    summary = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return {"error": summary, "traceback": "".join(format_exception(error))}


class _Json(logging.Formatter):
    """One JSON object per line, in ASCII if the stream's encoding is not UTF-8."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._ascii = codecs.lookup(stream.encoding or "utf-8").name != "utf-8"

    def format(self, record: logging.LogRecord) -> str:
        head = _head(record)
        line = head | {**_fields(record)} | _failure(record) | head
        text = json.dumps(_plain(line), ensure_ascii=self._ascii)
        return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _plain(value: object) -> object:
    """Return the value in JSON's own types; NaN and infinities become strings."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {_whole(str(key)): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return _whole(str(value))


def _whole(text: str) -> str:
    """Return the text without lone surrogates, which UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


class _Human(logging.Formatter):
    """A line of time, level, event, and name=value for each field; an indented traceback."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        ansi = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._colour = ansi and not os.environ.get("NO_COLOR")
        self._encoding = stream.encoding or "utf-8"

    def format(self, record: logging.LogRecord) -> str:
        head, failure = _head(record), _failure(record)
        trace = failure.pop("traceback", "").splitlines()
        when, level = datetime.fromtimestamp(record.created), head["level"]
        fields = {**_fields(record)} | failure
        words = [f"{name}={_to_word(value)}" for name, value in fields.items()]
        start = f"{when:%H:%M:%S}.{when.microsecond // 1000:03d}"
        line = f"{self._paint(start, '2')} {self._paint(f'{level:<7}', _COLOURS.get(level))}"
        line += f" {_escape(str(head['event'])):<12} {' '.join(words)}"
        text = "\n".join([line.rstrip(), *(f"    {_escape(row)}" for row in trace)])
        return text.encode(self._encoding, "backslashreplace").decode(self._encoding)

    def _paint(self, text: str, colour: str | None) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colour and colour else text


def _to_word(value: object) -> str:
    """Return a value as one word, in quotes if it would be read as several words."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(_to_word, value))
    text = _escape(str(value))
    if text and not set(text) & set(' ,="'):
        return text
    return '"' + text.replace('"', '\\"') + '"'


def _escape(text: str) -> str:
    """Escape control characters, so that the text cannot begin a line or steer a terminal."""
    return "".join(c if c.isprintable() and c != "\\" else _escape_character(c) for c in text)


def _escape_character(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
