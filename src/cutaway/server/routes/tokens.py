"""``/tokenize`` and ``/detokenize``: text to token ids and back, in vLLM's form."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from cutaway.errors import TooLongError
from cutaway.server.body import Body, ModelNamed, StrictRoute, examples, optional
from cutaway.server.document import FIELD_ERRORS, replies
from cutaway.server.http.errors import ApiError
from cutaway.server.http.limits import cancel_on_disconnect
from cutaway.server.openai.chat import Message
from cutaway.server.service import Service, service_of
from cutaway.server.shared.conversation import TurnFields
from cutaway.server.shared.plain_schemas import Detokenized, Tokenized, TokenizerInfo

router = APIRouter(route_class=StrictRoute, tags=["tokens"])


class TokenizeRequest(TurnFields):
    """A text, or a conversation in the model's chat template."""

    model_config = examples(
        {"prompt": "Once upon a time", "return_token_strs": True},
        {"messages": [{"role": "user", "content": "Hello"}]},
    )
    model: str | None = optional("one of /v1/models; left out: the first")
    prompt: str | None = optional("a text")
    messages: list[Message] | None = optional("a conversation, instead of a text", fail_fast=True)
    add_special_tokens: bool = Field(
        True, description="begin with the begin token, if there is one"
    )
    special: bool | None = optional(
        "read special tokens such as <|im_start|> in the text as tokens; left "
        "out: true, as vLLM does"
    )
    return_token_strs: bool = Field(False, description="include the tokens' names, too")


class DetokenizeRequest(Body):
    """Token ids."""

    model_config = examples({"tokens": [79, 110, 99, 101]})
    model: str | None = optional("one of /v1/models; left out: the first")
    tokens: list[int] = Field(fail_fast=True, description="token ids")
    special: bool = Field(False, description="show control tokens by name")


@router.post("/tokenize", responses=replies(Tokenized, *FIELD_ERRORS))
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    """The token ids of a text, or of a conversation."""
    service = service_of(request, body.model)
    service.llm.check_length(body.prompt or "")
    reading = service.llm.read_in_turn(len(await request.body()), _ids, service, body)
    ids = await cancel_on_disconnect(request.receive, reading)
    answer: Tokenized = {"tokens": ids, "count": len(ids), "max_model_len": service.room}
    if body.return_token_strs:
        answer["token_strs"] = [service.llm.tokenizer.token_name(i) for i in ids]
    return JSONResponse(answer)


def _ids(service: Service, body: TokenizeRequest) -> list[int]:
    llm = service.llm
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "give prompt or messages, one of them", param="prompt")
    if body.messages is not None:
        messages = [message.plain() for message in body.messages]
        return llm.chat_ids(messages, continue_final_message=body.goes_on)
    if body.goes_on:
        raise ApiError(
            400, "continue_final_message is of messages: leave it out, or give messages",
            param="continue_final_message",
        )  # fmt: skip
    add_bos = None if body.add_special_tokens else False
    return llm.tokenize(body.prompt or "", special=body.special is not False, add_bos=add_bos)


@router.get("/tokenizer_info", responses=replies(TokenizerInfo, 400, 404))
async def tokenizer_info(request: Request, query: Annotated[ModelNamed, Query()]) -> Response:
    """The begin and end tokens and the chat template, in vLLM's form."""
    service = service_of(request, query.model)
    tokenizer, template = service.llm.tokenizer, service.llm.template
    eos = next(iter(tokenizer.end_ids), None)
    answer: TokenizerInfo = {
        "bos_token": None if tokenizer.bos_id is None else tokenizer.token_name(tokenizer.bos_id),
        "eos_token": None if eos is None else tokenizer.token_name(eos),
        "pad_token": None,
        "chat_template": template.source if template else None,
    }
    return JSONResponse(answer)


@router.post("/detokenize", responses=replies(Detokenized, *FIELD_ERRORS))
async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
    """The text of token ids."""
    service = service_of(request, body.model)
    if len(body.tokens) > service.room:
        raise TooLongError(
            "tokens", f" has {len(body.tokens)} ids; at most {service.room} are read"
        )
    text = await asyncio.to_thread(service.llm.detokenize, body.tokens, body.special)
    answer: Detokenized = {"prompt": text}
    return JSONResponse(answer)
