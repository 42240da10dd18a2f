"""A canvas: cells that are written in any order, and the rules by which they are revealed.

Knows figures of cells, how many a pass may reveal, and which are masked again. Refuses to know
models, sequences and who computes a pass.
"""

from cutaway.engine.canvas.canvas import Canvas, Cell, Revealed, looked_at, make_canvas
from cutaway.engine.canvas.reveal import Figures
from cutaway.engine.canvas.rule import RULES, SETTINGS, ForcedCell, Rule, read_rule
from cutaway.engine.canvas.settings import SETTING_WORDS, Setting, rule_of_text

__all__ = [
    "RULES",
    "SETTINGS",
    "SETTING_WORDS",
    "Canvas",
    "Cell",
    "Figures",
    "ForcedCell",
    "Revealed",
    "Rule",
    "Setting",
    "looked_at",
    "make_canvas",
    "read_rule",
    "rule_of_text",
]
