"""Runs prefill-only sequences, many at a time, for a thread or for asyncio tasks."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Generic, TypeVar

from cutaway.base.arithmetic import plainly
from cutaway.engine import Request
from cutaway.requests.owner import EndListener, EngineOwner

if TYPE_CHECKING:
    from cutaway.engine import ArrivalReader

    Queue = Callable[[Sequence[tuple[Request, int]]], Awaitable[ArrivalReader]]

_MOST = 16  # texts at once, if their logits are kept
_AT_ONCE = 256  # texts of a PrefillTask at once: a step takes as many as fit
_TOGETHER, _PARTS = 32, 4  # texts of one request that are queued together, and such parts at once


T = TypeVar("T")
U = TypeVar("U")
R = TypeVar("R", bound=EndListener)


@dataclass(frozen=True)
class PrefillTask(Generic[R, T]):
    """Prefill-only requests, and how their events become an answer.

    requests  for the engine
    reader    makes a reader for each request
    answer    makes the answer from all readers, once their requests have ended
    progress  called between steps with all readers
    """

    requests: Iterable[Request]
    reader: Callable[[], R]
    answer: Callable[[Sequence[R]], T]
    progress: Callable[[Sequence[R]], object] = bool


def prefill(owner: EngineOwner, task: PrefillTask[R, T]) -> T:
    """Run a task, beside other sequences; returns its answer."""
    jobs = [(request, task.reader()) for request in task.requests]
    readers = [reader for _, reader in jobs]

    def progress() -> bool:
        task.progress(readers)
        return False

    for _ in each_ended(owner, jobs, progress, _AT_ONCE):
        pass
    return plainly(task.answer)(readers)


def together(
    tasks: Sequence[PrefillTask[R, T]], join: Callable[[Sequence[T]], U]
) -> PrefillTask[R, U]:
    """Make one task of several. join: makes its answer from theirs"""
    requests = [[*task.requests] for task in tasks]

    def answer(readers: Sequence[R]) -> U:
        rest = iter(readers)
        parts = zip(tasks, requests, strict=True)
        return join([task.answer([*islice(rest, len(part))]) for task, part in parts])

    return PrefillTask([*chain.from_iterable(requests)], tasks[0].reader, answer)


async def prefill_async(queue: "Queue", task: PrefillTask[R, T]) -> T:
    """As ``prefill``, for a task of an event loop."""
    readers = await read_all(queue, task.requests, task.reader, task.progress)
    return plainly(task.answer)(readers)


def each_ended(
    owner: EngineOwner,
    jobs: Iterable[tuple[Request, R]],
    stopped: Callable[[], bool] = bool,
    most: int = _MOST,
) -> Iterator[tuple[int, R]]:
    """(index, reader) of each request, in the order in which they end.

    stopped: called between steps, ends the iteration once true; most: texts at once
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
            for index in [index for index, (reader, _) in running.items() if reader.has_ended()]:
                ended, stack = running.pop(index)
                stack.close()  # or its logits would stay until the last text has ended
                del stack
                yield index, ended
                del ended
    finally:
        for _, stack in running.values():
            stack.close()


async def read_all(
    queue: "Queue",
    requests: Iterable[Request],
    make: Callable[[], R],
    progress: Callable[[Sequence[R]], object] = bool,
) -> list[R]:
    """A reader of each request, once all have ended. progress: called with them after events.

    Requests are queued in parts, so that other requests can run in between.
    """
    import asyncio  # 40 ms of a start, which a command does not need

    room = asyncio.Semaphore(_PARTS)
    each = [*requests]
    readers = [make() for _ in each]

    async def read(first: int) -> None:
        part = [(request, 1) for request in each[first : first + _TOGETHER]]
        async with room:
            with closing(await queue(part)) as reader:
                while events := await reader.read():
                    for one in events:
                        readers[first + one.sequence_index].receive(one.event)
                    progress(readers)

    tasks = [asyncio.ensure_future(read(i)) for i in range(0, len(each), _TOGETHER)]
    try:
        await asyncio.gather(*tasks)
        return readers
    finally:
        for task in tasks:
            task.cancel()
