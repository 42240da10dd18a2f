"""The keywords of one request, sorted into what each room wants, and where each came from.

Knows names and origins. The rooms check the values themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from cutaway.engine import StopParams
from cutaway.errors import InputError
from cutaway.sampling import SamplingParams, check_int

_SAMPLING = tuple(f.name for f in fields(SamplingParams))
_STOPS = tuple(f.name for f in fields(StopParams))
_REQUEST: Mapping[str, Any] = {"n": 1, "kv_cache": True, "special": False, "ledger": False}


@dataclass(frozen=True)
class Options:
    """One request's settings, checked.

    n         samples of the same prompt; the i-th has a seed derived from (seed, i)
    kv_cache  False recomputes the whole text at every step: same tokens, quadratic cost
    special   parse special tokens such as <|im_start|> in the prompt's text
    ledger    record in every TokenStep what each stage removed
    sources   where each setting came from: "given", "default", or "chosen" for a seed
    """

    sampling: SamplingParams
    stops: StopParams
    n: int
    kv_cache: bool
    special: bool
    ledger: bool
    sources: Mapping[str, str]

    def in_force(self, seed: int) -> dict[str, Any]:
        """Every setting by name, ready for JSON."""
        values = {name: getattr(self.sampling, name) for name in _SAMPLING}
        values |= {name: getattr(self.stops, name) for name in _STOPS}
        values |= {name: getattr(self, name) for name in _REQUEST}
        values["seed"] = seed
        values["processors"] = [getattr(p, "__name__", repr(p)) for p in values["processors"]]
        return values


def parse_options(given: Mapping[str, Any]) -> Options:
    """Sort the keywords of a request. InputError for an unknown name or a bad value."""
    known = (*_SAMPLING, *_STOPS, *_REQUEST)
    for name in given:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"
            raise InputError(f"unknown option {name!r}{hint}")
    request = {name: given.get(name, default) for name, default in _REQUEST.items()}
    request["n"] = check_int("n", request["n"], 1, 1024)
    for name in ("kv_cache", "special", "ledger"):
        if not isinstance(request[name], bool):
            raise InputError(f"{name} must be true or false, not {request[name]!r}")
    sources = {name: "given" if name in given else "default" for name in known}
    if given.get("seed") is None:
        sources["seed"] = "chosen"
    return Options(
        SamplingParams(**{k: v for k, v in given.items() if k in _SAMPLING}),
        StopParams(**{k: v for k, v in given.items() if k in _STOPS}),
        sources=sources,
        **request,
    )
