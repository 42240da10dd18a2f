"""The loop, its scheduler and its stop conditions.

Each name is imported when first used: a trace needs the events alone, and asyncio takes 40 ms.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cutaway.engine.constraint import Constraint
    from cutaway.engine.constraint.params import ConstraintParams
    from cutaway.engine.decoders import Autoregressive, Decoder
    from cutaway.engine.decoders.denoise import Denoise
    from cutaway.engine.decoders.prefill import (
        Embed,
        PinPrefix,
        PinWhole,
        Score,
        ScoreAnswers,
        ScoreBidirectional,
    )
    from cutaway.engine.events import (
        Embedded,
        Ended,
        Event,
        FinishReason,
        OutboxReader,
        Pass,
        PassCell,
        Phases,
        Scored,
        Speculation,
        Started,
        Step,
        Usage,
    )  # fmt: skip
    from cutaway.engine.limits import Limits
    from cutaway.engine.loop.asynchronous import Arrival, ArrivalReader, AsyncEngine, Inboxes, Route
    from cutaway.engine.loop.engine import Engine, EngineState
    from cutaway.engine.loop.pinned import Row
    from cutaway.engine.loop.scheduler import Policy
    from cutaway.engine.request import NAMED_DRAFTS, Request, RunParams
    from cutaway.engine.sequence import Sequence
    from cutaway.engine.speculation.assistant_head import AssistantHead
    from cutaway.engine.speculation.block_head import BlockForm, BlockHead
    from cutaway.engine.speculation.draft_head import (
        DraftHead,
        DraftVocabulary,
        EagleHead,
        EagleTensors,
    )
    from cutaway.engine.speculation.draft_model import DraftModel
    from cutaway.engine.stops import StopMatcher, StopParams

_MODULES = {
    "constraint": "Constraint",
    "constraint.params": "ConstraintParams",
    "decoders": "Autoregressive Decoder",
    "decoders.denoise": "Denoise",
    "decoders.prefill": "Embed PinPrefix PinWhole Score ScoreAnswers ScoreBidirectional",
    "events": "Embedded Ended Event FinishReason OutboxReader Pass PassCell Phases Scored "
    "Speculation Started Step Usage",
    "limits": "Limits",
    "loop.asynchronous": "Arrival ArrivalReader AsyncEngine Inboxes Route",
    "loop.engine": "Engine EngineState",
    "loop.pinned": "Row",
    "loop.scheduler": "Policy",
    "request": "NAMED_DRAFTS Request RunParams",
    "sequence": "Sequence",
    "speculation.assistant_head": "AssistantHead",
    "speculation.block_head": "BlockForm BlockHead",
    "speculation.draft_head": "DraftHead DraftVocabulary EagleHead EagleTensors",
    "speculation.draft_model": "DraftModel",
    "stops": "StopMatcher StopParams",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'cutaway.engine' has no attribute {name!r}")
    return getattr(import_module(f"cutaway.engine.{_HOME[name]}"), name)
