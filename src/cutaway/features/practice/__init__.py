"""Sampling by hand, from six logits to a token: questions, judged answers, explanations.

The right answers come from ``cutaway.sampling`` itself; there is no second implementation.
"""

from cutaway.features.practice.answers import Numbers, TokenAnswer, Verdict
from cutaway.features.practice.cells import (
    SAMPLE_CELLS,
    Cells,
    cell_exercises,
    cells_of_trace,
)
from cutaway.features.practice.exercises import (
    TOPICS,
    Block,
    Exercise,
    Table,
    comparison,
    exercises,
)
from cutaway.features.practice.start import SAMPLE, RunStep, Start, from_trace, from_values

__all__ = [
    "SAMPLE", "SAMPLE_CELLS", "TOPICS", "Block", "Cells", "Exercise", "Numbers", "RunStep",
    "Start", "Table", "TokenAnswer", "Verdict", "cell_exercises", "cells_of_trace", "comparison",
    "exercises", "from_trace", "from_values",
]  # fmt: skip
