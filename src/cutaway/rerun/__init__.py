"""What needs a trace and a model: replay, rescore, resume, branch, diff_models."""

from cutaway.rerun.branch import branch, open_branch, token_of
from cutaway.rerun.forks import Fork, Reconvergence, diff_models
from cutaway.rerun.logits import logits
from cutaway.rerun.price import PassPrice, Price, price, price_of_trace
from cutaway.rerun.replay import Replayed, ReplayMismatch, replay
from cutaway.rerun.request import Disagreement
from cutaway.rerun.rescore import Reading, Rescored, rescore
from cutaway.rerun.resume import check_cut, resume
from cutaway.rerun.resume_at import resume_at
from cutaway.rerun.statistics import Curve, Estimate, bands, estimate, span

__all__ = [
    "Curve", "Disagreement", "Estimate", "Fork", "PassPrice", "Price", "Reading", "Reconvergence",
    "ReplayMismatch", "Replayed", "Rescored", "bands", "branch", "check_cut", "diff_models",
    "estimate", "logits", "open_branch", "price", "price_of_trace", "replay", "rescore", "resume",
    "resume_at", "span", "token_of",
]  # fmt: skip
