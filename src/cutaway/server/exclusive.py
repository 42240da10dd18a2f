"""Runs a function on the model beside running requests, one at a time, by clients in turn."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

from fastapi import Request

from cutaway.api.llm import LLM
from cutaway.server.http.disconnect import cancel_on_disconnect
from cutaway.server.models import service_of

P = ParamSpec("P")
T = TypeVar("T")


async def run_exclusive(
    request: Request,
    model: str | None,
    function: Callable[Concatenate[LLM, P], T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """The result of a function of the named model and the arguments; cancelled when the client
    disconnects. All are pickled if the model is in another process. QueueFullError where too many
    wait.
    """
    service = service_of(request, model)
    service.check_open()
    adapter = service.names.adapter(model)
    doing = service.llm.run_in_turn(_under, adapter, function, args, kwargs)
    return await cancel_on_disconnect(request.receive, doing)


def _under(
    llm: LLM,
    adapter: str,
    function: Callable[..., T],
    args: Iterable[Any],
    named: Mapping[str, Any],
) -> T:
    return function(llm.with_adapter(adapter), *args, **named)
