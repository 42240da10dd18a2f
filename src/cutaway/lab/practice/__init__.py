"""Sampling by hand, from six logits to a token: questions, judged answers, explanations.

The right answers come from ``cutaway.sampling`` itself; there is no second implementation.
"""

from cutaway.lab.practice.answers import Numbers, TokenAnswer, Verdict
from cutaway.lab.practice.cells import SAMPLE_CELLS, Cells, cell_exercises, cells_of_trace
from cutaway.lab.practice.exercises import TOPICS, Exercise, comparison, exercises
from cutaway.lab.practice.start import SAMPLE, RunStep, Start, from_trace, from_values
from cutaway.lab.practice.tables import Block, Table

__all__ = [
    "SAMPLE", "SAMPLE_CELLS", "TOPICS", "Block", "Cells", "Exercise", "Numbers", "RunStep",
    "Start", "Table", "TokenAnswer", "Verdict", "cell_exercises", "cells_of_trace", "comparison",
    "exercises", "from_trace", "from_values",
]  # fmt: skip
