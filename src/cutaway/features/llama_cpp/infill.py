"""``/infill``: the text between two others, in llama-server's form.

Knows llama-server's fields and answers, and the layout of its prompts.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from cutaway.api.async_model import AsyncModel
from cutaway.engine import Ended, Event, Step
from cutaway.errors import InputError
from cutaway.features import llama_cpp
from cutaway.features.llama_cpp import Infilling, StopType, Timings
from cutaway.requests.keywords import fields_at
from cutaway.server.answering import answer
from cutaway.server.body import Body, StrictRoute, Unsupported, examples, optional
from cutaway.server.document import GENERATION_ERRORS, replies
from cutaway.server.event_stream import event as encode_event
from cutaway.server.job import TextJob
from cutaway.server.service import Service
from cutaway.server.shared.answers import Entries, Entry, OneText, chat_form
from cutaway.server.shared.fields import Read, TextFields, bias_of, own_form, with_keywords
from cutaway.text.tokenizers.vocabulary import FimTokens

_LEFT_OUT = {"n", "align", "special", "prompt_logprobs", "denoise"}  # llama-server writes one text
_NO_EFFECT = "is read and has no effect; a note in the answer says so"
_NOTES: Mapping[str, tuple[Any, str]] = {
    "samplers": (None, "samplers: not applied; chain says which stages there are, in their order"),
    "n_indent": (0, "n_indent: not applied; a text ends by its own tokens, stop or n_predict"),
    "t_max_prompt_ms": (None, "t_max_prompt_ms: not applied, or no request could be repeated"),
    "t_max_predict_ms": (None, "t_max_predict_ms: not applied, or no request could be repeated"),
}
"""Field that editors send -> (its default, the note on any other value)."""


class ExtraText(Body):
    """Another text of the project."""

    text: str
    filename: str = Field("tmp", description="where the model has a token for names of files")
    time: int | None = optional("ignored")


_Infill: Any = with_keywords(
    "_Infill", TextFields, [name for name in own_form("completions") if name not in _LEFT_OUT]
)


class InfillRequest(_Infill):  # type: ignore[misc]  # as TextFields
    """The texts before and after a gap."""

    FACE, PROMPT, FILL = "completions", "input_prefix", True
    model_config = examples(
        {"input_prefix": "def double(x):\n    return ", "input_suffix": "\n", "n_predict": 8}
    )
    schema_shown: ClassVar[bool] = False

    input_prefix: str = Field(description="the text before the gap")
    input_suffix: str = Field(description="the text after the gap")
    input_extra: list[ExtraText] | None = optional("texts that are put before both", fail_fast=True)
    prompt: str = Field("", description="how the text in the gap begins; not part of the answer")
    n_predict: int | None = optional(
        "new tokens at most; -1 or left out: as many as fit; 0: the prompt is read into the cache"
    )
    n_probs: int | None = optional("the likeliest tokens beside each", ge=0, le=1000)
    repeat_penalty: float | None = optional("llama-server's name of repetition_penalty")
    return_tokens: bool = Field(False, description="include the new tokens")
    response_fields: list[str] | None = optional(
        "only these fields of a whole answer; a/b is the field b of a", fail_fast=True
    )
    id_slot: int | None = optional("ignored: any sequence continues what any other has read")
    samplers: list[str] | None = optional(_NO_EFFECT, fail_fast=True)
    n_indent: int | None = optional(_NO_EFFECT)
    t_max_prompt_ms: float | None = optional(_NO_EFFECT)
    t_max_predict_ms: float | None = optional(_NO_EFFECT)
    unsupported: ClassVar[Unsupported] = {
        "n_keep": ((0, -1), "nothing is cut here; leave it out"),
        "mirostat": ((0,), "is not supported; leave it out"),
        "lora": (([],), "an adapter is asked for by its name, as model"),
        "suffix": (("",), "is input_suffix here"),
        "max_tokens": ((), "did you mean 'n_predict'?"),
    }

    @property
    def readings(self) -> list[str]:
        """Notes on how fields were read, and on fields without an effect."""
        notes = [n for name, (none, n) in _NOTES.items() if getattr(self, name) not in (None, none)]
        return [*super().readings, *notes]

    def field_names(self) -> Mapping[str, str]:
        """Return the name that each keyword's field has in this request."""
        return {
            **fields_at(self.FACE), "prompt": "input_prefix", "max_tokens": "n_predict",
            "logprobs": "n_probs", "repetition_penalty": "repeat_penalty",
        }  # fmt: skip

    def keywords(self) -> dict[str, Any]:
        """Return the keywords that were given."""
        keywords: dict[str, Any] = super().keywords()
        if self.repeat_penalty is not None:
            if self.repetition_penalty is not None:
                raise InputError("repeat_penalty", " is repetition_penalty: give one")
            keywords["repetition_penalty"] = self.repeat_penalty
        if self.logit_bias is not None:
            keywords["logit_bias"] = bias_of(self.logit_bias)
        if self.n_predict is not None and self.n_predict != -1:
            keywords["max_tokens"] = self.n_predict
        if self.n_predict == 0:
            keywords["prompt_logprobs"] = 1  # a request must ask for something
        if self.n_probs:
            keywords["logprobs"] = self.n_probs
        return keywords

    async def read(self, service: Service) -> Read:
        """Return the prompt, with the model's fill-in-the-middle tokens, and the keywords."""
        llm, keywords = service.llm, await asyncio.to_thread(self.keywords)
        if (fim := llm.tokenizer.fim) is None:
            raise InputError(
                "input_suffix",
                ": this model has no fill-in-the-middle tokens; suffix of "
                "/v1/completions does without (docs/fill.md)",
            )
        if not self.ignore_eos:
            keywords["stop_token_ids"] = [*(self.stop_token_ids or ()), *fim.ends]
        return Read([await llm.read_in_turn(self._length, self._lay_out, llm, fim)], keywords)

    @property
    def _length(self) -> int:
        """The number of characters of all texts."""
        extra = sum(len(text.text) for text in self.input_extra or ())
        return len(self.input_prefix) + len(self.input_suffix) + len(self.prompt) + extra

    def _lay_out(self, llm: AsyncModel, fim: FimTokens) -> list[int]:
        """Return the prompt, in llama-server's order."""
        for text in (self.input_prefix, self.input_suffix, self.prompt):
            llm.check_length(text)
        before = llm.tokenize(self.input_prefix)
        has_bos = before[:1] == [llm.tokenizer.bos_id]
        gap = fim.lay_out(before[has_bos:], _ids(llm, self.input_suffix))
        return [*before[:has_bos], *self._extra(llm, fim), *gap, *_ids(llm, self.prompt)]

    def _extra(self, llm: AsyncModel, fim: FimTokens) -> Iterator[int]:
        """Yield the ids of the other texts, with their names if the model has tokens for names."""
        extra: Sequence[ExtraText] = self.input_extra or ()
        if fim.file is not None and fim.repository is not None:
            yield from (fim.repository, *_ids(llm, "myproject\n"))
        for extra_text in extra:
            llm.check_length(extra_text.text)
            name = "\n\n--- snippet ---\n\n" if fim.file is None else f"{extra_text.filename}\n"
            yield from () if fim.file is None else (fim.file,)
            yield from _ids(llm, name + extra_text.text)
        if fim.file is not None:
            yield from (fim.file, *_ids(llm, "filename\n"))


