"""Exceptions raised at a chosen line of the package, as by an interrupt, and checks after them.

A tracer (``sys.settrace``) sees every line of the package that a thread runs, and raises at one.
"""

import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import cutaway
from cutaway import LLM
from cutaway.requests.owner import Runner

PACKAGE = str(Path(cutaway.__file__).parent)
Line = tuple[str, int]


class Interrupt(BaseException):
    """The exception that the tracer raises."""


@contextmanager
def tracing(seen: Callable[[Line], object]) -> Iterator[None]:
    """Call ``seen`` before each line of the package that this thread runs; it may raise."""

    def local(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            seen((frame.f_code.co_filename, frame.f_lineno))
        return local

    def enter(frame: FrameType, event: str, arg: Any) -> Any:
        return local(frame, event, arg) if frame.f_code.co_filename.startswith(PACKAGE) else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(before)


def lines_of(work: Callable[[], object]) -> Counter[Line]:
    """Return how often some work runs each line of the package."""
    lines: Counter[Line] = Counter()
    with tracing(lambda line: lines.update([line])):
        work()
    return lines


def interrupt_at(line: Line, time: int, work: Callable[[], object]) -> bool:
    """Do some work; raise an interrupt before a line runs for the n-th time."""
    left = time

    def seen(at: Line) -> None:
        nonlocal left
        if at == line:
            left -= 1
            if left == 0:
                raise Interrupt(f"{Path(at[0]).name}:{at[1]}")

    try:
        with tracing(seen):
            work()
    except Interrupt:
        return True
    return False


def bits(completion: Any) -> Any:
    """Return the parts of a completion that must not differ."""
    return completion.token_ids, completion.text, completion.fingerprint


def check_nothing_is_left(llm: LLM) -> None:
    """Check that no sequence, block or state of an unread text is left after the next step."""
    engine = llm.engine
    llm.owner.call(bool)
    if engine._sequences:  # a reader in a cycle, which only the collector ends
        gc.collect()
        llm.owner.call(bool)
    assert (engine.running, engine.waiting, engine._sequences) == ([], [], {})
    assert engine.blocks.free == engine.blocks.count
    assert not engine.speculator._states
    assert isinstance(llm.owner, Runner)
    assert not llm.owner._turns._line
