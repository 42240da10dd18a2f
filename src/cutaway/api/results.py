"""Many requests through one engine, a few at a time: each result as soon as it ends.

An error belongs to its request, and the others continue.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from cutaway.engine.events import explained
from cutaway.errors import CutawayError
from cutaway.methods.importance import answer
from cutaway.requests.completion import Completion
from cutaway.requests.owner import EngineOwner
from cutaway.requests.stream import Stream

Result = Completion | list[Completion] | CutawayError
"""What ``generate`` returns for a request, or the error that it would raise."""


class Results(Iterator[tuple[int, Result]]):
    """(index of the request, its result) in the order in which they end.

    Closing it (or leaving its ``with`` block, or dropping it) early aborts what runs.
    on_step: called after every step
    """

    def __init__(
        self,
        owner: EngineOwner,
        requests: Iterable[Any],
        start: Callable[[Any], list[Stream]],
        most: int,
    ) -> None:
        """start: queues a request's sequences, or raises; most: sequences queued at once."""
        self._owner, self._start, self._most = owner, start, most
        self._requests = enumerate(requests)
        self._open: dict[int, list[Stream]] = {}
        self._ended: deque[tuple[int, Result]] = deque()
        self._tokens = 0  # of those that ended
        self.stop_asked = False
        self.on_step: Callable[[], object] = lambda: None

    @property
    def tokens(self) -> int:
        """Tokens written so far, unfinished texts included."""
        return self._tokens + sum(map(_tokens, self._open.values()))

    def __next__(self) -> tuple[int, Result]:
        try:
            while not self._ended and not self.stop_asked and self._fill():
                self._owner.turn()
                self._collect()
                self.on_step()
        except BaseException:
            self.close()
            raise
        if self._ended:
            return self._ended.popleft()
        self.close()
        raise StopIteration

    def stop(self) -> None:
        """Begin no further step; requests that have ended are still yielded.

        Safe in a signal handler.
        """
        self.stop_asked = True

    def __enter__(self) -> "Results":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Abort the requests that have not ended, and free their blocks."""
        self.stop_asked = True
        for streams in self._open.values():
            for stream in streams:
                stream.close()
        self._open.clear()
        self._ended.clear()

    def _fill(self) -> bool:
        """Take requests while there is room; False where nothing is left to do."""
        room = self._most - sum(map(len, self._open.values()))
        while room > 0 and not self._ended:
            if (following := next(self._requests, None)) is None:
                break
            index, request = following
            try:
                self._open[index] = self._start(request)
                room -= len(self._open[index])
            except CutawayError as error:
                self._ended.append((index, error))
        return bool(self._open or self._ended)

    def _collect(self) -> None:
        for index, streams in list(self._open.items()):
            if all(stream.ended for stream in streams):
                del self._open[index]
                self._tokens += _tokens(streams)
                self._ended.append((index, _result(streams)))


def _tokens(streams: list[Stream]) -> int:
    return sum(stream.num_arrived for stream in streams)


def _result(streams: list[Stream]) -> Result:
    """Of samples that have all ended."""
    for stream in streams:
        if stream.error:
            return explained(stream.error)
    return answer([stream.finish() for stream in streams], aligned=streams[0].options.align)
