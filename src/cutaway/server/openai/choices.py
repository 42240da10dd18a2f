"""The texts of a job as OpenAI's ``choices``, whole or streamed."""

from collections.abc import Iterable, Iterator
from functools import cached_property
from time import time
from typing import Any, ClassVar, cast

from cutaway.engine import Ended, Event, Step
from cutaway.methods.importance import align
from cutaway.server.events import Events
from cutaway.server.events import event as sent
from cutaway.server.job import TextJob
from cutaway.server.service import Service
from cutaway.server.shared import common as answers
from cutaway.server.shared.logprobs import Entries, Entry, prompt_form
from cutaway.server.shared.request_models import SampledFields
from cutaway.server.shared.schemas import CompletionEnding, CompletionUsage, Infilled, InForce

Delta = tuple[str, list[Entry]]
"""Text, and its tokens' log-probabilities where they are wanted."""


class Choices(Events):
    """One answer.

    PREFIX, WHOLE, CHUNK  of the answer's id, and what it is called whole and in events
    top                   how many likeliest tokens beside each; None: no log-probabilities
    samples               texts of each prompt
    """

    PREFIX: ClassVar[str]
    WHOLE: ClassVar[str]
    CHUNK: ClassVar[str]

    def __init__(
        self, service: Service, body: SampledFields, job: TextJob, *, id: str, top: int | None
    ) -> None:
        self.job, self.tokenizer, self.top = job, service.llm.tokenizer, top
        self.samples = job.texts[0].options.n
        self._body, self._sent = body, 0  # tokens of all texts, streamed so far
        self._frame = {
            "id": f"{self.PREFIX}-{id}",
            "created": int(time()),
            "model": service.names.named(body.model),
            "system_fingerprint": service.names.fingerprint(body.model),
        }

    # -- what differs --------------------------------------------------------------------------

    def part(self, text: str, entries: list[Entry]) -> dict[str, Any]:
        """A choice's fields for a piece of text in an event."""
        raise NotImplementedError

    def message(self, index: int, text: str, entries: list[Entry]) -> dict[str, Any]:
        """A choice's fields for its whole text."""
        raise NotImplementedError

    def first(self) -> dict[str, Any]:
        """A choice's fields in its first event, which says nothing of its text."""
        raise NotImplementedError

    def pieces(
        self,
        index: int,  # noqa: ARG002 - others need it
        text: str,
        entries: list[Entry],
    ) -> Iterable[dict[str, Any]]:
        """The fields of the events that show a piece of text: one, or none where it is empty."""
        return [self.part(text, entries)] if text or entries else []

    def finish_reason(self, index: int, ended: Ended) -> str:  # noqa: ARG002 - others need it
        """OpenAI's word for how a choice ended."""
        return answers.finish_reason(ended)

    def opening(self, index: int) -> Delta:  # noqa: ARG002 - others need it
        """The text before the first token."""
        return "", []

    def shown(self, index: int, step: Step) -> Delta:
        """What a step adds."""
        return step.text, [] if self.top is None else self._entries[index].after(step)

    def usage(self) -> CompletionUsage:
        """Tokens in and out."""
        return answers.usage(self.job.texts, self.samples)

    def prompt_logprobs(self, index: int) -> dict[str, Any]:
        """Those of a text's prompt, as a field, if they are asked for."""
        if (top := self._body.prompt_logprobs) is None:
            return {}
        text = self.job.texts[index]
        return {"prompt_logprobs": prompt_form(self.tokenizer, text, top)}

    # -- whole ---------------------------------------------------------------------------------

    def whole(self) -> dict[str, Any]:
        """The answer, once all texts have ended."""
        texts, options = self.job.texts, self.job.texts[0].options
        choices = [self._whole_choice(index) for index in range(len(texts))]
        ours = self._settings()
        estimates = answers.estimates(texts, self.samples) if self.samples > 1 else []
        if any(estimates):
            ours["constraint_estimates"] = estimates
        if options.align:
            choices = [self._aligned(choices, i) for i in range(0, len(texts), self.samples)]
        more = {"usage": self.usage(), "cutaway": ours}
        return {**self._frame, "object": self.WHOLE, "choices": choices, **more}

    def _aligned(self, choices: list[dict[str, Any]], first: int) -> dict[str, Any]:
        """The choice that is taken of those of a prompt."""
        own = slice(first, first + self.samples)
        aligned = align([text.completion() for text in self.job.texts[own]]).aligned
        assert aligned is not None
        taken = choices[own][aligned.chosen]
        taken["cutaway"]["aligned"] = aligned._asdict()
        return {**taken, "index": first // self.samples}

    def _whole_choice(self, index: int) -> dict[str, Any]:
        steps, ended = self.job.texts[index].steps, self.job.texts[index].ended
        assert ended is not None  # whole answers are written when all texts have ended
        parts = [self.opening(index), *[self.shown(index, step) for step in steps]]
        text = "".join(shown for shown, _ in parts)
        entries = [entry for _, more in parts for entry in more]
        choice = {
            "index": index,
            **self.message(index, text, entries),
            **self._ending(index, ended),
        }
        if self._body.return_token_ids:
            choice["token_ids"] = [step.token_id for step in steps]
        return choice

    # -- streamed ------------------------------------------------------------------------------

    def begin(self) -> Iterator[bytes]:
        """That every choice is there, and the settings in force."""
        more = {"cutaway": self._settings()}
        for index in range(len(self.job.texts)):
            yield self._event({"index": index, **self.first()}, **more)
            more = {}

    def progress(self, index: int, event: Event) -> Iterator[bytes]:
        """The text that a token brought, or how the text ended; of a pass its record alone."""
        text, entries, ids = "", list[Entry](), list[int]()
        begins = isinstance(event, Ended) and not self.job.texts[index].steps
        if isinstance(event, Step):
            text, entries = self.shown(index, event)
            begins, ids = event.index == 0, [event.token_id]
            self._sent += 1
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
        """The usage, and OpenAI's mark."""
        if self._body.include_usage:
            yield self._event(None, usage=self.usage())
        yield b"data: [DONE]\n\n"

    def _event(self, choice: dict[str, Any] | None, **more: Any) -> bytes:
        usage: dict[str, CompletionUsage | None] = (
            {"usage": None} if self._body.include_usage else {}
        )
        if self._body.continuous_usage:
            usage["usage"] = self._so_far()
        choices = [] if choice is None else [{"finish_reason": None, **choice}]
        return sent({**self._frame, "object": self.CHUNK, "choices": choices, **usage, **more})

    # -- parts ---------------------------------------------------------------------------------

    def _so_far(self) -> CompletionUsage:
        """Prompt tokens, and completion tokens up to this event."""
        usage, sent = self.usage(), self._sent
        return {
            **usage,
            "completion_tokens": sent,
            "total_tokens": usage["prompt_tokens"] + sent,
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

    def _ending(self, index: int, ended: Ended) -> dict[str, Any]:
        ours = cast(CompletionEnding, answers.ending(self.job, index, self._body.readings))
        if between := self.job.texts[index].between:
            ours["between"] = cast(Infilled, between._asdict())
        if self._body.trace:
            ours["trace"] = self.job.traces[index].take()
        ending: dict[str, Any] = {
            "finish_reason": self.finish_reason(index, ended),
            "cutaway": ours,
        }
        if self._body.return_token_ids:
            ids = self.job.texts[index].prompt_token_ids
            ending["prompt_token_ids"] = list(ids)
        return ending
