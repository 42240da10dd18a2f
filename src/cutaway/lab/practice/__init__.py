"""The sample step by hand: from six logits to a token, asked, judged and explained.

The right answer is what ``cutaway.sampling`` does: nothing is sampled a second way.
"""

from cutaway.lab.practice.answers import Numbers, TokenAnswer, Verdict
from cutaway.lab.practice.cells import SAMPLE_CELLS, Cells, cell_exercises, cells_of_trace
from cutaway.lab.practice.exercises import TOPICS, Exercise, comparison, exercises
from cutaway.lab.practice.start import SAMPLE, Origin, Start, from_trace, from_values
from cutaway.lab.practice.tables import Block, Table

__all__ = [
    "SAMPLE", "SAMPLE_CELLS", "TOPICS", "Block", "Cells", "Exercise", "Numbers", "Origin", "Start",
    "Table", "TokenAnswer", "Verdict", "cell_exercises", "cells_of_trace", "comparison",
    "exercises", "from_trace", "from_values",
]  # fmt: skip
