"""The tools of ``cutaway chat``: a file's functions, and how their calls are shown."""

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from inspect import isfunction, unwrap
from pathlib import Path
from shutil import get_terminal_size
from traceback import walk_tb
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cutaway.base.progress import inert, say
from cutaway.cli.terminal import console
from cutaway.cli.terminal.drawing import WordWrap
from cutaway.errors import InputError
from cutaway.text.characters import printable

if TYPE_CHECKING:
    from cutaway.api.llm import LLM
    from cutaway.requests.answer import AnswerPart
    from cutaway.requests.completion import ToolCall
    from cutaway.requests.tools import Function, ToolUse
    from cutaway.text.thinking_switch import ThinkingWish

ROUNDS = 8
"""The most answers to one message; when there are so many, the last one cannot call tools."""

_MODULE = "cutaway_tools"
_MOST_CHARACTERS = 500  # characters of a result
_TOOLS = "offer the functions of this Python file; each needs types, and a docstring that says why"
_CHOICE = "auto (the default), required: the first answer to each message is a call, or none"
_YES = "run every call without asking"


def add_arguments(parser: ArgumentParser) -> None:
    """Add --tools and the other options on tools."""
    group = parser.add_argument_group("tools")
    group.add_argument("--tools", metavar="FILE.py", help=_TOOLS)
    group.add_argument("--tool-choice", choices=("auto", "required", "none"), help=_CHOICE)
    group.add_argument("-y", "--yes", action="store_true", help=_YES)


class Toolbox:
    """The functions of the file that --tools names; none without --tools."""

    def __init__(self, args: Namespace) -> None:
        """InputError for a bad file, or if calls need a yes and standard input is no terminal."""
        self._choice, self._yes = args.tool_choice, args.yes
        self._functions: list[Function] = []
        if args.tools is None:
            if args.yes or args.tool_choice:
                raise InputError("--yes and --tool-choice are about tools: add --tools FILE.py")
            return
        if not (args.yes or sys.stdin.isatty()):
            raise InputError(
                "--tools asks before it runs a call, and standard input is no terminal: add --yes "
                "to run every call"
            )
        self._functions = functions_of(args.tools)

    def use(self, llm: "LLM", wish: "ThinkingWish", *, may_call: bool = True) -> "ToolUse":
        """Return the tools of the answers to one message."""
        from cutaway.requests.tools import ToolUse

        choice = self._choice if may_call else "none"
        return ToolUse(llm.model, self._functions, choice, False, wish)  # each call is confirmed

    def result(self, use: "ToolUse", call: "ToolCall") -> dict[str, Any]:
        """Ask whether to run a call, run it, and return a message with the result or the "no"."""
        if not (self._yes or console.confirm("run it?")):
            return use.result(call, "the user declined")
        try:
            with redirect_stdout(sys.stderr):  # only answers are on standard output
                message = use.result(call, use.functions[call.name](**call.values()))
        except (Exception, SystemExit) as error:  # the function's error, which the model reads
            message = use.result(call, f"error: {type(error).__name__}: {error}")
        content = message["content"]
        is_short = len(content) <= _MOST_CHARACTERS
        say(f"← {printable(content if is_short else f'{content[:_MOST_CHARACTERS]}…')}")
        return message


class Display:
    """Shows a growing answer: text on standard output, thoughts and calls on standard error."""

    def __init__(self) -> None:
        self._push = _output()
        self._has_text = False  # whether text was printed and its line has not ended
        self._thinks = False  # whether a line of thoughts is open
        self._open = True  # whether a line is open: even an empty answer is a line
        self._arguments: str | None = None  # of the call that is being written

    def show(self, deltas: "Iterable[AnswerPart]") -> None:
        """Print thoughts and text; print a call's name when it begins, its arguments at its end."""
        from cutaway.text.thinking import Thought
        from cutaway.text.tools import Arguments, CallEnd, CallStart, Content

        for delta in deltas:
            if isinstance(delta, Thought) != self._thinks:
                self._thinks = not self._thinks
                print("(thinking) " if self._thinks else "\n", end="", file=sys.stderr, flush=True)
            match delta:
                case Thought():
                    console.put(delta.text, sys.stderr)
                case Content():
                    self._push(delta.text)
                    sys.stdout.flush()
                    self._has_text = self._open = True
                case CallStart():
                    if self._has_text:
                        self._push("\n")
                        sys.stdout.flush()
                    self._has_text = self._open = False
                    print(f"→ {delta.tool.name}", end=" ", file=sys.stderr, flush=True)
                    self._arguments = ""
                case Arguments():
                    self._arguments = (self._arguments or "") + delta.text
                case CallEnd():
                    whole = json.loads(self._arguments or "")
                    say(printable(json.dumps(whole, ensure_ascii=False)))
                    self._arguments = None

    def end(self) -> None:
        """End the open lines, once the answer has ended."""
        if self._thinks:
            say("")
        if self._arguments is not None:
            say(f"{printable(self._arguments)} … (cut, and not run)")
        if self._open:
            self._push("\n")
            sys.stdout.flush()


def _output() -> Callable[[str], object]:
    """Return a function that writes to standard output; on a terminal, it wraps between words."""
    write = sys.stdout.write
    if not sys.stdout.isatty():
        return write
    wrap = WordWrap(write, lambda: get_terminal_size().columns)
    return lambda text: wrap.push(inert(text, sys.stdout))


def functions_of(path: str) -> "list[Function]":
    """Return a Python file's public functions; InputError if there is none, or the file raises."""
    from cutaway.requests.tools import check_function
    from cutaway.text.tools import parse_tools, tool_of

    module = sys.modules[_MODULE] = ModuleType(_MODULE)
    module.__file__ = path
    _run(path, module)
    public_functions = [
        value
        for name, value in vars(module).items()
        if not name.startswith("_") and callable(value)
        and isfunction(inner := unwrap(value)) and inner.__module__ == _MODULE
    ]  # fmt: skip
    functions = [*dict.fromkeys(public_functions)]
    if not functions:
        raise InputError(f"--tools {path}: it defines no public function; define one with types")
    try:
        parse_tools([tool_of(function).as_data() for function in functions])
        for function in functions:
            check_function(function)
    except InputError as error:
        reason = [error.reason] if error.path == ("tools",) else [": ", *error.args]
        raise InputError("--tools", f" {path}", *reason) from None
    return functions


def _run(path: str, module: ModuleType) -> None:
    """Import a file by its path, without writing byte code."""
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"--tools: cannot read {path}: {error.strerror}") from None
    try:
        code = compile(source, path, "exec", dont_inherit=True)
        with redirect_stdout(sys.stderr):
            exec(code, vars(module))
    except (Exception, SystemExit) as error:
        lines = [line for frame, line in walk_tb(error.__traceback__)
                 if frame.f_code.co_filename == path]  # fmt: skip
        message = str(error)
        if isinstance(error, SyntaxError) and error.filename == path:
            lines, message = [error.lineno or 1], error.msg
        place = f" line {lines[-1]}:" if lines else ""
        message = f"{type(error).__name__}: {printable(message)}"
        raise InputError(f"--tools {path}:{place} {message}; mend the file") from None
