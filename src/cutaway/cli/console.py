"""What a person sees beside the text, all of it on standard error; and Ctrl-C.

Knows terminals and signals. Refuses to know how text is made.
"""

import signal
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from cutaway.cli.arguments import model_options
from cutaway.cli.streams import tell

if TYPE_CHECKING:
    from cutaway.completion import Completion
    from cutaway.llm import LLM, Stream

__all__ = ["cost", "load", "statistics", "tell", "write_stream"]


def load(args: Namespace) -> "LLM":
    """The model that the arguments name, with a word on the terminal while it loads."""
    with _while("loading the model …", show=not args.quiet):
        from cutaway.llm import LLM

        return LLM(**model_options(args), progress=not args.quiet)


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


@contextmanager
def _stoppable(stream: "Stream") -> Iterator[None]:
    """Ctrl-C stops the stream after the step that is being computed; a second one, at once."""

    def on_signal(_: int, __: FrameType | None) -> None:
        if stream.stop_asked:
            raise KeyboardInterrupt
        stream.stop()

    previous = signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def write_stream(llm: "LLM", prompt: Any, options: dict[str, Any], *, show: bool) -> "Completion":
    """Generate; where ``show``, print text as it comes. Ctrl-C ends it as "aborted"."""
    with llm.stream(prompt, **options) as stream, _stoppable(stream):
        for step in stream:
            if show:
                print(step.text, end="", flush=True)
        if show:
            print(stream.held_back, end="", flush=True)
        return stream.completion()


def cost(completion: "Completion", price: tuple[float, float]) -> dict[str, float]:
    """What the tokens cost, in the currency of the price, which is for a million."""
    paid_in = completion.usage.prompt_tokens * price[0] / 1e6
    paid_out = completion.usage.completion_tokens * price[1] / 1e6
    return {"input": paid_in, "output": paid_out, "total": paid_in + paid_out}


def statistics(completion: "Completion", price: tuple[float, float] | None) -> str:
    """The closing line: tokens in and out, times, why it ended, the seed, the cost."""
    usage, timing = completion.usage, completion.timing
    parts = [f"{usage.prompt_tokens} tokens in, {usage.completion_tokens} out"]
    if timing.ttft_s is not None:
        parts.append(f"first token {timing.ttft_s:.2f} s")
    if timing.decode_tokens_per_s is not None:
        parts.append(f"{timing.decode_tokens_per_s:.1f} tokens/s")
    matched = "" if completion.matched is None else f" {completion.matched!r}"
    parts += [f"{completion.finish_reason}{matched}", f"seed {completion.seed}"]
    if price is not None:
        paid = cost(completion, price)
        parts.append("cost {total:.6f} = {input:.6f} in + {output:.6f} out".format(**paid))
    return "[" + " · ".join(parts) + "]"
