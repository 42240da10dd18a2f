"""``cutaway trace VERB``: read, replay, compare or change a recorded run."""

from cutaway.cli.options.parser import Parser, run_command

VERBS = {
    "why": "explain why a text ended, and why not earlier; of a canvas, what became of a cell",
    "diff": "compare two runs: where they diverge, and whether they rejoin",
    "export": "print a run's probabilities as OpenAI logprobs or CSV, or write its page",
    "replay": "run a trace again, and check that every bit is the same",
    "logits": "compute the full logits of every step again, into a file",
    "rescore": "score a recorded text under another model or other settings",
    "parallel-loss": "measure what a canvas lost by cells that one pass revealed together",
    "branch": "change one token of a run, and continue from there",
}
"""The core's verbs: name -> help; the module is cutaway.cli.trace.VERB."""

_EARLIER_NAMES = {"without": "ablate", "price": "parallel-loss"}
_EXAMPLES = """
examples:
  cutaway generate "The sky is" --trace run.jsonl
  cutaway trace play run.jsonl
  cutaway trace why run.jsonl
  cutaway trace branch run.jsonl --at 12 --token " never" --trace fork.jsonl
  cutaway trace diff run.jsonl fork.jsonl
  cutaway trace inside run.jsonl --step 12

play, why, diff and export need only the file; the others also need the model.
'cutaway trace VERB --help' explains a verb.
"""


def run(argv: list[str]) -> int:
    """Run the verb that the arguments begin with."""
    if argv and argv[0] in _EARLIER_NAMES:
        argv = [_EARLIER_NAMES[argv[0]], *argv[1:]]
    parser = Parser("cutaway trace", "Look at a recorded run.")
    return run_command(parser, "verb", __name__, VERBS, argv, examples=_EXAMPLES)
