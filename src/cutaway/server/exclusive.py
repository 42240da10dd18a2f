"""What is asked of the model beside those who write, one at a time, while somebody waits for it.

Refuses to know what is asked.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

from fastapi import Request

from cutaway.api.llm import LLM
from cutaway.server.http.errors import ApiError
from cutaway.server.job import cancel_on_disconnect
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
    """What a function makes of the model that is named and these; it ends where the client goes.

    All of them may be pickled: the model may be in another process.
    """
    service = service_of(request, model)
    if service.draining:
        raise ApiError(503, "the server is stopping: ask another", code="stopping")
    adapter = service.names.adapter(model)
    doing = service.llm.run_blocking(_under, adapter, function, args, kwargs)
    return await cancel_on_disconnect(request.receive, doing)


def _under(
    llm: LLM,
    adapter: str,
    function: Callable[..., T],
    args: Iterable[Any],
    named: Mapping[str, Any],
) -> T:
    return function(llm.with_adapter(adapter), *args, **named)
