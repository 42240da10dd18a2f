"""``/v1/completions``: the fields of its requests, and its answers, whole and streamed."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from cutaway.errors import InputError
from cutaway.server.body import Texts, Unsupported, examples, optional
from cutaway.server.job import TextJob
from cutaway.server.openai.choices import Choices, Delta
from cutaway.server.service import Service
from cutaway.server.shared.keyword_fields import own_form, with_keywords
from cutaway.server.shared.logprobs import Entry, completion_form, of_prompt
from cutaway.server.shared.request_models import Read, SampledFields


def _number(value: Any) -> Any:
    """As chats say that there are to be none."""
    return None if value is False else value


_Completion: Any = with_keywords("_Completion", SampledFields, own_form("completions"))

_CHAT = "is of conversations: leave it out, or ask /v1/chat/completions"


class CompletionRequest(_Completion):  # type: ignore[misc]  # as SampledFields
    """A text to continue."""

    model_config = examples(
        {"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0, "logprobs": 2},
        {"prompt": ["One", [84, 119, 111]], "max_tokens": 8, "n": 2, "stream": True},
    )
    prompt: Texts = Field(description="a text or token ids, or a list of either")
    max_tokens: int | None = optional("new tokens; 0 reads the prompt, with echo")
    logprobs: Annotated[
        int | None,
        BeforeValidator(_number, json_schema_input_type=int | Literal[False] | None),
        Field(description="the likeliest tokens beside each, 0 to 1000; false: none of it"),
    ] = None
    echo: bool = Field(False, description="answer with the prompt in front")
    FACE = "completions"
    schema_shown: ClassVar[bool] = False
    unsupported: ClassVar[Unsupported] = {
        **SampledFields.unsupported,
        "continue_final_message": ((False,), _CHAT),
        "add_generation_prompt": ((True,), _CHAT),
        "chat_template_kwargs": (({},), _CHAT),
        "best_of": ((1,), "every sample is answered; ask for n of them"),
    }

    def keywords(self) -> dict[str, Any]:
        """The keywords that were given."""
        given: dict[str, Any] = super().keywords()
        if self.max_tokens == 0 and not self.echo and self.prompt_logprobs is None:
            raise InputError("max_tokens must be 1 or more, or 0 with echo or prompt_logprobs")
        if self.max_tokens is not None:
            given["max_tokens"] = self.max_tokens
        scored = given.get("prompt_logprobs", 0)
        if self.max_tokens == 0:
            given["prompt_logprobs"] = max(scored, 1)  # the prompt is scored in any case
        if self.suffix and self.echo:
            raise InputError("echo: not with suffix; leave one of them out")
        if self.logprobs is not None:
            # At least one, where the row itself must be looked at.
            given["logprobs"] = self.logprobs or int(self.logprobs_when == "after")
            if self.echo:
                given["prompt_logprobs"] = max(scored, self.logprobs, 1)
        return given

    def called(self) -> Mapping[str, str]:
        """It may be echo that asks for the prompt's log-probabilities."""
        asks = {"prompt_logprobs": "echo"} if self.echo and self.prompt_logprobs is None else {}
        return {**super().called(), **asks}

    async def read(self, service: Service) -> Read:  # noqa: ARG002 - others need it
        """The prompts, and the keywords."""
        return Read(self.prompt, await asyncio.to_thread(self.keywords))


class CompletionChoices(Choices):
    """An answer, in the form that has the text in the choice itself."""

    PREFIX, WHOLE, CHUNK = "cmpl", "text_completion", "text_completion"

    def __init__(self, service: Service, body: CompletionRequest, job: TextJob, id: str) -> None:
        super().__init__(service, body, job, id=id, top=body.logprobs)
        self._prompts, self._echo = body.prompt, body.echo

    def part(self, text: str, entries: list[Entry]) -> dict[str, Any]:
        """Text and log-probabilities, side by side."""
        logprobs = None if self.top is None else completion_form(self.tokenizer, entries)
        return {"text": text, "logprobs": logprobs}

    def message(self, index: int, text: str, entries: list[Entry]) -> dict[str, Any]:
        """As a piece of it, with the prompt's log-probabilities if they are asked for."""
        return {**self.part(text, entries), **self.prompt_logprobs(index)}

    def first(self) -> dict[str, Any]:
        """No text yet."""
        return {"text": "", "logprobs": None}

    def opening(self, index: int) -> Delta:
        """The prompt, where it is echoed."""
        if not self._echo:
            return "", []
        prompt = self._prompts[index // self.samples]
        text = prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt)
        if self.top is None:
            return text, []
        generation = self.job.texts[index]
        ids, read = generation.prompt_token_ids, generation.prompt_scores
        return text, of_prompt(self.tokenizer, ids, read, self.top, text)
