"""Methods of ``LLM`` as those of a model in an event loop: with the same keywords, awaited."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from cutaway.api.llm import LLM
from cutaway.engine import ArrivalReader, Request
from cutaway.requests.base import BaseLLM
from cutaway.requests.owner import EndListener
from cutaway.requests.prefill import PrefillTask, prefill_async

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound=EndListener)


class Forwarding(BaseLLM, ABC):
    """A model whose weights may be elsewhere: requests are queued there, functions called."""

    @abstractmethod
    async def queue(self, asked: Sequence[tuple[Request, int]]) -> ArrivalReader:
        """Queue n samples of each request, all or none, for one reader of all, in this order.

        The seeds are chosen, so that the caller knows what is asked of each: ``Request.samples``.
        Raises InputError for what does not fit the model, QueueFullError where there is no room.
        """

    @abstractmethod
    async def run_blocking(
        self, function: Callable[Concatenate[LLM, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """What a function of an ``LLM`` returns or raises, called where the weights are.

        It must be found by its name in its module: it, its arguments and its result may be
        pickled. Others are served, and one is called at a time. When the task is cancelled, the
        next thing that the function asks of the LLM raises.
        """


def blocking(
    method: Callable[Concatenate[LLM, P], T],
) -> Callable[Concatenate[Forwarding, P], Coroutine[Any, Any, T]]:
    """A method that is called where the weights are, one call at a time; others are served."""

    @wraps(method)
    async def forward(self: Forwarding, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run_blocking(method, *args, **kwargs)

    return forward


def asking(
    method: Callable[Concatenate[LLM, P], T],
    task: Callable[Concatenate[BaseLLM, P], PrefillTask[R, T]],
) -> Callable[Concatenate[Forwarding, P], Coroutine[Any, Any, T]]:
    """A method whose task is requests, which are queued beside all others.

    task: reads the texts, in a thread
    """

    @wraps(method)
    async def forward(self: Forwarding, /, *args: P.args, **kwargs: P.kwargs) -> T:
        asked = await asyncio.to_thread(task, self, *args, **kwargs)
        return await prefill_async(self.queue, asked)

    return forward
