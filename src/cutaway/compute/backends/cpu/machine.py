"""What the machine and its environment decide of a plan.

``CUTAWAY_ISA`` forces a tier of instructions (generic, avx2, avxvnni, avx512, amx, neon, i8mm;
amx-plain is the path of the matrix units in plain C++, on any machine). ``CUTAWAY_PREFETCH`` forces
how weights are prefetched (none, near, far); without it the first steps are timed and the fastest
way is kept.
"""

import os
from functools import cache

from cutaway.base import _native
from cutaway.compute.backends.layout import DRAFT_STATES
from cutaway.errors import InputError


def tiers() -> tuple[str, ...]:
    """The instruction-set tiers of this machine, best first."""
    return tuple(_native.tiers().split(","))


def new_plan(pool: _native.Pool, kv_blocks: int, context: int, kv: str) -> _native.Plan:
    """An empty plan of the best tier, or the one that is forced, with KV blocks of its own."""
    tier, prefetch = os.environ.get("CUTAWAY_ISA", ""), _prefetch()
    try:
        return _native.Plan(pool, tier, kv_blocks, context, prefetch, kv, DRAFT_STATES)
    except ValueError as error:
        raise InputError(f"CUTAWAY_ISA: {error}") from None


def _prefetch() -> str:
    """CUTAWAY_PREFETCH, or "" for what is fastest."""
    value = os.environ.get("CUTAWAY_PREFETCH", "")
    if value not in ("", "none", "near", "far"):
        raise InputError(f"CUTAWAY_PREFETCH is {value!r}; set it to none, near or far, or unset it")
    return value


@cache
def report_refusal() -> None:
    """Log, once a process, that a better tier of this processor is not used."""
    if refusal := _native.amx_refusal():
        from logging import getLogger

        getLogger("cutaway").warning("%s: %s is used instead", refusal, tiers()[0])
