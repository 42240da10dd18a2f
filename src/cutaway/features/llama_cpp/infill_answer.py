"""The answers of ``/infill``, whole and streamed, as llama-server writes them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cutaway.engine import Ended, Event, Step
from cutaway.features.llama_cpp.infill_request import InfillRequest
from cutaway.features.llama_cpp.schemas import StopType, Timings
from cutaway.server.events import event as sent
from cutaway.server.job import TextJob
from cutaway.server.service import Service
from cutaway.server.shared.logprobs import Entries, Entry, chat_form
from cutaway.server.shared.one_text import OneText

_STOP_TYPES: Mapping[str, StopType] = {
    "end_token": "eos", "stop_token": "eos", "constraint": "eos", "stop_string": "word",
    "max_tokens": "limit", "context_full": "limit", "scored": "limit",
}  # fmt: skip


class InfillAnswer(OneText):
    """What is between the two texts."""

    def __init__(self, service: Service, body: InfillRequest, job: TextJob, id: str) -> None:
        super().__init__(service, body, job, id)
        self._room = service.room
        self._entries = Entries(self._tokenizer, self._text, body.n_probs or 0)

    # -- whole ---------------------------------------------------------------------------------

    def whole(self) -> dict[str, Any]:
        """The answer, once the text has ended."""
        entries = [entry for step in self._text.steps for entry in self._probable(step)]
        ids = [step.token_id for step in self._text.steps] if self._body.return_tokens else []
        whole = {**self._piece(self._text.text, ids, entries), **self._end()}
        wanted = self._body.response_fields
        return whole if wanted is None else _only(whole, wanted)

    # -- streamed ------------------------------------------------------------------------------

    def begin(self) -> Iterable[bytes]:
        """Nothing: the first event has the first token."""
        return ()

    def progress(self, index: int, event: Event) -> Iterator[bytes]:  # noqa: ARG002
        """What a token brought."""
        if isinstance(event, Step):
            piece = self._piece(event.text, [event.token_id], self._probable(event))
            yield sent({**piece, **self._so_far(), **self._beside(event)})
        elif isinstance(event, Ended) and event.held_text:
            yield sent({**self._piece(event.held_text, [], []), **self._so_far()})

    def end(self) -> Iterator[bytes]:
        """The figures."""
        yield sent({**self._piece("", [], []), **self._end()})

    # -- parts ---------------------------------------------------------------------------------

    def _piece(self, text: str, ids: Sequence[int], entries: Sequence[Entry]) -> dict[str, Any]:
        piece: dict[str, Any] = {"index": 0, "content": text, "tokens": ids, "stop": False}
        return {**piece, "completion_probabilities": self._form(entries)} if entries else piece

    def _probable(self, step: Step) -> list[Entry]:
        return self._entries.after(step) if self._body.n_probs else []

    def _form(self, entries: Sequence[Entry]) -> list[dict[str, Any]]:
        """As chats have them, with the tokens' ids."""
        return [
            {
                **shown, "id": entry.token_id,
                "top_logprobs": [
                    {**one, "id": i}
                    for one, (i, _) in zip(shown["top_logprobs"], entry.top, strict=True)
                ],
            }
            for shown, entry in zip(chat_form(self._tokenizer, entries), entries, strict=True)
        ]  # fmt: skip

    def _so_far(self) -> dict[str, Any]:
        used = self._text.usage()
        return {"tokens_predicted": used.completion_tokens, "tokens_evaluated": used.prompt_tokens}

    def _end(self) -> dict[str, Any]:
        """Why it ended, what it took, and the settings in force."""
        ended, text, settings = self._text.ended, self._text.text, self._settings
        assert ended is not None
        matched = ended.matched if ended.reason == "stop_string" else ""
        prompt = self._tokenizer.decode(self._text.prompt_token_ids, special=True)
        return {
            "stop": True, "model": self._name, **self._so_far(),
            "tokens_cached": self._text.usage().cached_tokens,
            "generation_settings": {"n_ctx": self._room, **settings["params"]},
            "prompt": prompt, "has_new_line": "\n" in text,
            "truncated": ended.reason == "context_full",
            "stop_type": _STOP_TYPES[str(ended.reason)], "stopping_word": matched,
            "timings": self._timings(), **self._token_ids(),
            "cutaway": {**settings, **self._ending()},
        }  # fmt: skip

    def _timings(self) -> Timings:
        used, watch = self._text.usage(), self._text.watch
        queued, first = self._job.waited(0) or 0.0, watch.first
        read, written = used.prompt_tokens - used.cached_tokens, used.completion_tokens - 1
        prompt_s = None if first is None else first - watch.start - queued
        predicted_s = None if first is None else watch.last - first
        return {
            "cache_n": used.cached_tokens,
            "prompt_n": read, "prompt_ms": _thousand(prompt_s),
            "prompt_per_token_ms": _thousand(_ratio(prompt_s, read)),
            "prompt_per_second": _ratio(read, prompt_s),
            "predicted_n": used.completion_tokens, "predicted_ms": _thousand(predicted_s),
            "predicted_per_token_ms": _thousand(_ratio(predicted_s, written)),
            "predicted_per_second": _ratio(written, predicted_s),
        }  # fmt: skip


def _ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over is not None and under and under > 0 else None


def _thousand(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def _only(whole: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
    """These fields, those within others by their paths; what is not there is left out."""
    found = dict[str, Any]()
    for path in wanted:
        value: Any = whole
        for name in path.split("/"):
            value = value.get(name, _only) if isinstance(value, dict) else _only
        if value is not _only:
            found[path] = value
    return found
