"""What needs a trace and a model: replay, rescore, resume, branch, diff_models; the experiments."""

from cutaway.lab.rerun.branch import branch, open_branch, token_of
from cutaway.lab.rerun.compare import Compared, ComparedText, compare, usual_rules
from cutaway.lab.rerun.exposure import Exposure, Window, exposure
from cutaway.lab.rerun.forks import Fork, Reconvergence, diff_models
from cutaway.lab.rerun.logits import logits
from cutaway.lab.rerun.price import PassPrice, Price, price, price_of_trace
from cutaway.lab.rerun.repair import Mistake, Repaired, repair, usual_repairs
from cutaway.lab.rerun.replay import Replayed, ReplayMismatch, replay
from cutaway.lab.rerun.request import Disagreement
from cutaway.lab.rerun.rescore import Reading, Rescored, rescore
from cutaway.lab.rerun.resume import check_cut, resume
from cutaway.lab.rerun.resume_at import resume_at
from cutaway.lab.rerun.snowball import Snowball, snowball
from cutaway.lab.rerun.statistics import Curve, Estimate, bands, estimate, span

__all__ = [
    "Compared", "ComparedText", "Curve", "Disagreement", "Estimate", "Exposure", "Fork", "Mistake",
    "PassPrice", "Price", "Reading", "Reconvergence", "Repaired", "ReplayMismatch", "Replayed",
    "Rescored", "Snowball", "Window", "bands", "branch", "check_cut", "compare", "diff_models",
    "estimate", "exposure", "logits", "open_branch", "price", "price_of_trace", "repair", "replay",
    "rescore", "resume", "resume_at", "snowball", "span", "token_of", "usual_repairs",
    "usual_rules",
]  # fmt: skip
