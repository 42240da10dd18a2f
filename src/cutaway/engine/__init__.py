"""The loop, its scheduler and its stop conditions. Refuses to know HTTP, terminals and files."""

from cutaway.engine.engine import Engine, Limits
from cutaway.engine.sequence import Sequence, TokenStep
from cutaway.engine.stops import FinishReason, StopMatcher, StopParams

__all__ = [
    "Engine",
    "FinishReason",
    "Limits",
    "Sequence",
    "StopMatcher",
    "StopParams",
    "TokenStep",
]
