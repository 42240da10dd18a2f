"""Work in a thread of its own."""

from collections.abc import Callable
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def start(work: Callable[[], T]) -> Callable[[], T]:
    """Start it; what is returned waits for its end, and returns or raises what it did."""
    made: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            made.append(work())
        except BaseException as error:
            raised.append(error)

    thread = Thread(target=run, daemon=True)  # not joined where something else fails first
    thread.start()

    def result() -> T:
        thread.join()
        if raised:
            raise raised[0]
        return made[0]

    return result
