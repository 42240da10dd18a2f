"""The loop, its scheduler and its stop conditions.

Each name is imported when first used: a trace needs the events alone, and asyncio takes 40 ms.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cutaway.engine.asynchronous import AsyncEngine
    from cutaway.engine.constraint import Constraint
    from cutaway.engine.constraints import ConstraintParams
    from cutaway.engine.decoders import Autoregressive, Decoder
    from cutaway.engine.denoise import Denoise
    from cutaway.engine.draft_head import DraftHead
    from cutaway.engine.draft_model import DraftModel
    from cutaway.engine.eagle_head import EagleHead, EagleTensors
    from cutaway.engine.embed import Embed, PinWhole
    from cutaway.engine.engine import Engine
    from cutaway.engine.events import (
        Embedded,
        Ended,
        Event,
        FinishReason,
        Pass,
        PassCell,
        Phases,
        Scored,
        Speculation,
        Started,
        Step,
        Usage,
    )  # fmt: skip
    from cutaway.engine.inbox import Arrival, ArrivalReader, Inboxes, Route
    from cutaway.engine.limits import Limits
    from cutaway.engine.outbox import OutboxReader
    from cutaway.engine.prefill_only import PinPrefix, Score, ScoreAnswers, ScoreBidirectional
    from cutaway.engine.request import Request, RunParams
    from cutaway.engine.row import Row
    from cutaway.engine.scheduler import Policy
    from cutaway.engine.sequence import Sequence
    from cutaway.engine.state import EngineState
    from cutaway.engine.stops import StopMatcher, StopParams

_MODULES = {
    "asynchronous": "AsyncEngine",
    "constraint": "Constraint",
    "constraints": "ConstraintParams",
    "decoders": "Autoregressive Decoder",
    "denoise": "Denoise",
    "draft_head": "DraftHead",
    "eagle_head": "EagleHead EagleTensors",
    "draft_model": "DraftModel",
    "embed": "Embed PinWhole",
    "engine": "Engine",
    "events": "Embedded Ended Event FinishReason Pass PassCell Phases Scored Speculation Started "
    "Step Usage",
    "inbox": "Arrival ArrivalReader Inboxes Route",
    "limits": "Limits",
    "outbox": "OutboxReader",
    "prefill_only": "PinPrefix Score ScoreAnswers ScoreBidirectional",
    "request": "Request RunParams",
    "row": "Row",
    "scheduler": "Policy",
    "sequence": "Sequence",
    "state": "EngineState",
    "stops": "StopMatcher StopParams",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'cutaway.engine' has no attribute {name!r}")
    return getattr(import_module(f"cutaway.engine.{_HOME[name]}"), name)
