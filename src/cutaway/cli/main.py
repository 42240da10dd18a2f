"""The command ``cutaway``.

A command's module is imported when it is chosen, so that ``cutaway --help`` is instant.

Exit codes: 0 success, 1 failure, 2 bad input, 130 interrupted, 141 output not read.
"""

import gc
import os
import sys
from importlib import import_module
from typing import NamedTuple

from cutaway.base.progress import say
from cutaway.cli.parser import Parser, run_command, unknown
from cutaway.cli.terminal import streams
from cutaway.errors import CutawayError, InputError


class _Command(NamedTuple):
    help: str
    module: str
    add_arguments: str | None = "add_arguments"  # None: it has commands of its own
    run: str = "run"


COMMANDS = {
    "generate": _Command("continue a text", "cutaway.cli.generate"),
    "resume": _Command("finish a recorded text that was cut", "cutaway.cli.resume"),
    "chat": _Command("hold a conversation", "cutaway.cli.chat"),
    "fill": _Command("fill in what a text leaves out", "cutaway.cli.fill"),
    "denoise": _Command("reveal a text cell by cell, in any order", "cutaway.cli.denoise"),
    "revise": _Command("write a draft and try its worst tokens again", "cutaway.cli.revise"),
    "embed": _Command("make vectors of texts, or compare texts", "cutaway.cli.embed"),
    "serve": _Command("serve OpenAI's API and the page over HTTP", "cutaway.cli.serve"),
    "perplexity": _Command("measure the perplexity of a text", "cutaway.cli.perplexity"),
    "tokenize": _Command("show a text's tokens", "cutaway.cli.tokenize"),
    "trace": _Command("show, explain or repeat a recorded run", "cutaway.cli.trace", None),
    "cache": _Command("save a prompt's KV cache", "cutaway.cli.cache", None),
    "snowball": _Command("measure what one wrong token changes", "cutaway.cli.snowball"),
    "exposure": _Command("compare a human text with the model's own", "cutaway.cli.exposure"),
    "compare": _Command("run one prompt under several settings", "cutaway.cli.compare"),
    "repair": _Command("measure whether a rule takes mistakes back", "cutaway.cli.repair"),
    "practice": _Command("do a sampling step by hand", "cutaway.cli.practice"),
    "bench": _Command("measure speed beside the machine's limit", "cutaway.cli.bench"),
    "verify": _Command("check that logits are bit-identical in any batch", "cutaway.cli.verify"),
    "quantize": _Command("write a model with smaller weights", "cutaway.cli.quantize"),
    "models": _Command("list the models and where they are stored", "cutaway.cli.models"),
    "pull": _Command(
        "fetch a model and check it", "cutaway.cli.models", "add_pull_arguments", "run_pull"
    ),
}
"""Name -> what it does; each has a help page."""

_EXAMPLES = """
examples:
  cutaway generate "The sky is"      the default model is fetched on first use
  cutaway chat -m model.gguf
  cutaway models

'cutaway COMMAND --help' explains a command.
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code; ``argv`` is without the program's name.

    A CutawayError ends as one line on standard error. Anything else is a bug, and its traceback
    is shown.
    """
    streams.open_std_streams()
    try:
        code = _dispatch(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()  # here, where a reader that went away can still be handled
        return code
    except CutawayError as error:
        say(f"cutaway: error: {error}")
        return 2 if isinstance(error, InputError) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        streams.detach(sys.stdout)
        return 141
    except OSError as error:
        if error.filename is not None:  # not of a stream: a bug
            raise
        streams.detach(sys.stdout)
        say(f"cutaway: error: cannot write the output: {error.strerror}")
        return 1
    finally:
        streams.flush_stderr()


def _dispatch(argv: list[str]) -> int:
    try:
        if not argv or argv[0].startswith("-"):
            return _no_command(argv)
        _tune_startup(argv)
        return _run(argv[0], argv[1:])
    except SystemExit as leaving:  # argparse: --help and --version are 0, bad usage is 2
        return leaving.code if isinstance(leaving.code, int) else 2


def _tune_startup(argv: list[str]) -> None:
    """Settings for a process of our own that must start fast; a library leaves them alone."""
    gc.set_threshold(100_000)  # imports and vocabularies make many objects and no garbage
    if not any(word.endswith("reference") for word in argv):  # --backend reference
        # NumPy's BLAS has nothing to do, and its threads spin beside ours while they wait for it.
        # It reads this once, when the first command's module imports it.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _run(name: str, argv: list[str]) -> int:
    command = COMMANDS.get(name)
    if command is None:
        raise InputError(unknown("command", name, COMMANDS))
    module = import_module(command.module)
    run = getattr(module, command.run)
    if command.add_arguments is None:
        code: int = run(argv)
        return code
    add_arguments = getattr(module, command.add_arguments)
    return run_command(f"cutaway {name}", command.help, argv, add_arguments, run)


def _no_command(argv: list[str]) -> int:
    parser = _top_level()
    parser.parse(argv)  # exits for --help and --version
    parser.print_help(sys.stderr)
    return 2


def _top_level() -> Parser:
    from cutaway._version import __version__

    listing = "\n".join(f"  {name:<10} {command.help}" for name, command in COMMANDS.items())
    about = "Generate text, one token at a time, and see the whole machine while it runs."
    parser = Parser("cutaway", about)
    parser.usage = "cutaway COMMAND ..."
    parser.epilog = f"commands:\n{listing}\n{_EXAMPLES}"
    parser.add_argument("--version", action="version", version=f"cutaway {__version__}")
    return parser
