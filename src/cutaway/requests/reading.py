"""Many sequences of one engine that are only read: each as soon as it has ended.

Knows how many run at once, for a thread that waits and for tasks. Refuses to know what is read.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from cutaway.engine import Request
from cutaway.requests.owner import EndListener, EngineOwner

if TYPE_CHECKING:
    from cutaway.engine import Reader

    Queue = Callable[[Sequence[tuple[Request, int]]], Awaitable[Reader]]

_MOST = 16  # texts at once, whose logits are held
_TOGETHER, _PARTS = 32, 4  # of one request among others: texts that are queued together, and parts


R = TypeVar("R", bound=EndListener)


def each_ended(
    owner: EngineOwner,
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
                running[index][1].enter_context(owner.running(request, reader))
            if not running:
                return
            owner.turn()
            for index in [index for index, (reader, _) in running.items() if reader.ended]:
                ended, stack = running.pop(index)
                stack.close()  # or its logits would be held until the last text has ended
                del stack
                yield index, ended
                del ended
    finally:
        for _, stack in running.values():
            stack.close()


async def read_all(queue: "Queue", requests: Iterable[Request], make: Callable[[], R]) -> list[R]:
    """A reader of each request, when all have ended; a part after the other, so that others come
    between."""
    room = asyncio.Semaphore(_PARTS)

    async def read(some: Sequence[Request]) -> list[R]:
        readers = [make() for _ in some]
        async with room:
            with closing(await queue([(request, 1) for request in some])) as reader:
                while events := await reader.read():
                    for one in events:
                        readers[one.which].receive(one.event)
        return readers

    each = [*requests]
    parts = [each[i : i + _TOGETHER] for i in range(0, len(each), _TOGETHER)]
    tasks = [asyncio.ensure_future(read(part)) for part in parts]
    try:
        return [reader for part in await asyncio.gather(*tasks) for reader in part]
    finally:
        for task in tasks:
            task.cancel()
