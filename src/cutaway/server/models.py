"""The models that are served, and which of them a request names."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import uuid4

from fastapi import Request

from cutaway.server.http.errors import ApiError
from cutaway.server.http.metrics import several
from cutaway.server.job import AccessRecord, TextJob
from cutaway.server.service import Service


class ServedModels:
    """One or several; requests that name none are for the first."""

    def __init__(self, services: Sequence[Service]) -> None:
        self.services, self.first = services, services[0]

    def named(self, name: str | None) -> Service:
        """The model that a request asks for; ApiError for an unknown name."""
        if name is None:
            return self.first
        for service in self.services:
            if service.names.known(name) is not None:
                return service
        known = ", ".join(self.names)
        raise ApiError(
            404, f"model {name!r:.100} is not here; this server has {known}",
            param="model", code="model_not_found",
        )  # fmt: skip

    @property
    def names(self) -> tuple[str, ...]:
        """By which requests may ask for them."""
        return tuple(name for service in self.services for name in service.names.every)

    @property
    def jobs(self) -> Iterable[TextJob]:
        """All running jobs."""
        return (job for service in self.services for job in service.jobs)

    @property
    def retry_after(self) -> int:
        """Seconds after which a full queue may have room."""
        return max(service.retry_after for service in self.services)

    @property
    def draining(self) -> bool:
        """Whether no more requests are accepted."""
        return self.first.draining

    @property
    def alive(self) -> bool:
        """Whether all of them take requests."""
        return all(service.llm.alive for service in self.services)

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """The page of metrics and its content type; of several models each sample has a label."""
        if len(self.services) == 1:
            return self.first.metrics.page(accept)
        return several({one.names.first: one.metrics for one in self.services}, accept)

    def stop(self) -> None:
        """Accept no more requests and load no more models; running requests finish."""
        for service in self.services:
            service.stop()

    def close(self) -> None:
        """End all texts."""
        for service in self.services:
            service.llm.close()


def models_of(request: Request) -> ServedModels:
    """The models of the request's server."""
    models: ServedModels = request.app.state.models
    return models


def admit(
    request: Request, name: str | None, user: str | None, said: Callable[[], Any]
) -> tuple[Service, AccessRecord]:
    """The model that a request names, and its record for the log; ApiError 503 at the server's end.

    said: the prompt, which the log shows with --log-prompts
    """
    service = service_of(request, name)
    service.check_open()
    access = AccessRecord(service.names.named(name), user)
    access.prompt = said() if service.log_prompts else None
    request.state.access = access
    return service, access


def answer_id(request: Request) -> str:
    """The request's id; where the client chose that, with a random end.

    Others may send the same, and what is kept of an answer is found by its id.
    """
    id: str = request.state.request_id
    return f"{id}-{uuid4().hex}" if id == request.headers.get("x-request-id") else id


def service_of(request: Request, name: str | None) -> Service:
    """The model that a request asks for; ApiError for an unknown name."""
    return models_of(request).named(name)
