"""The settings that a page alone takes, each with its kind and its range.

Knows which settings the page's own loop has, and where the package checks each; checks none.
"""

from typing import Any

from cutaway.requests.base import DRY_BREAKERS, MOST_BREAKERS, MOST_OF_STOPS, MOST_STOPS
from cutaway.requests.keywords import KEYWORDS, fields_at
from cutaway.sampling import PARAMS, PRESETS, STAGES
from cutaway.sampling.observe import MAX_TOP
from cutaway.sampling.params import MAX_BIAS

_LOOP: dict[str, dict[str, Any]] = {
    "max_tokens": {"low": 0, "high": None, "range": "0 or more"},
    "candidates": {"low": 0, "high": MAX_TOP, "range": f"between 0 and {MAX_TOP}"},
    "stop": {"most": MOST_STOPS, "characters": MOST_OF_STOPS},
    "stop_token_ids": {"low": 0},
    "track": {},
    "ignore_eos": {},
    "kv_cache": {},
    "cache_prompt": {},
    "preset": {"choices": [*PRESETS]},
    "chain": {"names": [*STAGES]},
    "logit_bias": {"most": MAX_BIAS},
    "dry_breakers": {
        "usual": [*DRY_BREAKERS],
        "used_with": "dry_multiplier",
        "bytes": MOST_BREAKERS,
    },
}


def page_settings() -> dict[str, Any]:
    """Return a setting's kind and range by name; None for a setting that a server alone has."""
    numbers = {
        name: {
            "low": param.low, "high": param.high, "above": param.above, "below": param.below,
            "zero": bool(param.zero), "range": param.range, "whole": param.type is int,
        }
        for name, param in PARAMS.items()
    }  # fmt: skip
    rows = {**numbers, **_LOOP}
    return {
        name: {"kind": KEYWORDS[name].kind, **rows[name]} if name in rows else None
        for name in {**fields_at("completions"), **rows}
    }
