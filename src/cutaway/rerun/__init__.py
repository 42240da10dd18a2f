"""What needs a model again: replay, rescore, branch and diff of traces; the experiments.

Knows how a record becomes a request, and how runs are compared. Refuses to know the form of
the file (``cutaway.trace``) and terminals.
"""

from cutaway.rerun.branch import branch, open_branch, token_of
from cutaway.rerun.exposure import Exposure, Window, exposure
from cutaway.rerun.figures import Curve, Estimate, bands, estimate, span
from cutaway.rerun.forks import Fork, Meeting, diff
from cutaway.rerun.logits import logits
from cutaway.rerun.replay import Difference, Replayed, replay
from cutaway.rerun.request import Disagreement
from cutaway.rerun.rescore import Reading, Rescored, rescore
from cutaway.rerun.snowball import Snowball, snowball

__all__ = [
    "Curve",
    "Difference",
    "Disagreement",
    "Estimate",
    "Exposure",
    "Fork",
    "Meeting",
    "Reading",
    "Replayed",
    "Rescored",
    "Snowball",
    "Window",
    "bands",
    "branch",
    "diff",
    "estimate",
    "exposure",
    "logits",
    "open_branch",
    "replay",
    "rescore",
    "snowball",
    "span",
    "token_of",
]
