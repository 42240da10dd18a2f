"""Methods of ``LLM`` as those of a model in an event loop: with the same keywords, awaited."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from cutaway.api.llm import LLM
from cutaway.requests.base import BaseLLM
from cutaway.requests.owner import EndListener
from cutaway.requests.prefill import PrefillTask, prefill_async

if TYPE_CHECKING:
    from cutaway.api.async_model import AsyncModel

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound=EndListener)


def blocking(
    method: Callable[Concatenate[LLM, P], T],
) -> "Callable[Concatenate[AsyncModel, P], Coroutine[Any, Any, T]]":
    """A method that is called where the weights are, one call at a time; others are served."""

    @wraps(method)
    async def forward(self: "AsyncModel", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run_blocking(method, *args, **kwargs)

    return forward


def asking(
    method: Callable[Concatenate[LLM, P], T],
    task: Callable[Concatenate[BaseLLM, P], PrefillTask[R, T]],
) -> "Callable[Concatenate[AsyncModel, P], Coroutine[Any, Any, T]]":
    """A method whose task is requests, which are queued beside all others.

    task: reads the texts, in a thread
    """

    @wraps(method)
    async def forward(self: "AsyncModel", /, *args: P.args, **kwargs: P.kwargs) -> T:
        asked = await asyncio.to_thread(task, self, *args, **kwargs)
        return await prefill_async(self.queue, asked)

    return forward
