"""``cutaway cache VERB``: a prompt's KV cache, in a file."""

from cutaway.cli.options.parser import Parser, run_command
from cutaway.errors import InputError

VERBS = {
    "save": "compute a text, and save its keys and values",
    "show": "show what is in a file, and of which model",
    "check": "read all of a file, and find any damage",
}
"""Verb -> help; its module is cutaway.cli.cache.VERB."""

_EXAMPLES = """
examples:
  cutaway cache save book.prefix - < book.txt
  cutaway cache show book.prefix
  cutaway generate --prefix book.prefix " Who is the murderer?"      restores it
  cutaway chat --resume talk.json                                    saves and restores its own

A file has the keys and values of whole KV blocks of 32 tokens; a text that continues from them has
the same bits as one that computes them. It belongs to one model, its settings and this version of
cutaway; others refuse it. Every byte of it is checked when it is read.
'cutaway cache VERB --help' explains a verb.
"""


def run(argv: list[str]) -> int:
    """Run the verb that the arguments begin with."""
    if argv[:1] == ["restore"]:
        raise InputError("a saved prefix is restored where it is used: cutaway generate --prefix")
    about = "Keep a prompt's KV cache in a file, so that the prompt is computed once."
    parser = Parser("cutaway cache", about)
    return run_command(parser, "verb", __name__, VERBS, argv, examples=_EXAMPLES)
