"""The trace: a recorded run that can be read, replayed, forked and compared.

Knows the file's format, and every computation that needs only the file. Does not know how the
engine works: the trace records its events. ``cutaway.rerun`` runs a model again.
"""

from cutaway.sampling import Candidate
from cutaway.trace.canvas import CanvasFigures, CellMoment, canvas_figures, cell_life
from cutaway.trace.differences import (
    Change,
    CommonRun,
    Continuation,
    Cost,
    Divergence,
    PassDivergence,
    TraceDiff,
    diff_texts,
)
from cutaway.trace.endings import EndTokenStatus, Why, why
from cutaway.trace.exports import to_csv, to_openai, to_passes_csv
from cutaway.trace.page import Guide, Point, ShownRun, runs_to_html, to_html
from cutaway.trace.read import Trace
from cutaway.trace.record import End, Head, Parent, Token
from cutaway.trace.views import CandidateView, StageView, StepView, step_view
from cutaway.trace.write import TraceBuffer, TraceSink, TraceWriter

__all__ = [
    "Candidate", "CandidateView", "CanvasFigures", "CellMoment", "Change", "CommonRun",
    "Continuation", "Cost", "Divergence", "End", "EndTokenStatus", "Guide", "Head", "Parent",
    "PassDivergence", "Point", "ShownRun", "StageView", "StepView", "Token", "Trace",
    "TraceBuffer", "TraceDiff", "TraceSink", "TraceWriter", "Why", "canvas_figures", "cell_life",
    "diff_texts", "runs_to_html", "step_view", "to_csv", "to_html", "to_openai", "to_passes_csv",
    "why",
]  # fmt: skip
