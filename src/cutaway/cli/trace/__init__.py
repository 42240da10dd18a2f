"""``cutaway trace VERB``: what can be done with a recorded run.

Knows the names of the verbs. Refuses to know what a verb does: its module, which has
``add_arguments(parser)`` and ``run(args) -> int``, is imported when it is chosen.
"""

import sys
from importlib import import_module

from cutaway.cli.parser import Parser, run_command, unknown
from cutaway.errors import InputError

VERBS = {
    "play": "show it step by step, in the terminal or as a page",
    "why": "explain why the text ended, and why not earlier",
    "diff": "compare two: where they diverge, and whether they rejoin",
    "export": "print its probabilities as OpenAI logprobs or CSV",
    "replay": "run it again, and check that every bit is the same",
    "logits": "compute the full logits of every step again, into a file",
    "rescore": "score its tokens under another model or other settings",
    "branch": "change one token, and continue from there",
}
"""Verb -> help; its module is cutaway.cli.trace.VERB."""

_EXAMPLES = """
examples:
  cutaway generate "The sky is" --trace run.jsonl
  cutaway trace play run.jsonl
  cutaway trace why run.jsonl
  cutaway trace branch run.jsonl --at 12 --token " never" --trace fork.jsonl
  cutaway trace diff run.jsonl fork.jsonl

play, why, diff and export need only the file; the others also need the model.
'cutaway trace VERB --help' explains a verb.
"""


def run(argv: list[str]) -> int:
    """Run the verb that the arguments begin with."""
    if not argv or argv[0].startswith("-"):
        parser = _parser()
        parser.parse(argv)  # exits for --help
        parser.print_help(sys.stderr)
        return 2
    verb, *rest = argv
    if verb not in VERBS:
        raise InputError(unknown("verb", verb, VERBS))
    module = import_module(f"cutaway.cli.trace.{verb}")
    return run_command(f"cutaway trace {verb}", VERBS[verb], rest, module.add_arguments, module.run)


def _parser() -> Parser:
    listing = "\n".join(f"  {verb:<10} {help}" for verb, help in VERBS.items())
    parser = Parser("cutaway trace", "Look at a recorded run.")
    parser.usage = "cutaway trace VERB FILE ..."
    parser.epilog = f"verbs:\n{listing}\n{_EXAMPLES}"
    return parser
