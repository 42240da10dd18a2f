"""``cutaway chat``: a conversation in the terminal, in the model's own template.

Knows a person's commands, and how --think and /think set thinking. ``tools`` runs functions;
``saved_chat`` saves a conversation for the next run.
"""

import json
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cutaway.base.progress import say, say_error
from cutaway.cli import tools
from cutaway.cli.options import arguments, namespace
from cutaway.cli.terminal import console, reports
from cutaway.errors import InputError

if TYPE_CHECKING:
    from cutaway.api.llm import LLM
    from cutaway.cli.saved_chat import SavedChat
    from cutaway.requests.base import Message
    from cutaway.requests.completion import Completion
    from cutaway.requests.tools import ToolUse
    from cutaway.text.thinking_switch import ThinkingWish


COMMON = "-m --system --tools --resume --max-tokens --temperature --seed --json-schema"
EPILOG = '''
examples:
  cutaway chat
  cutaway chat --system "Answer in one sentence." --temperature 0
  printf 'Hello!\\nName three colours.\\n' | cutaway chat     one message per line
  cutaway chat --resume talk.json     continues a conversation, and saves it
  cutaway chat -m path/to/llada --denoise llada --max-tokens 64
  cutaway chat --tools weather.py     its functions may be called; you confirm each call

weather.py:
  def get_weather(city: str, days: int = 1) -> dict:
      """The weather of a city."""
      return {"city": city, "degrees": 12}

while chatting:
  /system TEXT   set the system message, and start over
  /continue      go on with the last answer, where it was stopped or cut
  /think WORD    on, off, or a level such as low; alone: what is set
  /reset         start over
  /help          list these commands
  /exit          quit; so does Ctrl-D
  Ctrl-C         stop the answer; the part so far stays in the conversation.
                 A second Ctrl-C, or one while a function runs, stops at once and
                 removes the message

--tools FILE.py runs the file, offers the functions that it defines (not those that it imports, nor
_private ones), and shows each call before it runs. The model reads what a function returns or
raises, or that a call was declined. A message has at most 8 answers; the last is without tools. A
call that was cut is not run.

--resume FILE saves the conversation in FILE after each answer, and its KV cache in FILE.prefix, so
that the next chat starts at once. A cache that is lost, damaged or of another model is computed
again. /reset and /system clear the file, too. A conversation can be open in one chat at a time.

If messages are piped in and one is refused, the others are answered, and the exit code is 2.
'''
_COMMANDS = (
    "/system TEXT, /continue, /think, /reset, /help, /exit; Ctrl-C stops an answer, Ctrl-D quits"
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway chat``."""
    parser.add_argument("--system", metavar="TEXT", help="the system message")
    parser.add_argument(
        "--resume", metavar="FILE", help="save the conversation in FILE, and continue it"
    )
    arguments.add_rule_name(parser)
    tools.add_arguments(parser)
    add_thinking(parser)
    arguments.add_model_arguments(parser)
    arguments.add_groups(parser, *arguments.REQUEST)
    arguments.add_interventions(parser)
    arguments.add_groups(parser, "trace")
    arguments.add_output_arguments(parser)


def run(args: Namespace) -> int:
    """Talk until the input ends."""
    options, wish = namespace.request_options(args), wish_of(args)
    toolbox = tools.Toolbox(args)
    with _open_saved_chat(args) as saved_chat:
        return _talk(args, options, toolbox, saved_chat, wish)


def _talk(
    args: Namespace,
    options: dict[str, Any],
    toolbox: tools.Toolbox,
    saved_chat: "SavedChat | None",
    wish: "ThinkingWish",
) -> int:
    llm = console.load(args)
    if "denoise" not in options:
        llm.engine.limits.check_causal("cutaway chat --denoise RULE")
    if llm.template is None:
        raise InputError("this model has no chat template; use 'cutaway generate'")
    options |= namespace.read_track_option(args, llm)
    use = toolbox.use(llm, wish)
    use.options(options)  # refuse bad options before anybody types
    say_notes(use)
    conversation = Conversation(llm, args, options, toolbox, saved_chat)
    if sys.stdin.isatty():
        with suppress(ImportError):  # some Pythons lack readline
            import readline  # noqa: F401  line editing and history for input()

        say(f"{llm.name} · {_COMMANDS}")
    conversation.resume()
    while (line := console.read_line("> ")) is not None:
        if not conversation.take(line.strip()):
            break
    if saved_chat and saved_chat.failed:
        return 1
    return 2 if conversation.any_refused and not sys.stdin.isatty() else 0


def _open_saved_chat(args: Namespace) -> "AbstractContextManager[SavedChat | None]":
    """Open the file that --resume names, if any; InputError if it cannot be opened."""
    if args.resume is None:
        return nullcontext()
    from cutaway.cli.saved_chat import SavedChat

    return SavedChat(args.resume, args.system)


class Conversation:
    """The messages so far, and the settings of the next answer.

    any_refused: whether a message could not be answered
    """

    def __init__(
        self, llm: "LLM", args: Namespace, options: dict[str, Any], toolbox: tools.Toolbox,
        saved_chat: "SavedChat | None" = None,
    ) -> None:  # fmt: skip
        self._llm, self._args, self._options = llm, args, options
        self._toolbox, self._saved_chat = toolbox, saved_chat
        self._wish = wish_of(args)
        self.any_refused = False
        self._system: str | None = args.system
        self._messages: list[Message] = []
        self._answer_count = 0

    def resume(self) -> None:
        """Continue the saved conversation, if any."""
        if not self._saved_chat or not self._saved_chat.talk:
            return
        talk = self._saved_chat.talk
        if talk.messages or self._system is None:
            self._system, self._messages = talk.system, [*talk.messages]
        again = ""
        if talk.messages and self._caches and not self._saved_chat.restore(self._llm):
            again = ", which are computed again"
        if not self._args.quiet:
            say(f"({self._saved_chat.path}: {len(self._messages)} messages so far{again})")

    @property
    def _caches(self) -> bool:
        """Whether each message can continue from the KV cache of the messages before it."""
        flags = ("prefix_cache", "kv_cache")
        return "denoise" not in self._options and all(getattr(self._args, f, True) for f in flags)

    def _keep(self) -> None:
        """Save the conversation and its KV cache."""
        if not self._saved_chat:
            return
        from cutaway.cli.saved_chat import Talk

        messages, prompt = [*self._opening, *self._messages], None
        if self._messages and self._caches:
            prompt = self._prompt(messages, self._use())
        self._saved_chat.write(self._llm, Talk(self._system, self._messages), prompt)

    @property
    def _opening(self) -> "list[Message]":
        """Return a list with the system message, or an empty list if there is none."""
        return [{"role": "system", "content": self._system}] if self._system else []

    def take(self, line: str) -> bool:
        """Run a command or answer a message; return False for /exit, else True."""
        command, _, rest = line.partition(" ")
        if command in ("/exit", "/quit"):
            return False
        if command == "/reset" or (command == "/system" and rest.strip()):
            self._system = rest.strip() if command == "/system" else self._system
            self._messages.clear()
            say("(a new conversation)")
            self._keep()
        elif command == "/system":
            say(f"(system: {self._system or 'the default of the model'})")
        elif command == "/think":
            self._think(rest.strip())
        elif command == "/continue":
            self._continue()
        elif command.startswith("/"):
            prefix = "" if command == "/help" else f"unknown command {command}; "
            say(f"({prefix}{_COMMANDS})")
        elif line:
            self._answer(line)
        return True

    def _use(self, *, may_call: bool = True) -> "ToolUse":
        """Return the tools and the thinking settings of the next answers."""
        return self._toolbox.use(self._llm, self._wish, may_call=may_call)

    def _prompt(
        self, messages: "list[Message]", use: "ToolUse", *, continues: bool = False
    ) -> list[int]:
        return self._llm.chat_ids(
            messages, use.tools, continue_final_message=continues, **use.variables
        )

    def _think(self, word: str) -> None:
        """Set how much the model thinks from now on; without a word, print the setting."""
        if not word:
            say(f"(think: {wish_in_words(self._wish)})")
            return
        before = self._wish
        try:
            self._wish = changed_wish(before, word)
            say_notes(self._use())
            say(f"(think: {wish_in_words(self._wish)})")
        except InputError as error:
            self._wish = before
            say(f"({error})")

    def _continue(self) -> None:
        if not self._messages:
            say("(there is no answer to continue)")
            return
        *before, last = self._messages
        self._add(before, last, continues=True)

    def _answer(self, line: str) -> None:
        self._add(self._messages, {"role": "user", "content": line})

    def _add(self, before: "list[Message]", last: "Message", *, continues: bool = False) -> None:
        """Answer or continue the last message, and add the new messages to the conversation."""
        try:
            new = self._rounds([*self._opening, *before, last], continues=continues)
        except InputError as error:  # most likely too long; the conversation is unchanged
            self.any_refused = True
            say_error(f"{error} (/reset starts over)")
            return
        except KeyboardInterrupt:  # the second Ctrl-C; the conversation is unchanged
            print(flush=True)
            say("(stopped)")
            return
        self._messages = [*before, *([] if continues else [last]), *new]
        self._keep()

    def _rounds(self, messages: "list[Message]", *, continues: bool) -> "list[Message]":
        """Return the new messages: answers with calls, the calls' results, and the last answer.

        continues: whether the first answer continues the last message, and so replaces this message
        """
        use, new = self._use(), list["Message"]()
        for number in range(1, tools.ROUNDS + 1):
            if number == tools.ROUNDS:
                use = self._use(may_call=False)
            is_continuation = continues and not new
            done, is_whole = self._write_answer([*messages, *new], use, continues=is_continuation)
            messages = messages[:-1] if is_continuation else messages
            self._show_figures(done)
            message, calls = done.new_messages[-1], done.tool_calls
            if not (calls and is_whole):  # a call that was cut is not run
                return [*new, {"role": "assistant", "content": message["content"] or ""}]
            new += [message, *(self._toolbox.result(use, call) for call in calls)]
            use.free()
        return new

    def _write_answer(
        self, messages: "list[Message]", use: "ToolUse", *, continues: bool
    ) -> "tuple[Completion, bool]":
        """Write one answer, and show each piece; return the answer and whether its calls are whole.

        Ctrl-C ends the answer, with the finish reason "aborted".
        """
        request = f"{len(messages)}"
        prompt = self._prompt(messages, use, continues=continues)
        use.set_prompt(prompt, messages[-1] if continues else None)
        options = use.options(self._next_options())
        reader, display = use.reader(request), tools.Display()
        with self._llm.stream(prompt, **options) as stream, console.stoppable(stream):
            for step in stream:
                display.show(reader.push(step))
            display.show(reader.finish(stream.held_text))
        display.end()
        done: Completion = use.read(stream.completion(), request)
        return done, reader.has_called and done.finish_reason != "aborted"

    def _show_figures(self, done: "Completion") -> None:
        reports.show_figures(self._args, done)
        if "trace" in self._options and not self._args.quiet:
            console.say_where_traces_are(self._options["trace"], [self._answer_count])

    def _next_options(self) -> dict[str, Any]:
        """Return the options of the next answer; its trace, if any, gets the next number."""
        self._answer_count += 1
        if "trace" not in self._options:
            return self._options
        from cutaway.trace.write import numbered_path

        return self._options | {"trace": numbered_path(self._options["trace"], self._answer_count)}


# -- thinking --------------------------------------------------------------------------------------


_THINK_FLAGS = ("--think-budget", "--chat-template-kwargs")
_THINK = "let the model think before it answers, as much as LEVEL says (low, medium, high, ...)"
_BUDGET = "tokens of a thought at most; then it is closed"
_VARIABLES = "variables of the model's chat template, as a JSON object"
_SWITCH = {"on": True, "off": False}


def add_thinking(parser: ArgumentParser) -> None:
    """Add --think and the other options on thinking."""
    group = parser.add_argument_group("thinking", argument_default=SUPPRESS)
    either = group.add_mutually_exclusive_group()
    either.add_argument("--think", nargs="?", const=True, metavar="LEVEL", help=_THINK)
    either.add_argument("--no-think", dest="think", action="store_false", help="no thoughts")
    group.add_argument("--think-budget", type=int, metavar="N", help=_BUDGET)
    group.add_argument("--chat-template-kwargs", metavar="JSON", help=_VARIABLES)


def wish_of(args: Namespace) -> "ThinkingWish":
    """Return the thinking settings in the options; InputError for bad options."""
    from cutaway.text.thinking_switch import ThinkingWish

    think = getattr(args, "think", None)
    think = _SWITCH.get(think, think) if isinstance(think, str) else think
    variables = _object(getattr(args, "chat_template_kwargs", None))
    name = "--no-think" if think is False else "--think"
    return ThinkingWish(
        think, getattr(args, "think_budget", None), variables, (name, *_THINK_FLAGS)
    )


def changed_wish(wish: "ThinkingWish", word: str) -> "ThinkingWish":
    """Return the thinking settings after /think WORD. word: on, off, or a level"""
    think = _SWITCH.get(word, word)
    tokens = None if think is False else wish.tokens
    return replace(wish, think=think, tokens=tokens, names=("/think", *_THINK_FLAGS))


def wish_in_words(wish: "ThinkingWish") -> str:
    """Return the thinking settings in words."""
    words = {None: "as the model's template has it", True: "on", False: "off"}
    budget = f", at most {wish.tokens} tokens" if wish.tokens is not None else ""
    return f"{wish.think if isinstance(wish.think, str) else words[wish.think]}{budget}"


def say_notes(use: "ToolUse") -> None:
    """Print the notes on how the options of tools and thinking were understood."""
    for note in use.notes:
        say(f"note: {note}")


def _object(text: str | None) -> dict[str, Any]:
    try:
        read = json.loads(text or "{}")
    except ValueError:
        read = None
    if not isinstance(read, dict):
        raise InputError(
            f"--chat-template-kwargs must be a JSON object, such as '{{\"a\": true}}', not {text}"
        )
    return read
