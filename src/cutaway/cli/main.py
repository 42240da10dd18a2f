"""The command ``cutaway``.

A command's module is imported when the command is chosen, so that ``cutaway --help`` is instant.

Exit codes: 0 success, 1 failure, 2 bad input, 3 text cut (with --fail-if-cut), 130 interrupted,
141 output not read.
"""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EDQUOT, EFBIG, EIO, EMFILE, ENFILE, ENOMEM, ENOSPC

from cutaway._version import __version__
from cutaway.base.progress import say_error
from cutaway.cli.options.completion import SCRIPTS, ShellCompletion
from cutaway.cli.options.parser import Parser, as_typed, run_command, words_of
from cutaway.cli.terminal import streams
from cutaway.errors import CutawayError, InputError

_ABOUT = "Generate text, one token at a time, and see the whole machine while it runs."
PACKAGE = "cutaway.cli"
COMMANDS = {
    "generate": "continue a text",
    "resume": "finish a recorded text that was cut",
    "chat": "hold a conversation",
    "fill": "fill in what a text leaves out",
    "denoise": "reveal a text cell by cell, in any order",
    "embed": "make vectors of texts, or compare texts",
    "rerank": "order documents by their relevance",
    "search": "find the passages of an index that are nearest",
    "serve": "serve OpenAI's API and the page over HTTP",
    "perplexity": "measure the perplexity of a text",
    "tokenize": "show a text's tokens",
    "trace": "show, explain or repeat a recorded run",
    "cache": "save a prompt's KV cache",
    "quantize": "write a model with smaller weights",
    "models": "list the models and where they are stored",
    "pull": "fetch a model and check it",
}
"""The core's commands: name -> help; the module is cutaway.cli.NAME. Features add theirs."""

_OTHER_NAMES = {
    "benchmark": "bench", "complete": "generate", "completion": "generate", "convert": "quantize",
    "detokenize": "tokenize", "download": "pull", "embeddings": "embed", "encode": "tokenize",
    "eval": "perplexity", "evaluate": "perplexity", "fetch": "pull", "infer": "generate",
    "importance": "imatrix", "infill": "fill", "info": "models show", "list": "models",
    "ls": "models", "ppl": "perplexity", "prefix": "cache", "quantise": "quantize",
    "run": "generate", "score": "perplexity", "server": "serve", "show": "models show",
    "tokenise": "tokenize", "web": "serve",
    **{verb: f"trace {verb}" for verb in (
        "ablate", "branch", "diff", "inside", "logits", "parallel-loss", "play", "replay",
        "rescore", "why",
    )},
}  # fmt: skip
"""Names that people may try -> the command here."""

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
_OF_THE_MACHINE = (ENOSPC, EDQUOT, EFBIG, EIO, EMFILE, ENFILE, ENOMEM)
"""Error numbers that mean no bug: a disk is full or fails, or descriptors or memory ran out."""

_EXAMPLES = """Begin with: cutaway generate "The sky is"  (93 MB, once); of each: COMMAND -h
Completion in bash, zsh and fish: cutaway --completion SHELL; docs/install.md
"""


def command_words() -> Iterator[tuple[str, ...]]:
    """Return each command's words, then those of its verbs: ("trace",), ("trace", "replay"), …"""
    return words_of(PACKAGE, COMMANDS)


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code; ``argv`` is without the program's name.

    A CutawayError, or an error of the machine such as a full disk, becomes an exit code and a line
    on standard error. Ctrl-C becomes 130. Any other exception is a bug, and is raised. Settings of
    the process are restored at the end.
    """
    argv = sys.argv[1:] if argv is None else argv
    with streams.usable(), _idle_blas(argv):
        return _run(argv)


def _run(argv: list[str]) -> int:
    try:
        code = _dispatch(argv)
        sys.stdout.flush()  # here, since the handlers below catch a closed pipe's error
        return code
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        code, sentence = _explain(error, argv)
        if not code:  # a bug
            raise
        if sentence:
            say_error(sentence)
        return code


def _explain(error: Exception, argv: list[str]) -> tuple[int, str]:
    """Return the exit code of an error and the sentence about it; 0 for a bug."""
    code, sentence = 1, str(error)
    match error:
        case InputError():
            code, sentence = 2, as_typed(error, argv)
        case CutawayError():
            pass
        case MemoryError():
            sentence = "there is not enough memory for this: lower --kv-tokens or --context"
        case RuntimeError() if sentence == "can't start new thread":
            sentence = "the system has no more threads: raise its limit (ulimit -u, pids.max)"
        case BrokenPipeError(filename=streams.OUTPUT):
            code, sentence = 141, ""
        case OSError(filename=streams.OUTPUT):
            sentence = f"cannot write the output: {error.strerror}"
        case OSError(filename=name) if error.errno in _OF_THE_MACHINE:
            place = "" if name is None else f"{os.fsdecode(name)}: "
            sentence = f"{place}{error.strerror}"
        case _:
            code = 0
    return code, sentence


def _dispatch(argv: list[str]) -> int:
    try:
        parser = Parser("cutaway", _ABOUT)
        parser.add_argument("--version", action="version", version=f"cutaway {__version__}")
        parser.add_argument(
            "--completion", action=ShellCompletion, choices=SCRIPTS, const=(PACKAGE, COMMANDS)
        )
        text = " ".join(argv[:1])
        otherwise = (
            f"to continue a text: cutaway generate {shlex.quote(text)}; 'cutaway -h' lists commands"
        )
        return run_command(
            parser,
            "command",
            PACKAGE,
            COMMANDS,
            argv,
            examples=_EXAMPLES,
            otherwise=otherwise,
            names=_OTHER_NAMES,
        )
    except SystemExit as leaving:  # argparse: --help and --version are 0, bad usage is 2
        return leaving.code if isinstance(leaving.code, int) else 2


@contextmanager
def _idle_blas(argv: list[str]) -> Iterator[None]:
    """Let NumPy's BLAS have no threads, unless the reference backend computes with it.

    Its idle threads would take time from ours. It reads the variable once, when the command's
    module imports NumPy.
    """
    threads = os.environ.get(_BLAS_THREADS)
    if not any(word.endswith("reference") for word in argv):  # --backend reference
        os.environ.setdefault(_BLAS_THREADS, "1")
    try:
        yield
    finally:
        if threads is None:
            os.environ.pop(_BLAS_THREADS, None)
