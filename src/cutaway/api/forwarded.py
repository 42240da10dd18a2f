"""Makes methods of ``LLM`` methods of an ``AsyncModel``: with the same keywords, awaited."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from cutaway.api.llm import LLM
from cutaway.engine import ArrivalReader, Request
from cutaway.errors import InputError
from cutaway.requests.base import BaseLLM
from cutaway.requests.owner import EndListener
from cutaway.requests.prefill import PrefillTask, prefill_async

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound=EndListener)


class Forwarding(BaseLLM, ABC):
    """A model whose weights may be elsewhere: requests and functions are sent there."""

    @abstractmethod
    async def queue(self, asked: Sequence[tuple[Request, int]]) -> ArrivalReader:
        """Queue (request, n) pairs, all or none, for one reader of all samples, in this order.

        Requests have their seeds already, from which ``Request.samples`` derives the samples'.
        Raises InputError for a request the model cannot run, QueueFullError where there is no room.
        """

    @abstractmethod
    async def run_blocking(
        self, function: Callable[Concatenate[LLM, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call ``function(llm, *args, **kwargs)`` where the weights are, and return its result.

        The function must be importable by name; it, its arguments and its result may be pickled.
        One is called at a time, while requests are served. When the task is cancelled, the
        function's next call of the LLM raises.
        """


def running_loop() -> asyncio.AbstractEventLoop:
    """The event loop that this runs in; InputError where it is not asyncio's."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError as error:
        raise InputError(
            "an AsyncLLM needs the event loop of asyncio, which does not run here; in trio use an "
            "LLM, in a thread: trio.to_thread.run_sync"
        ) from error


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As ``asyncio.to_thread``; InputError as for ``running_loop``."""
    running_loop()
    return await asyncio.to_thread(function, *args, **kwargs)


def blocking(
    method: Callable[Concatenate[LLM, P], T],
) -> Callable[Concatenate[Forwarding, P], Coroutine[Any, Any, T]]:
    """Forward a method of ``LLM`` through ``run_blocking``."""

    @wraps(method)
    async def forward(self: Forwarding, /, *args: P.args, **kwargs: P.kwargs) -> T:
        running_loop()
        return await self.run_blocking(method, *args, **kwargs)

    return forward


def asking(
    method: Callable[Concatenate[LLM, P], T],
    task: Callable[Concatenate[BaseLLM, P], PrefillTask[R, T]],
) -> Callable[Concatenate[Forwarding, P], Coroutine[Any, Any, T]]:
    """Forward a prefill-only method of ``LLM`` as requests that are queued beside all others.

    task: makes the requests, in a thread
    """

    @wraps(method)
    async def forward(self: Forwarding, /, *args: P.args, **kwargs: P.kwargs) -> T:
        asked = await in_thread(task, self, *args, **kwargs)
        return await prefill_async(self.queue, asked)

    return forward
