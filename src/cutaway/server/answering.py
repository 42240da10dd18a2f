"""How a request for text is answered, whole or streamed, whatever its protocol."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import Response

from cutaway.errors import InputError
from cutaway.server.events import Events, EventStream, dumps_by_parts
from cutaway.server.http.disconnect import cancel_on_disconnect
from cutaway.server.job import TextJob
from cutaway.server.models import admit, answer_id
from cutaway.server.service import Service

T = TypeVar("T")


async def answer(
    request: Request,
    body: Any,
    make: Callable[[Service, Any, TextJob, str], Events],
    begun: Callable[[], object] = lambda: None,
) -> Response:
    """Run a request and answer it; when the client disconnects, its sequences are aborted.

    body: the fields of a request for text; see ``TextFields``
    make: the answer's builder
    begun: called when its texts are in the queue
    """
    service, access = admit(request, body.model, body.user, body.said)
    id = answer_id(request)

    async def start() -> TextJob:
        prompts, given, use = await body.read(service)
        return await service.start(
            prompts, given, use, access, adapter=service.names.adapter(body.model),
            fill=body.FILL, stream=bool(body.stream), trace=body.trace,
        )  # fmt: skip

    job = await cancel_on_disconnect(request.receive, _named(body, start()))
    begun()
    if keep := request.app.state.keep:
        job.closed = partial(keep, id)
    events = make(service, body, job, id)
    if body.stream:
        return EventStream(job, events, service.keep_alive)
    with job:
        await cancel_on_disconnect(request.receive, job.finish())
    # A long one may take a second, while other requests run.
    whole = await asyncio.to_thread(lambda: dumps_by_parts(events.whole()))
    return Response(whole, media_type="application/json")


async def _named(body: Any, work: Awaitable[T]) -> T:
    """The result; an InputError has the name that the field has in this request."""
    try:
        return await work
    except InputError as error:
        word = str(error).split(maxsplit=1)[0].rstrip(":")
        name = body.called().get(word, word)
        raise type(error)(str(error) if name == word else f"{name}: {error}") from error
