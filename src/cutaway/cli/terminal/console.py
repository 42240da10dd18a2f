"""Messages, questions and progress beside the text, on standard error; and signals like Ctrl-C."""

import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Protocol, TextIO

from cutaway.base import system
from cutaway.base.progress import Bar, Figures, inert, say, tokens_done
from cutaway.cli.options.namespace import model_options
from cutaway.cli.terminal.streams import are_one_file

if TYPE_CHECKING:
    from cutaway.api.llm import LLM
    from cutaway.requests.completion import Completion
    from cutaway.requests.sync_llm import Stream


class _Stoppable(Protocol):
    @property
    def stop_asked(self) -> bool: ...
    def stop(self) -> None: ...


def load(args: Namespace) -> "LLM":
    """Load the model that the arguments name; a line on the terminal says so until it is loaded."""
    with _while("loading the model …", show=not args.quiet):
        from cutaway.api.llm import LLM

        llm = LLM(**model_options(args), progress=not args.quiet)
    max_tokens, context = getattr(args, "max_tokens", 0), llm.engine.limits.context_length
    if max_tokens > context and not args.quiet:
        say(
            f"note: --max-tokens {max_tokens} is more than the context of {context} tokens, prompt "
            "included: no text is longer"
        )
    return llm


@contextmanager
def progress(
    *, show: bool, figures: Figures = tokens_done, after: float = 0
) -> Iterator[Callable[[str, int, int], None]]:
    """Show progress: yield a function of (task, done, total) that draws a bar for each task.

    after: seconds before a bar is shown
    """
    with ExitStack() as stack:
        bars: dict[str, Bar] = {}

        def report(task: str, done: int, total: int) -> None:
            if task not in bars:
                stack.close()  # ends the previous task's bar
                bars[task] = stack.enter_context(
                    Bar(task, total, show=show, figures=figures, after=after)
                )
            bars[task].update(done)

        yield report


@contextmanager
def _while(text: str, *, show: bool) -> Iterator[None]:
    show = show and sys.stderr.isatty()
    if show:
        print(text, end="\r", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if show:
            print(" " * len(text), end="\r", file=sys.stderr, flush=True)


class Stop:
    """A flag that Ctrl-C sets, and that long work checks between its parts."""

    stop_asked = False

    def stop(self) -> None:
        """Set the flag."""
        self.stop_asked = True


@contextmanager
def stoppable(*running: _Stoppable) -> Iterator[None]:
    """Let Ctrl-C stop streams after the running step; a second Ctrl-C raises KeyboardInterrupt."""

    def on_signal(_: int, __: FrameType | None) -> None:
        if any(stream.stop_asked for stream in running):
            raise KeyboardInterrupt
        for stream in running:
            stream.stop()

    previous = signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def end_line(*, figures: bool) -> None:
    """End the text's line on a terminal, and in a file that also gets the figures."""
    if sys.stdout.isatty() or (figures and are_one_file(sys.stdout, sys.stderr)):
        print(flush=True)


def say_where_traces_are(path: str, numbers: Iterable[int]) -> None:
    """Print the paths of the texts' traces. numbers: the numbers of the texts, from 1"""
    from cutaway.trace.write import numbered_path

    say(f"[trace: {', '.join(str(numbered_path(path, number)) for number in numbers)}]")


def read_line(prompt: str) -> str | None:
    """Return one line, or None at the end of the input. Ctrl-C discards only the line."""
    try:
        if sys.stdin.isatty() and not sys.stdout.isatty():
            print(prompt, end="", file=sys.stderr, flush=True)  # only answers go to a file
            return input()
        return input(prompt if sys.stdin.isatty() else "")
    except EOFError:
        return None
    except KeyboardInterrupt:
        say("")
        return ""


def confirm(question: str) -> bool:
    """Ask a question, and return whether the answer is "y" or "yes"."""
    return (read_line(f"{question} [y/N] ") or "").strip().lower() in ("y", "yes")


def put(text: str, stream: TextIO | None = None) -> None:
    """Write text from a model, a file or a server to a stream, by default standard output."""
    stream = stream or sys.stdout
    print(inert(text, stream), end="", file=stream, flush=True)


def write(stream: "Stream", *, show: bool) -> "Completion":
    """Read a stream to its end; with ``show``, print the text so far, and then each new piece."""
    if show:
        put("".join(step.text for step in stream.steps))
    for step in stream:
        if show:
            put(step.text)
    if show:
        put(stream.held_text)
    return stream.completion()


# -- signals: handlers for the duration of a block -------------------------------------------------


Handler = Callable[[int, FrameType | None], None]


def leave(number: int, _: FrameType | None) -> None:
    """Raise SystemExit, so that clean-up code runs."""
    raise SystemExit(128 + number)


def leaving_nothing(end: Handler = leave) -> AbstractContextManager[None]:
    """Run the block's clean-up code after SIGTERM, and after SIGHUP unless nohup ignores it."""
    signals = (n for n in system.ENDING if signal.getsignal(n) != signal.SIG_IGN)
    return handling(dict.fromkeys(signals, end))


@contextmanager
def handling(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Install these handlers for the block, and restore the earlier ones after it."""
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
