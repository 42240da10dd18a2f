"""The trace: a run on record, that can be read, replayed, forked and compared.

Knows the file's form and what follows from the file alone. Refuses to know how the engine
works: it writes down its events. What runs a model again is in ``cutaway.rerun``.
"""

from cutaway.sampling import Candidate
from cutaway.trace.differences import (
    Change,
    CommonRun,
    Continuation,
    Cost,
    Divergence,
    TraceDiff,
    diff_texts,
)
from cutaway.trace.endings import EndTokenStatus, Why, why
from cutaway.trace.exports import to_csv, to_openai
from cutaway.trace.lines import TraceBuffer, TraceSink
from cutaway.trace.page import to_html
from cutaway.trace.read import Trace
from cutaway.trace.record import End, Head, Parent, Token
from cutaway.trace.views import CandidateView, StageView, StepView, step_view
from cutaway.trace.write import TraceWriter

__all__ = [
    "Candidate",
    "CandidateView",
    "Change",
    "CommonRun",
    "Continuation",
    "Cost",
    "Divergence",
    "End",
    "EndTokenStatus",
    "Head",
    "Parent",
    "StageView",
    "StepView",
    "Token",
    "Trace",
    "TraceBuffer",
    "TraceDiff",
    "TraceSink",
    "TraceWriter",
    "Why",
    "diff_texts",
    "step_view",
    "to_csv",
    "to_html",
    "to_openai",
    "why",
]
