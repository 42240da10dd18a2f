"""The loop, its scheduler and its stop conditions. Refuses to know HTTP, terminals and files."""

from cutaway.engine.draft_model import DraftModel
from cutaway.engine.engine import Engine, Limits
from cutaway.engine.params import RunParams
from cutaway.engine.scheduler import Policy
from cutaway.engine.sequence import Sequence, Speculation, TokenStep
from cutaway.engine.stops import FinishReason, StopMatcher, StopParams

__all__ = [
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
