"""A job's texts as OpenAI's ``choices``, and ``/v1/completions``, whose choices are plain text.

Knows the parts that completions and chats share, whole and streamed; ``chat.py`` has a chat's own.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from time import time
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import BeforeValidator, Field

from cutaway.engine import Ended, Event, Step
from cutaway.errors import InputError
from cutaway.methods.importance import align
from cutaway.server.body import Texts, Unsupported, examples, optional
from cutaway.server.event_stream import Events, dumps_by_parts
from cutaway.server.event_stream import event as encode_event
from cutaway.server.job import TextJob
from cutaway.server.service import Service
from cutaway.server.shared import CompletionEnding, CompletionUsage, Infilled, InForce, answers
from cutaway.server.shared.answers import (
    Entries,
    Entry,
    completion_form,
    prompt_entries,
    prompt_form,
)
from cutaway.server.shared.fields import Read, SampledFields, own_form, with_keywords

Delta = tuple[str, list[Entry]]
"""A text, and the log-probabilities of its tokens; the list is empty unless asked for."""


class Choices(Events):
    """An answer with OpenAI's ``choices``.

    PREFIX   the prefix of the answer's id
    WHOLE    the ``object`` of a whole answer
    CHUNK    the ``object`` of an event
    top      how many of the likeliest tokens are listed per token; None: no log-probabilities
    samples  how many texts each prompt has
    """

    PREFIX: ClassVar[str]
    WHOLE: ClassVar[str]
    CHUNK: ClassVar[str]

    def __init__(
        self, service: Service, body: SampledFields, job: TextJob, *, id: str, top: int | None
    ) -> None:
        self.job, self.tokenizer, self.top = job, service.llm.tokenizer, top
        self.samples = job.texts[0].options.n
        self._body, self._streamed_tokens = body, 0  # of all texts
        self._frame = {
            "id": f"{self.PREFIX}-{id}",
            "created": int(time()),
            "model": service.names.resolve(body.model),
            "system_fingerprint": service.names.fingerprint(body.model),
        }

    # -- methods that completions and chats override -------------------------------------------

    def part(self, text: str, entries: list[Entry]) -> dict[str, Any]:
        """Return a choice's fields for a piece of text in an event."""
        raise NotImplementedError

    def message(self, index: int, text: str, entries: list[Entry]) -> dict[str, Any]:
        """Return a choice's fields for its whole text."""
        raise NotImplementedError

    def first(self) -> dict[str, Any]:
        """Return a choice's fields in its first event, which has no text yet."""
        raise NotImplementedError

    def pieces(
        self,
        index: int,  # noqa: ARG002 - others need it
        text: str,
        entries: list[Entry],
    ) -> Iterable[dict[str, Any]]:
        """Return the fields of each event for a piece of text; no event for an empty piece."""
        return [self.part(text, entries)] if text or entries else []

    def finish_reason(self, index: int, end: Ended) -> str:  # noqa: ARG002 - others need it
        """Return OpenAI's finish reason of a choice."""
        return answers.finish_reason(end)

    def opening(self, index: int) -> Delta:  # noqa: ARG002 - others need it
        """Return the text and entries that come before those of the first token."""
        return "", []

    def read_step(self, index: int, step: Step) -> Delta:
        """Return the text and entries that a step adds."""
        return step.text, [] if self.top is None else self._entries[index].push(step)

    def usage(self) -> CompletionUsage:
        """Return the usage of all choices."""
        return answers.usage(self.job.texts, self.samples)

    def prompt_logprobs(self, index: int) -> dict[str, Any]:
        """Return the field with the log-probabilities of a text's prompt, if asked for."""
        if (top := self._body.prompt_logprobs) is None:
            return {}
        text = self.job.texts[index]
        return {"prompt_logprobs": prompt_form(self.tokenizer, text, top)}

    # -- whole ---------------------------------------------------------------------------------

    def whole(self) -> dict[str, Any]:
        """Return the answer, once all texts have ended."""
        texts, options = self.job.texts, self.job.texts[0].options
        choices: Iterable[Any] = map(self._whole_choice, range(len(texts)))
        if options.align:
            all_choices = [*choices]
            choices = [
                self._choose_aligned(all_choices, i) for i in range(0, len(texts), self.samples)
            ]
        # Choices are made and encoded one by one: a large answer has a million objects, and no
        # thread of the process runs while the garbage collector visits them.
        encoded = [dumps_by_parts(choice) for choice in choices]
        in_force = self._settings()
        estimates = answers.estimates(texts, self.samples) if self.samples > 1 else []
        if any(estimates):
            in_force["constraint_estimates"] = estimates
        more = {"usage": self.usage(), "cutaway": in_force}
        return {**self._frame, "object": self.WHOLE, "choices": encoded, **more}

    def _choose_aligned(self, choices: list[dict[str, Any]], first: int) -> dict[str, Any]:
        """Return the choice that alignment selects. first: index of the prompt's first choice"""
        samples = slice(first, first + self.samples)
        aligned = align([text.completion() for text in self.job.texts[samples]]).aligned
        assert aligned is not None
        choice = choices[samples][aligned.chosen]
        choice["cutaway"]["aligned"] = aligned._asdict()
        return {**choice, "index": first // self.samples}

    def _whole_choice(self, index: int) -> dict[str, Any]:
        steps, end = self.job.texts[index].steps, self.job.texts[index].ended
        assert end is not None  # whole answers are written when all texts have ended
        parts = [self.opening(index), *[self.read_step(index, step) for step in steps]]
        text = "".join(piece for piece, _ in parts)
        entries = [entry for _, more in parts for entry in more]
        choice = {
            "index": index,
            **self.message(index, text, entries),
            **self._ending(index, end),
        }
        if self._body.return_token_ids:
            choice["token_ids"] = [step.token_id for step in steps]
        return choice

    # -- streamed ------------------------------------------------------------------------------

    def begin(self) -> Iterator[bytes]:
        """Yield the first event of each choice; the very first event has the settings in force."""
        more = {"cutaway": self._settings()}
        for index in range(len(self.job.texts)):
            yield self._event({"index": index, **self.first()}, **more)
            more = {}

    def progress(self, index: int, event: Event) -> Iterator[bytes]:
        """Yield the events of a step, of a text's end, or of a pass; a pass has only its record."""
        text, entries, ids = "", list[Entry](), list[int]()
        begins = isinstance(event, Ended) and not self.job.texts[index].steps
        if isinstance(event, Step):
            text, entries = self.read_step(index, event)
            begins, ids = event.index == 0, [event.token_id]
            self._streamed_tokens += 1
        if begins:
            opening, before = self.opening(index)
            text, entries = opening + text, before + entries
        extra: dict[str, Any] = {}
        if self._body.return_token_ids and (ids or begins):
            extra["token_ids"] = ids
        if self._body.trace and (records := self.job.traces[index].take()):
            extra["cutaway"] = {"trace": records}
        for piece in [*self.pieces(index, text, entries)] or ([self.part("", [])] if extra else []):
            yield self._event({"index": index, **piece, **extra})
            extra = {}
        if isinstance(event, Ended):
            yield self._event({"index": index, **self.part("", []), **self._ending(index, event)})

    def end(self) -> Iterable[bytes]:
        """Yield the usage, if asked for, and OpenAI's last event, [DONE]."""
        if self._body.include_usage:
            yield self._event(None, usage=self.usage())
        yield b"data: [DONE]\n\n"

    def _event(self, choice: dict[str, Any] | None, **more: Any) -> bytes:
        usage: dict[str, CompletionUsage | None] = (
            {"usage": None} if self._body.include_usage else {}
        )
        if self._body.continuous_usage:
            usage["usage"] = self._usage_so_far()
        choices = [] if choice is None else [{"finish_reason": None, **choice}]
        return encode_event(
            {**self._frame, "object": self.CHUNK, "choices": choices, **usage, **more}
        )

    # -- parts ---------------------------------------------------------------------------------

    def _usage_so_far(self) -> CompletionUsage:
        """Return the usage, with only the completion tokens that have been sent."""
        usage, streamed = self.usage(), self._streamed_tokens
        return {
            **usage,
            "completion_tokens": streamed,
            "total_tokens": usage["prompt_tokens"] + streamed,
        }

    @cached_property
    def _entries(self) -> list[Entries]:
        top, when = self.top or 0, self._body.logprobs_when
        return [
            Entries(self.tokenizer, text, top, when, len(self.opening(i)[0]))
            for i, text in enumerate(self.job.texts)
        ]

    def _settings(self) -> InForce:
        return answers.settings(self.job, self._body)

    def _ending(self, index: int, end: Ended) -> dict[str, Any]:
        report = cast(CompletionEnding, answers.ending(self.job, index, self._body.readings))
        if between := self.job.texts[index].between:
            report["between"] = cast(Infilled, between._asdict())
        if self._body.trace:
            report["trace"] = self.job.traces[index].take()
        ending: dict[str, Any] = {
            "finish_reason": self.finish_reason(index, end),
            "cutaway": report,
        }
        if self._body.return_token_ids:
            ids = self.job.texts[index].prompt_token_ids
            ending["prompt_token_ids"] = list(ids)
        return ending


# -- /v1/completions: the fields of its requests, and its answers ------------------------------


def _number(value: Any) -> Any:
    """Return None for false, with which a chat request asks for no log-probabilities."""
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
        """Return the keywords that the client gave."""
        keywords: dict[str, Any] = super().keywords()
        if self.max_tokens == 0 and not self.echo and self.prompt_logprobs is None:
            raise InputError("max_tokens", " must be 1 or more, or 0 with echo or prompt_logprobs")
        if self.max_tokens is not None:
            keywords["max_tokens"] = self.max_tokens
        scored = keywords.get("prompt_logprobs", 0)
        if self.max_tokens == 0:
            keywords["prompt_logprobs"] = max(scored, 1)  # asks for the prompt's scores
        if self.suffix and self.echo:
            raise InputError("echo", ": not with suffix; leave one of them out")
        if self.logprobs is not None:
            # Probabilities after the chain are observed only for 1 or more likeliest tokens.
            keywords["logprobs"] = self.logprobs or int(self.logprobs_when == "after")
            if self.echo:
                keywords["prompt_logprobs"] = max(scored, self.logprobs, 1)
        return keywords

    def field_names(self) -> Mapping[str, str]:
        """Return the field of each keyword; echo alone may set the keyword prompt_logprobs."""
        asks = {"prompt_logprobs": "echo"} if self.echo and self.prompt_logprobs is None else {}
        return {**super().field_names(), **asks}

    async def read(self, service: Service) -> Read:  # noqa: ARG002 - others need it
        """Return the prompts and the keywords."""
        return Read(self.prompt, await asyncio.to_thread(self.keywords))


class CompletionChoices(Choices):
    """The answer to a completion: each choice has its text."""

    PREFIX, WHOLE, CHUNK = "cmpl", "text_completion", "text_completion"

    def __init__(self, service: Service, body: CompletionRequest, job: TextJob, id: str) -> None:
        super().__init__(service, body, job, id=id, top=body.logprobs)
        self._prompts, self._echo = body.prompt, body.echo

    def part(self, text: str, entries: list[Entry]) -> dict[str, Any]:
        """Return the fields of text and log-probabilities."""
        logprobs = None if self.top is None else completion_form(self.tokenizer, entries)
        return {"text": text, "logprobs": logprobs}

    def message(self, index: int, text: str, entries: list[Entry]) -> dict[str, Any]:
        """Return the fields of the whole text, and the prompt's log-probabilities if asked for."""
        return {**self.part(text, entries), **self.prompt_logprobs(index)}

    def first(self) -> dict[str, Any]:
        """Return the fields of an empty text."""
        return {"text": "", "logprobs": None}

    def opening(self, index: int) -> Delta:
        """Return the text and entries of the prompt if the prompt is echoed."""
        if not self._echo:
            return "", []
        prompt = self._prompts[index // self.samples]
        text = prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt)
        if self.top is None:
            return text, []
        generation = self.job.texts[index]
        ids, scores = generation.prompt_token_ids, generation.prompt_scores
        return text, prompt_entries(self.tokenizer, ids, scores, self.top, text)
