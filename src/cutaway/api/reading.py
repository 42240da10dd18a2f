"""Many sequences of one engine that are only read: each as soon as it has ended.

Knows how many run at once. Refuses to know what is read.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from typing import Protocol, TypeVar

from cutaway.api.runner import Runner
from cutaway.engine import Ended, Event, Request

_MOST = 16  # texts at once, whose logits are held


class EndReader(Protocol):
    """A reader that knows when its sequence has ended."""

    ended: Ended | None

    def receive(self, event: Event) -> None:
        """See ``Reader``."""


R = TypeVar("R", bound=EndReader)


def each_ended(
    runner: Runner,
    jobs: Iterable[tuple[Request, R]],
    stopped: Callable[[], bool] = bool,
    most: int = _MOST,
) -> Iterator[tuple[int, R]]:
    """(index, reader) of each request, in the order in which they end.

    stopped: asked between two steps; most: texts at once
    Closing the iterator early aborts what runs.
    """
    waiting, running = enumerate(jobs), dict[int, tuple[R, ExitStack]]()
    try:
        while not stopped():
            for index, (request, reader) in islice(waiting, most - len(running)):
                running[index] = reader, ExitStack()
                running[index][1].enter_context(runner.running(request, reader))
            if not running:
                return
            runner.turn()
            for index in [index for index, (reader, _) in running.items() if reader.ended]:
                ended, stack = running.pop(index)
                stack.close()  # or its logits would be held until the last text has ended
                del stack
                yield index, ended
                del ended
    finally:
        for _, stack in running.values():
            stack.close()
