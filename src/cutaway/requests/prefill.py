"""Runs prefill-only sequences, many at a time, for a thread or for asyncio tasks."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import chain, islice
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from cutaway.base.arithmetic import plainly
from cutaway.engine import Request
from cutaway.requests.base import BaseLLM
from cutaway.requests.owner import EndListener, EngineOwner

if TYPE_CHECKING:
    from cutaway.engine import ArrivalReader

    Queue = Callable[[Sequence[tuple[Request, int]]], Awaitable[ArrivalReader]]

_MAX_TEXTS = 16  # texts at once, if their logits are kept
_AT_ONCE = 256  # texts of a PrefillTask at once: a step takes as many as fit
_TOGETHER, _PARTS = 32, 4  # texts per part of a request, and parts that are queued at once


T = TypeVar("T")
U = TypeVar("U")
R = TypeVar("R", bound=EndListener)


class PrefillTask(NamedTuple, Generic[R, T]):
    """Prefill-only requests, and how to make an answer from their events.

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
    """Run a task while other sequences run; return its answer."""
    jobs = [(request, task.reader()) for request in task.requests]
    readers = [reader for _, reader in jobs]

    def progress() -> bool:
        task.progress(readers)
        return False

    for _ in iterate_ended(owner, jobs, progress, _AT_ONCE):
        pass
    return plainly(task.answer)(readers)


def join_tasks(
    tasks: Sequence[PrefillTask[R, T]], join: Callable[[Sequence[T]], U]
) -> PrefillTask[R, U]:
    """Make one task of several. join: makes its answer from their answers."""
    requests = [[*task.requests] for task in tasks]

    def answer(readers: Sequence[R]) -> U:
        rest = iter(readers)
        parts = zip(tasks, requests, strict=True)
        return join([task.answer([*islice(rest, len(part))]) for task, part in parts])

    return PrefillTask([*chain.from_iterable(requests)], tasks[0].reader, answer)


class QueuedLLM(BaseLLM, ABC):
    """A model as ``prefill_async`` needs it: it queues requests, and may compute elsewhere."""

    @abstractmethod
    async def queue(self, requests: Sequence[tuple[Request, int]]) -> "ArrivalReader":
        """Queue (request, n) pairs, all or none, for one reader of all samples, in this order.

        Each request has its seed, from which ``Request.samples`` derives the samples' seeds.
        Raises InputError for a request that the model cannot run, QueueFullError without room.
        """


async def prefill_async(queue: "Queue", task: PrefillTask[R, T]) -> T:
    """Run a task as ``prefill`` does, in an event loop."""
    readers = await read_all(queue, task.requests, task.reader, task.progress)
    return plainly(task.answer)(readers)


def iterate_ended(
    owner: EngineOwner,
    jobs: Iterable[tuple[Request, R]],
    stopped: Callable[[], bool] = bool,
    max_texts: int = _MAX_TEXTS,
) -> Iterator[tuple[int, R]]:
    """Yield (index, reader) of each request, in the order in which they end.

    stopped    called between steps; the iteration ends once it returns true
    max_texts  the most texts at once

    Closing the iterator early aborts the running texts.
    """
    waiting, running = enumerate(jobs), dict[int, tuple[R, ExitStack]]()
    try:
        while not stopped():
            for index, (request, reader) in islice(waiting, max_texts - len(running)):
                running[index] = reader, ExitStack()
                running[index][1].enter_context(owner.running(request, reader))
            if not running:
                return
            owner.turn()
            for index in [index for index, (reader, _) in running.items() if reader.has_ended()]:
                finished, stack = running.pop(index)
                stack.close()  # or its logits would stay until the last text has ended
                del stack
                yield index, finished
                del finished
    finally:
        for _, stack in running.values():
            stack.close()


async def read_all(
    queue: "Queue",
    requests: Iterable[Request],
    make: Callable[[], R],
    progress: Callable[[Sequence[R]], object] = bool,
) -> list[R]:
    """Return the readers of all requests, once all have ended. progress: called after events.

    Requests are queued in parts, so that other requests can run in between.
    """
    import asyncio  # 40 ms of a start, which a command does not need

    room = asyncio.Semaphore(_PARTS)
    all_requests = [*requests]
    readers = [make() for _ in all_requests]

    async def read(first: int) -> None:
        part = [(request, 1) for request in all_requests[first : first + _TOGETHER]]
        async with room:
            with closing(await queue(part)) as reader:
                while events := await reader.read():
                    for arrival in events:
                        readers[first + arrival.sequence_index].receive(arrival.event)
                    progress(readers)

    tasks = [asyncio.ensure_future(read(i)) for i in range(0, len(all_requests), _TOGETHER)]
    try:
        await asyncio.gather(*tasks)
        return readers
    finally:
        for task in tasks:
            task.cancel()
