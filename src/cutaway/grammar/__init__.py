"""Which texts a request allows: JSON Schema, regular expressions, grammars, choices.

Knows these languages, and which tokens may follow a text that is begun. Refuses to know logits,
sequences and HTTP. The engine of it is llguidance, which is imported when the first grammar is.
"""

from cutaway.grammar.acceptance import Accepted, accepts
from cutaway.grammar.checks import Check, OwnCheck, check_named
from cutaway.grammar.compiler import Compiled, Compiler, Matcher, Words, engine
from cutaway.grammar.notation import source_of
from cutaway.grammar.source import KINDS, Grammar
from cutaway.grammar.trial import Trial

__all__ = [
    "KINDS", "Accepted", "Check", "Compiled", "Compiler", "Grammar", "Matcher", "OwnCheck", "Trial",
    "Words", "accepts", "check_named", "engine", "source_of",
]  # fmt: skip
