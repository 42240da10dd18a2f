"""A canvas: cells that are revealed in any order, and the rules that say which and when."""

from cutaway.engine.canvas.canvas import Canvas, Cell, Figures, Revealed, make_canvas, most_computed
from cutaway.engine.canvas.rule import (
    RULES,
    SETTING_WORDS,
    SETTINGS,
    ForcedCell,
    Rule,
    Setting,
    read_rule,
    rule_of_text,
)

__all__ = [
    "RULES", "SETTINGS", "SETTING_WORDS", "Canvas", "Cell", "Figures", "ForcedCell", "Revealed",
    "Rule", "Setting", "make_canvas", "most_computed", "read_rule", "rule_of_text",
]  # fmt: skip
