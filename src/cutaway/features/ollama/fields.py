"""The fields that Ollama's requests for text share, and its options."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, create_model

from cutaway.errors import InputError
from cutaway.requests.keywords import fields_at
from cutaway.requests.tools import ToolUse
from cutaway.server.body import Body, Stops, Unsupported, optional
from cutaway.server.service import Service
from cutaway.server.shared.conversing import Conversing
from cutaway.server.shared.keyword_fields import NumberFields, own_form
from cutaway.server.shared.thinking import ThinkingFields
from cutaway.text.thinking import ThinkingWish

KeepAlive = float | str | None
STAYS = (
    "how long the model stays loaded when idle: seconds, or as in 5m; 0 unloads it, below 0: "
    "always; ignored by a server of one model without --unload-after"
)
INERT = "ignored: an option of cutaway serve"


class _Context(Body):
    num_ctx: int | None = optional(
        "an option of cutaway serve (--context); a note says if the server's is less"
    )
    num_keep: int | None = optional("ignored: no text is cut here")


_INERT: dict[str, Any] = {
    name: (kind, Field(None, description=INERT))
    for kind, names in (
        (int | None, "num_batch num_gpu main_gpu num_thread"),
        (bool | None, "numa low_vram f16_kv logits_all vocab_only use_mmap use_mlock"),
        (bool | None, "embedding_only"),
    )
    for name in names.split()
}
OllamaMachine: Any = create_model(
    "OllamaMachine", __base__=_Context, __doc__="How a machine computes.", **_INERT
)


class OllamaOptions(OllamaMachine, NumberFields):  # type: ignore[misc]  # as TextFields
    """Ollama's options, and those of the sampler that it does not have."""

    num_predict: int | None = optional(
        "new tokens at most; -1 or left out: as many as fit the context"
    )
    seed: int | None = optional("below 0 or left out: one is chosen")
    stop: Stops | None = None
    repeat_penalty: float | None = optional("Ollama's name of repetition_penalty")
    mirostat_tau: float | None = optional("ignored without mirostat")
    mirostat_eta: float | None = optional("ignored without mirostat")
    unsupported: ClassVar[Unsupported] = {
        "mirostat": ((0,), "is not supported; leave it out"),
        "tfs_z": ((1, 1.0), "is not supported; leave it out"),
        "penalize_newline": ((True,), "a line feed is penalized like any token here; leave it out"),
        "repeat_last_n": ((-1,), "penalties apply to all of a text here; leave it out"),
    }

    def given(self) -> dict[str, Any]:
        """The keywords that were given."""
        if self.repeat_penalty is not None and self.repetition_penalty is not None:
            raise InputError("repeat_penalty is repetition_penalty: give one")
        given = {name: getattr(self, name) for name in own_form("ollama")}
        given["max_tokens"] = self.num_predict
        if self.repeat_penalty is not None:
            given["repetition_penalty"] = self.repeat_penalty
        if self.seed is not None and self.seed < 0:
            given["seed"] = None
        if self.top_k == -1:
            given["top_k"] = 0
        if self.num_predict in (-1, -2):
            given["max_tokens"] = None
        return {name: value for name, value in given.items() if value is not None}


class OllamaFields(ThinkingFields, Conversing):
    """What every request for text may say."""

    FACE: ClassVar[str] = "chat"  # by whose names an answer has the settings in force
    PROMPT: ClassVar[str] = "prompt"
    FILL: ClassVar[bool] = True
    user: ClassVar[None] = None
    trace: ClassVar[bool] = False
    return_token_ids: ClassVar[bool] = False
    readings: ClassVar[Sequence[str]] = ()

    model: str | None = optional("one of /api/tags, with :latest or without; left out: the first")
    stream: bool = Field(True, description="lines of JSON, a token at a time")
    format: Literal["", "json"] | dict[str, Any] | None = optional(
        "json: any object; or the JSON schema of the text"
    )
    options: OllamaOptions | None = optional("what is left out is as for /v1")
    think: bool | Literal["low", "medium", "high", "max"] | None = optional(
        "whether the model thinks, or how much; left out: as its template has it"
    )
    logprobs: bool | None = optional("include each token's log-probability")
    top_logprobs: int | None = optional("and those of the likeliest tokens in its place, 0 to 1000")
    keep_alive: KeepAlive = optional(STAYS)
    unsupported: ClassVar[Unsupported] = {
        "truncate": ((False,), "nothing is cut here; shorten it yourself"),
        "shift": ((False,), "nothing is cut here; a text ends where the context is full"),
    }

    def said(self) -> Any:
        """The prompt as it was sent, for the log."""
        return self.model_dump(include={self.PROMPT}, exclude_none=True).get(self.PROMPT)

    def called(self) -> Mapping[str, str]:
        """A keyword -> the name of its field in this request."""
        renamed = {"repetition_penalty": "repeat_penalty"}
        return {"prompt": self.PROMPT, **fields_at("ollama"), **renamed}

    def keywords(self) -> dict[str, Any]:
        """The keywords that were given."""
        given = self.options.given() if self.options else {}
        if self.top_logprobs is not None and not self.logprobs:
            raise InputError("top_logprobs needs logprobs: true")
        if self.logprobs:
            given["logprobs"] = self.top_logprobs or 0
        schema = {"type": "object"} if self.format == "json" else self.own_schema
        return given if schema is None else {**given, "json_schema": schema}

    @property
    def own_schema(self) -> dict[str, Any] | None:
        """Of the format; "json" has none."""
        return self.format if isinstance(self.format, dict) else None

    def _checked(self, service: Service) -> ToolUse:
        """InputError where the model is to think and cannot."""
        if self.think and service.llm.model.thinking is None:
            raise InputError(
                f"think: {self.model or service.names.first} does not support thinking: its "
                "template has no tokens for it; leave it out"
            )
        return ToolUse(service.llm.model, self.offered(), wish=self.wish(service))

    def wish(self, service: Service) -> ThinkingWish:  # noqa: ARG002 - others need it
        """What it says of thinking."""
        return self.asked(self.think, "think")

    def offered(self) -> Sequence[Any]:
        """What the answer may call."""
        return ()

    def notes(self, service: Service) -> Iterator[str]:
        """What has no effect here."""
        yield from self.settled
        room = self.options and self.options.num_ctx
        if room and room > service.room:
            yield f"num_ctx: the server has room for {service.room} tokens; --context says so"
