"""Signal handlers for the duration of a block, and the one that exits with clean-up."""

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

from cutaway.base import system

Handler = Callable[[int, FrameType | None], None]


def leave(number: int, _: FrameType | None) -> None:
    """Raise SystemExit, so that clean-up code runs."""
    raise SystemExit(128 + number)


def leaving_nothing(end: Handler = leave) -> AbstractContextManager[None]:
    """SIGTERM and SIGHUP, where nohup does not ignore it, end a block as Ctrl-C does."""
    heard = (n for n in system.ENDING if signal.getsignal(n) != signal.SIG_IGN)
    return handling(dict.fromkeys(heard, end))


@contextmanager
def handling(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """These handlers within the block, and the earlier ones after it."""
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
