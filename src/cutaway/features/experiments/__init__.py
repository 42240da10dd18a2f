"""Experiments on many runs: a wrong token, a human text, many settings, rules that repair."""

from cutaway.features.experiments.compare import Compared, ComparedText, compare, usual_rules
from cutaway.features.experiments.exposure import Exposure, Window, exposure
from cutaway.features.experiments.repair import Mistake, Repaired, repair, usual_repairs
from cutaway.features.experiments.snowball import Snowball, snowball

__all__ = [
    "Compared", "ComparedText", "Exposure", "Mistake", "Repaired", "Snowball", "Window", "compare",
    "exposure", "repair", "snowball", "usual_repairs", "usual_rules",
]  # fmt: skip