def _ids(llm: AsyncModel, text: str) -> list[int]:
    """Return the ids of a text within the prompt, which has no BOS."""
    return llm.tokenizer.encode(text, special=False, goes_on=True)


# -- answers, whole and streamed ---------------------------------------------------------------


_STOP_TYPES: Mapping[str, StopType] = {
    "end_token": "eos", "stop_token": "eos", "constraint": "eos", "stop_string": "word",
    "max_tokens": "limit", "context_full": "limit", "scored": "limit",
}  # fmt: skip


class InfillAnswer(OneText):
    """The text between two others."""

    def __init__(self, service: Service, body: InfillRequest, job: TextJob, id: str) -> None:
        super().__init__(service, body, job, id)
        self._room = service.room
        self._entries = Entries(self._tokenizer, self._text, body.n_probs or 0)

    # -- whole ---------------------------------------------------------------------------------

    def whole(self) -> dict[str, Any]:
        """Return the answer, once the text has ended."""
        entries = [entry for step in self._text.steps for entry in self._push_entries(step)]
        ids = [step.token_id for step in self._text.steps] if self._body.return_tokens else []
        whole = {**self._piece(self._text.text, ids, entries), **self._end()}
        fields = self._body.response_fields
        return whole if fields is None else _select_fields(whole, fields)

    # -- streamed ------------------------------------------------------------------------------

    def begin(self) -> Iterable[bytes]:
        """Return nothing: the first event has the first token."""
        return ()

    def progress(self, index: int, event: Event) -> Iterator[bytes]:  # noqa: ARG002
        """Yield the text that a token adds, and at the end the text that was held back."""
        if isinstance(event, Step):
            piece = self._piece(event.text, [event.token_id], self._push_entries(event))
            yield encode_event({**piece, **self._counts(), **self._extra_fields(event)})
        elif isinstance(event, Ended) and event.held_text:
            yield encode_event({**self._piece(event.held_text, [], []), **self._counts()})

    def end(self) -> Iterator[bytes]:
        """Yield the figures."""
        yield encode_event({**self._piece("", [], []), **self._end()})

    # -- parts ---------------------------------------------------------------------------------

    def _piece(self, text: str, ids: Sequence[int], entries: Sequence[Entry]) -> dict[str, Any]:
        piece: dict[str, Any] = {"index": 0, "content": text, "tokens": ids, "stop": False}
        return {**piece, "completion_probabilities": self._form(entries)} if entries else piece

    def _push_entries(self, step: Step) -> list[Entry]:
        return self._entries.push(step) if self._body.n_probs else []

    def _form(self, entries: Sequence[Entry]) -> list[dict[str, Any]]:
        """Return log-probabilities in the form of chat answers, with the tokens' ids."""
        return [
            {
                **token, "id": entry.token_id,
                "top_logprobs": [
                    {**likely, "id": i}
                    for likely, (i, _) in zip(token["top_logprobs"], entry.top, strict=True)
                ],
            }
            for token, entry in zip(chat_form(self._tokenizer, entries), entries, strict=True)
        ]  # fmt: skip

    def _counts(self) -> dict[str, Any]:
        used = self._text.usage()
        return {"tokens_predicted": used.completion_tokens, "tokens_evaluated": used.prompt_tokens}

    def _end(self) -> dict[str, Any]:
        """Return the reason why the text ended, the times, and the settings in force."""
        end, text, settings = self._text.ended, self._text.text, self._settings
        assert end is not None
        stopping_word = end.matched if end.reason == "stop_string" else ""
        prompt = self._tokenizer.decode(self._text.prompt_token_ids, special=True)
        return {
            "stop": True, "model": self._name, **self._counts(),
            "tokens_cached": self._text.usage().cached_tokens,
            "generation_settings": {"n_ctx": self._room, **settings["params"]},
            "prompt": prompt, "has_new_line": "\n" in text,
            "truncated": end.reason == "context_full",
            "stop_type": _STOP_TYPES[str(end.reason)], "stopping_word": stopping_word,
            "timings": self._timings(), **self._token_ids(),
            "cutaway": {**settings, **self._ending()},
        }  # fmt: skip

    def _timings(self) -> Timings:
        used, watch = self._text.usage(), self._text.watch
        queued, first = self._job.queue_seconds(0) or 0.0, watch.first
        read, generated = used.prompt_tokens - used.cached_tokens, used.completion_tokens - 1
        prompt_s = None if first is None else first - watch.start - queued
        predicted_s = None if first is None else watch.last - first
        return {
            "cache_n": used.cached_tokens,
            "prompt_n": read, "prompt_ms": _thousand(prompt_s),
            "prompt_per_token_ms": _thousand(_ratio(prompt_s, read)),
            "prompt_per_second": _ratio(read, prompt_s),
            "predicted_n": used.completion_tokens, "predicted_ms": _thousand(predicted_s),
            "predicted_per_token_ms": _thousand(_ratio(predicted_s, generated)),
            "predicted_per_second": _ratio(generated, predicted_s),
        }  # fmt: skip


def _ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over is not None and under and under > 0 else None


def _thousand(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def _select_fields(whole: Mapping[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """Return the fields at these paths; leave out those that do not exist."""
    selected = dict[str, Any]()
    for path in paths:
        value: Any = whole
        for name in path.split("/"):
            value = value.get(name, _select_fields) if isinstance(value, dict) else _select_fields
        if value is not _select_fields:
            selected[path] = value
    return selected


# -- the endpoint ------------------------------------------------------------------------------


SCHEMAS = (llama_cpp,)
router = APIRouter(route_class=StrictRoute, tags=["text"])


@router.post(
    "/infill", responses=replies(Infilling, *GENERATION_ERRORS, events=Infilling, mark=False)
)
async def infill(body: InfillRequest, request: Request) -> Response:
    """Write what is between two texts, in llama-server's form."""
    return await answer(request, body, InfillAnswer)
