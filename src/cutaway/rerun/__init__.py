"""What needs a trace and a model: replay, rescore, resume, branch, diff_models."""

from cutaway.rerun.forks import Fork, Reconvergence, branch, diff_models, open_branch, token_of
from cutaway.rerun.price import PassPrice, Price, price, price_of_trace
from cutaway.rerun.replay import (
    Reading,
    Replayed,
    ReplayMismatch,
    Rescored,
    logits,
    replay,
    rescore,
)
from cutaway.rerun.request import Disagreement
from cutaway.rerun.resume import check_cut, resume, resume_at
from cutaway.rerun.statistics import Curve, Estimate, bands, estimate, span

__all__ = [
    "Curve", "Disagreement", "Estimate", "Fork", "PassPrice", "Price", "Reading", "Reconvergence",
    "ReplayMismatch", "Replayed", "Rescored", "bands", "branch", "check_cut", "diff_models",
    "estimate", "logits", "open_branch", "price", "price_of_trace", "replay", "rescore", "resume",
    "resume_at", "span", "token_of",
]  # fmt: skip
