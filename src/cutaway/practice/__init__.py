"""The sample step by hand: from six logits to a token, asked, judged and explained.

Knows exercises and the arithmetic behind each. Whatever is right here is what
``cutaway.sampling`` did: nothing is sampled a second way. Refuses to know terminals.
"""

from cutaway.practice.answers import Numbers, Token, Verdict
from cutaway.practice.exercises import TOPICS, Exercise, comparison, exercises
from cutaway.practice.start import SAMPLE, Origin, Start, from_trace, from_values
from cutaway.practice.tables import Block, Table

__all__ = [
    "SAMPLE",
    "TOPICS",
    "Block",
    "Exercise",
    "Numbers",
    "Origin",
    "Start",
    "Table",
    "Token",
    "Verdict",
    "comparison",
    "exercises",
    "from_trace",
    "from_values",
]
