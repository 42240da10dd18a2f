"""What is asked of the model beside those who write, one at a time, while somebody waits for it.

Refuses to know what is asked.
"""

from collections.abc import Callable
from typing import TypeVar

from fastapi import Request

from cutaway.api.llm import LLM
from cutaway.server.http.errors import ApiError
from cutaway.server.service import Service, unless_gone

T = TypeVar("T")

MOST_ROWS = 1 << 17
"""Tokens that one request may have computed: a minute or two of a small model."""


async def as_guest(request: Request, model: str | None, work: Callable[[LLM], T]) -> T:
    """What is made of the model; it ends where the client goes away."""
    service: Service = request.app.state.service
    service.named(model)
    if service.draining:
        raise ApiError(503, "the server is stopping: ask another", code="stopping")
    return await unless_gone(request.receive, service.llm.aside(work))
