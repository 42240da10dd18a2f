"""The loop, its scheduler and its stop conditions. Refuses to know HTTP, terminals and files.

The asynchronous names are imported when first used: asyncio takes 40 ms to load.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cutaway.engine.draft_model import DraftModel
from cutaway.engine.engine import Engine
from cutaway.engine.limits import Limits
from cutaway.engine.params import RunParams
from cutaway.engine.scheduler import Policy
from cutaway.engine.sequence import Sequence, Speculation, TokenStep
from cutaway.engine.stops import FinishReason, StopMatcher, StopParams

if TYPE_CHECKING:
    from cutaway.engine.asynchronous import AsyncEngine
    from cutaway.engine.inbox import AsyncStreams

__all__ = [
    "AsyncEngine",
    "AsyncStreams",
    "DraftModel",
    "Engine",
    "FinishReason",
    "Limits",
    "Policy",
    "RunParams",
    "Sequence",
    "Speculation",
    "StopMatcher",
    "StopParams",
    "TokenStep",
]


_LATER = {"AsyncEngine": "asynchronous", "AsyncStreams": "inbox"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'cutaway.engine' has no attribute {name!r}")
    return getattr(import_module(f"cutaway.engine.{_LATER[name]}"), name)
