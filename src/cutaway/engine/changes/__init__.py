"""Changes as data: what is to be other inside a model while it writes one text.

``llm.generate(prompt, changes=[scale("L25.H2", 0), blind("3-7")])``. Knows the names of places,
what each change makes of numbers, and where both are in a graph. Refuses to know how a graph is
computed, and sequences.
"""

from cutaway.engine.changes.bound import Affine, Bound, bind, find
from cutaway.engine.changes.change import Change, add, blind, patch, scale
from cutaway.engine.changes.control_vector import control_vector
from cutaway.engine.changes.text import check_changes, parse_change

__all__ = [
    "Affine",
    "Bound",
    "Change",
    "add",
    "bind",
    "blind",
    "check_changes",
    "control_vector",
    "find",
    "parse_change",
    "patch",
    "scale",
]
