"""``keep_alive``: how long an idle model stays loaded, in Ollama's form."""

import re
from collections.abc import Callable
from functools import partial

from cutaway.errors import InputError
from cutaway.server.model_cache import ModelSlot

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)")
_DURATION = re.compile(rf"[+-]?(?:{_PART.pattern})+")
_LONGEST = 10.0 * 365 * 24 * 3600


def keep_alive_setter(slot: ModelSlot | None, keep_alive: float | str | None) -> Callable[[], None]:
    """What to call once a request has begun; it does nothing for a model that is always loaded.

    InputError for what is no duration.
    """
    if slot is None:
        return lambda: None
    if keep_alive is None:
        return slot.keep_as_usual
    seconds = seconds_of(keep_alive)
    return partial(slot.keep, seconds if 0 <= seconds <= _LONGEST else None)


def seconds_of(keep_alive: float | str) -> float:
    """Of a number of seconds, or of a text such as "1h30m"; below 0: for ever."""
    if not isinstance(keep_alive, str):
        return keep_alive
    text = keep_alive.strip()
    if re.fullmatch(r"[+-]?\d+\.?\d*", text):
        return float(text)
    if not _DURATION.fullmatch(text):
        raise InputError(
            f"keep_alive must be seconds, or a time as in 5m or 1h30m, not {text!r:.40}"
        )
    total = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    return -total if text.startswith("-") else total
