"""`suffix` of /v1/completions with a model that has no tokens for it: texts chosen by Bayes' rule.

Knows how much one may ask for. Refuses to know how texts are chosen: ``LLM.between`` does.
"""

import asyncio
from collections.abc import Sequence

from fastapi import Request
from starlette.responses import Response

from cutaway.api.llm import LLM
from cutaway.compute.backends import KV_BLOCK
from cutaway.methods.filling.between import DRAWN, WEIGHED
from cutaway.requests.generation import Generation
from cutaway.requests.options import Options
from cutaway.requests.prompts import Prompt
from cutaway.server.events import dumps
from cutaway.server.exclusive import MOST_ROWS, run_exclusive
from cutaway.server.http.errors import ApiError
from cutaway.server.job import AccessRecord, TextJob
from cutaway.server.models import service_of
from cutaway.server.openai.completions import CompletionChoices, CompletionRequest
from cutaway.server.service import Service


class _Written(TextJob):
    """Texts that are there: nothing of them is read, and they are not counted."""

    def __init__(self, texts: Sequence[Generation]) -> None:
        self.texts, self.traces = [*texts], []

    @property
    def route(self) -> None:
        """Nobody asked which replicas wrote them."""


async def infill(request: Request, body: CompletionRequest) -> Response:
    """Answer it whole, one such request at a time. InputError or ApiError where it cannot be."""
    service = service_of(request, body.model)
    access = request.state.access = AccessRecord(service.names.named(body.model), body.user)
    access.prompt = body.said() if service.log_prompts else None
    for name, given in (("stream", body.stream), ("trace", body.trace)):
        if given:
            raise ApiError(
                400, f"{name}: this model has no fill-in-the-middle tokens, so that a text before "
                f"a suffix is chosen once all candidates are written: leave out {name} or suffix",
                param=name,
            )  # fmt: skip
    options = service.parse(body.prompt, body.options())
    _check_rows(service, body, options)
    texts = await run_exclusive(request, body.model, _write, body.prompt, options)
    for text in texts:
        text.belongs_to(service.names.model(body.model))
    made = CompletionChoices(service, body, _Written(texts), request.state.request_id)
    data = await asyncio.to_thread(lambda: dumps(made.whole()))
    return Response(data, media_type="application/json")


def _write(llm: LLM, prompts: Sequence[Prompt], options: Options) -> Sequence[Generation]:
    return [text for prompt in prompts for text in llm.between(prompt, options)]


def _check_rows(service: Service, body: CompletionRequest, options: Options) -> None:
    suffix = len(service.llm.tokenize(options.suffix, add_bos=False))
    written = DRAWN * (min(options.stopping.max_tokens, service.room) + 1)
    rows = len(body.prompt) * options.n * (written + WEIGHED * (suffix + KV_BLOCK))
    if rows > MOST_ROWS:
        raise ApiError(
            400, f"suffix: up to {rows} tokens would be computed, and one request may have "
            f"{MOST_ROWS}: lower max_tokens or n, or shorten the suffix",
            param="suffix",
        )  # fmt: skip
