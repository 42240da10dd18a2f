"""Which texts a request allows: JSON Schema, regular expressions, grammars, choices.

Knows these languages, and which tokens may follow a text that is begun. The engine of it is
llguidance, which is imported when the first grammar is.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cutaway.text.grammar.acceptance import Accepted, accepts, byte_matcher
    from cutaway.text.grammar.checks import Check, OwnCheck, check_named
    from cutaway.text.grammar.compile_sandbox import CompileSandbox
    from cutaway.text.grammar.compiler import (
        Compiled,
        GrammarCompiler,
        TokenizerLike,
        engine,
        notes_on,
    )
    from cutaway.text.grammar.llguidance_source import source_of
    from cutaway.text.grammar.matcher import Matcher
    from cutaway.text.grammar.source import KINDS, Grammar

__all__ = [
    "KINDS", "Accepted", "Check", "CompileSandbox", "Compiled", "Grammar", "GrammarCompiler",
    "Matcher", "OwnCheck", "TokenizerLike", "accepts", "byte_matcher", "check_named", "engine",
    "notes_on", "source_of",
]  # fmt: skip

_MODULES = {
    "acceptance": ("Accepted", "accepts", "byte_matcher"),
    "checks": ("Check", "OwnCheck", "check_named"),
    "compiler": ("Compiled", "GrammarCompiler", "TokenizerLike", "engine", "notes_on"),
    "matcher": ("Matcher",),
    "llguidance_source": ("source_of",),
    "source": ("KINDS", "Grammar"),
    "compile_sandbox": ("CompileSandbox",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:  # most texts are under no grammar, and start without all this
    if name not in _HOME:
        raise AttributeError(f"module 'cutaway.text.grammar' has no attribute {name!r}")
    return getattr(import_module(f"cutaway.text.grammar.{_HOME[name]}"), name)
