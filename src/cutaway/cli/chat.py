"""``cutaway chat``: a conversation in the terminal, in the model's own template."""

import sys
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cutaway.cli import arguments, console, figures
from cutaway.errors import InputError
from cutaway.progress import say

if TYPE_CHECKING:
    from cutaway.api.llm import LLM

_EPILOG = """
examples:
  cutaway chat
  cutaway chat --system "Answer in one sentence." --temperature 0
  printf 'Hello!\\nName three colours.\\n' | cutaway chat     one message per line

while chatting:
  /system TEXT   set the system message, and start over
  /reset         start over
  /help          list these commands
  /exit          quit; so does Ctrl-D
  Ctrl-C         stop the answer; the part so far stays in the conversation.
                 A second Ctrl-C stops at once and removes the message

If messages are piped in and one is refused, the others are answered, and the exit code is 2.
"""
_COMMANDS = "/system TEXT, /reset, /help, /exit; Ctrl-C stops an answer, Ctrl-D quits"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway chat``."""
    parser.epilog = _EPILOG
    parser.add_argument("--system", metavar="TEXT", help="the system message")
    arguments.add_model_arguments(parser)
    arguments.add_request_arguments(parser)
    arguments.add_trace_arguments(parser)
    arguments.add_output_arguments(parser)


def run(args: Namespace) -> int:
    """Talk until the input ends."""
    options = arguments.request_options(args)
    llm = console.load(args)
    if llm.template is None:
        raise InputError("this model has no chat template; use 'cutaway generate'")
    conversation = Conversation(llm, args, options | arguments.tracked(args, llm))
    if sys.stdin.isatty():
        with suppress(ImportError):  # not every Python has it
            import readline  # noqa: F401  line editing and history for input()

        say(f"{llm.name} · {_COMMANDS}")
    while (line := _read_line()) is not None:
        if not conversation.take(line.strip()):
            break
    return 2 if conversation.refused and not sys.stdin.isatty() else 0


def _read_line() -> str | None:
    """One line, or None at the end of the input. Ctrl-C discards the line and not the program."""
    try:
        if sys.stdin.isatty() and not sys.stdout.isatty():
            print("> ", end="", file=sys.stderr, flush=True)  # only answers go to a file
            return input()
        return input("> " if sys.stdin.isatty() else "")
    except EOFError:
        return None
    except KeyboardInterrupt:
        say("")
        return ""


class Conversation:
    """The messages so far, and how the next is answered.

    refused: whether a message could not be answered
    """

    def __init__(self, llm: "LLM", args: Namespace, options: dict[str, Any]) -> None:
        self._llm, self._args, self._options = llm, args, options
        self.refused = False
        self._system: str | None = args.system
        self._messages: list[dict[str, str]] = []
        self._asked = 0

    def take(self, line: str) -> bool:
        """Run a command or answer a message; False for /exit."""
        command, _, rest = line.partition(" ")
        if command in ("/exit", "/quit"):
            return False
        if command == "/reset" or (command == "/system" and rest.strip()):
            self._system = rest.strip() if command == "/system" else self._system
            self._messages.clear()
            say("(a new conversation)")
        elif command == "/system":
            say(f"(system: {self._system or 'the default of the model'})")
        elif command.startswith("/"):
            known = "" if command == "/help" else f"unknown command {command}; "
            say(f"({known}{_COMMANDS})")
        elif line:
            self._answer(line)
        return True

    def _answer(self, line: str) -> None:
        system = [{"role": "system", "content": self._system}] if self._system else []
        asked: dict[str, str] = {"role": "user", "content": line}
        try:
            prompt: Any = self._llm.chat_prompt([*system, *self._messages, asked])
            done = console.write_stream(self._llm, prompt, self._next_options(), show=True)
        except InputError as error:  # too long, most likely: the conversation is as it was
            self.refused = True
            say(f"cutaway: error: {error} (/reset starts over)")
            return
        except KeyboardInterrupt:  # the second: the conversation is as it was, too
            print(flush=True)
            say("(stopped)")
            return
        print(flush=True)
        self._messages += [asked, {"role": "assistant", "content": done.text}]
        if not self._args.quiet:
            say(figures.statistics(done, self._args.price))
            if "trace" in self._options:
                console.say_where_traces_are(self._options["trace"], [self._asked])

    def _next_options(self) -> dict[str, Any]:
        """Each message, answered or refused, has a trace file of its own."""
        self._asked += 1
        if "trace" not in self._options:
            return self._options
        from cutaway.trace.write import numbered

        return self._options | {"trace": numbered(self._options["trace"], self._asked)}
