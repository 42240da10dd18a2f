"""Endpoints of llama-server besides texts: properties, slots, templates, loading a model.

Knows the facts of a model and of its sequences; requests load and unload models of ``--memory``.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from cutaway._version import __version__
from cutaway.errors import InputError
from cutaway.features.llama_cpp import Done, Properties, SequenceSlot, TemplateApplied
from cutaway.sampling import PARAMS
from cutaway.server.body import Body, ModelNamed, StrictRoute, examples, optional
from cutaway.server.document import FIELD_ERRORS, replies
from cutaway.server.http.errors import ApiError
from cutaway.server.http.limits import cancel_on_disconnect
from cutaway.server.openai.chat import Message
from cutaway.server.service import Service, service_of
from cutaway.server.shared.conversation import TurnFields, WithTools
from cutaway.server.shared.thinking import EffortFields

router = APIRouter(route_class=StrictRoute, tags=["status"])


class TemplateRequest(TurnFields, EffortFields, WithTools):
    """A conversation."""

    model_config = examples({"messages": [{"role": "user", "content": "Hello"}]})
    model: str | None = optional("one of /v1/models; left out: the first")
    messages: list[Message] = Field(
        fail_fast=True, description="the conversation, oldest message first", min_length=1
    )

    @property
    def own_schema(self) -> None:
        """None: no schema describes the text."""


class SlotsAsked(ModelNamed):
    """Which slots."""

    fail_on_no_slot: bool = Field(False, description="error 503 where none is idle")


@router.post("/apply-template", responses=replies(TemplateApplied, *FIELD_ERRORS), tags=["tokens"])
async def apply_template(body: TemplateRequest, request: Request) -> Response:
    """The prompt of a conversation as a text, in the model's own template."""
    service = service_of(request, body.model)

    def write() -> str:
        use, messages = body.use(service), [message.plain() for message in body.messages]
        template = service.llm.template
        if template is None:
            raise InputError("messages", ": this model has no chat template")
        prompt = template.render(
            messages, use.tools, continue_final_message=body.goes_on, **use.variables
        )
        service.llm.check_length(prompt)
        return prompt

    writing = service.llm.read_in_turn(len(await request.body()), write)
    prompt = await cancel_on_disconnect(request.receive, writing)
    answer: TemplateApplied = {"prompt": prompt}
    return JSONResponse(answer)


@router.get("/props", responses=replies(Properties, 400, 404))
async def properties(request: Request, query: Annotated[ModelNamed, Query()]) -> Response:
    """What is known of a model and its server, in llama-server's form."""
    service = service_of(request, query.model)
    llm, tokenizer = service.llm, service.llm.tokenizer
    eos = next(iter(tokenizer.end_ids), None)
    answer: Properties = {
        "default_generation_settings": {
            "n_ctx": service.room, "params": _numbers(llm.parse({}).to_json(0)),
        },
        "total_slots": llm.state().most_running,
        "model_alias": service.names.resolve(query.model),
        "model_path": llm.model.path.name,
        "chat_template": llm.template.source if llm.template else "",
        "bos_token": "" if tokenizer.bos_id is None else tokenizer.token_name(tokenizer.bos_id),
        "eos_token": "" if eos is None else tokenizer.token_name(eos),
        "modalities": {"vision": False, "audio": False},
        "build_info": f"cutaway-{__version__}",
        "is_sleeping": service.slot is not None and service.slot.state != "loaded",
    }  # fmt: skip
    return JSONResponse(answer)


@router.get("/slots", responses=replies(SequenceSlot, 400, 404, 503, several=True))
async def slots(request: Request, query: Annotated[SlotsAsked, Query()]) -> Response:
    """The sequences that run, and idle places for more, in llama-server's form."""
    service = service_of(request, query.model)
    total, used = service.llm.state().most_running, [*_running(service)]
    if query.fail_on_no_slot and len(used) >= total:
        raise ApiError(503, "no slot is idle: try again later", code="no_slot")
    idle = [_slot(service, i) for i in range(len(used), total)]
    return JSONResponse([*used, *idle])


def _running(service: Service) -> Iterator[SequenceSlot]:
    texts = [text for job in service.jobs for text in job.texts if text.started and not text.ended]
    for i, text in enumerate(texts):
        params = text.options.to_json(text.seed)
        generated = len(text.steps)
        yield {
            **_slot(service, i), "speculative": params["speculate"] != "off",
            "is_processing": True, "params": _numbers(params),
            "next_token": {
                "has_next_token": True, "n_decoded": generated,
                "n_remain": max(0, params["max_tokens"] - generated),
            },
        }  # fmt: skip


def _numbers(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are numbers; other settings may contain parts of a text."""
    return {name: params[name] for name in (*PARAMS, "max_tokens")}


def _slot(service: Service, id: int) -> SequenceSlot:
    return {"id": id, "n_ctx": service.room, "speculative": False, "is_processing": False}


# -- loading and unloading models --------------------------------------------------------------


class LoadRequest(Body):
    """A model."""

    model_config = examples({"model": "smollm2"})
    model: str = Field(description="one of /v1/models")


@router.post("/models/load", responses=replies(Done, *FIELD_ERRORS, 429, 503))
async def load(body: LoadRequest, request: Request) -> Response:
    """Load a model; the answer comes when it is loaded."""
    service = service_of(request, body.model)
    service.check_open()
    if slot := service.slot:
        await cancel_on_disconnect(request.receive, slot.use())
        slot.keep_as_usual()
        slot.done()
    return _done()


@router.post("/models/unload", responses=replies(Done, *FIELD_ERRORS))
async def unload(body: LoadRequest, request: Request) -> Response:
    """Unload a model, once the texts that it writes have ended."""
    slot = service_of(request, body.model).slot
    if slot is None:
        raise ApiError(
            400, f"model: {body.model[:100]!r} stays loaded; start the server with --unload-after "
            "or --memory for models that come and go", param="model", code="stays_loaded",
        )  # fmt: skip
    slot.keep(0)
    return _done()


def _done() -> Response:
    answer: Done = {"success": True}
    return JSONResponse(answer)
