"""Parts of answers of all protocols: finish reasons, usage, log-probabilities, ``cutaway``.

Knows a job and its steps. Refuses to know any protocol, except OpenAI's two forms of
log-probabilities, which other protocols use, too.
"""

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from cutaway.engine import Ended, Event, FinishReason, Step
from cutaway.engine.events import neg_log_z
from cutaway.methods.importance import estimate_of
from cutaway.requests.generation import Generation
from cutaway.requests.keywords import fields_at
from cutaway.requests.recording import without_draft_path
from cutaway.sampling import ReadRow
from cutaway.server.event_stream import Events
from cutaway.server.job import TextJob, end_at
from cutaway.server.service import Service
from cutaway.server.shared import (
    ChatToken,
    CompletionLogprobs,
    CompletionUsage,
    Ending,
    InForce,
    LikelyToken,
    OwnReason,
    PromptToken,
    Reason,
    SamplesEstimate,
    Source,
)
from cutaway.server.shared.fields import When
from cutaway.text import TextStream, Tokenizer
from cutaway.trace.exports import REMOVED, openai_token

_REASONS: Mapping[OwnReason, Reason] = {
    "end_token": "stop",
    "stop_string": "stop",
    "stop_token": "stop",
    "max_tokens": "length",
    "context_full": "length",
    "constraint": "stop",
    "scored": "length",
}

_WHOLE = ("constraint", "end_token")
"""Finish reasons of a text that matches its whole grammar."""


def finish_reason(end: Ended) -> Reason:
    """Return OpenAI's finish reason of a text."""
    return _REASONS[_own_reason(end)]


def _own_reason(end: Ended) -> OwnReason:
    """Return cutaway's finish reason of a text that was not aborted and did not fail."""
    return cast(OwnReason, str(end.reason))


def usage(texts: Sequence[Generation], samples: int) -> CompletionUsage:
    """Return the usage of all texts; a prompt counts once, with its first sample's cached tokens.

    samples: how many texts each prompt has
    """
    usages = [text.usage() for text in texts]
    firsts = usages[::samples]
    prompt = sum(text_usage.prompt_tokens for text_usage in firsts)
    completion = sum(text_usage.completion_tokens for text_usage in usages)
    accepted = sum(text.speculation.accepted for text in texts)
    proposed = sum(text.speculation.proposed for text in texts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": sum(text_usage.cached_tokens for text_usage in firsts)
        },
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": proposed - accepted,
        },
    }


def settings(job: TextJob, body: Any) -> InForce:
    """Return the settings in force and their sources, for the fields of this form of request."""
    texts, first = job.texts, job.texts[0]
    params = without_draft_path(first.options.to_json(first.seed))
    if params["json_schema"] is not None:
        params["json_schema"] = json.loads(params["json_schema"])
    names = [name for name in params if name in fields_at(body.FACE) and name != "trace"]
    sources = first.options.sources
    in_force: InForce = {
        "params": {name: params[name] for name in names},
        "params_source": {name: _source(sources[name], name in job.keywords) for name in names},
        "chain": list(first.chain),
        "seeds": [text.seed for text in texts],
        "schema_in_prompt": body.schema_shown,
    }
    if job.route:
        in_force["replica"] = job.route.reasons[-1]
    return in_force


def _source(source: str, by_client: bool) -> Source:
    """Return the word by which answers name a setting's source."""
    if source == "given" and not by_client:  # set by the endpoint
        return "default"
    return cast(Source, "server" if source == "common" else source)


def estimates(texts: Sequence[Generation], samples: int) -> list[SamplesEstimate | None]:
    """Return an estimate for each prompt from its samples; None if they have no constraint."""
    weights = [neg_log_z(text.steps) for text in texts]
    temperature = texts[0].options.sampling.temperature
    by_prompt = [
        estimate_of(weights[i : i + samples], temperature) for i in range(0, len(weights), samples)
    ]
    return [
        cast(SamplesEstimate, estimate.to_dict()) if estimate else None for estimate in by_prompt
    ]


def ending(job: TextJob, index: int, readings: Sequence[str]) -> Ending:
    """Return cutaway's report on a text's end. readings: notes on how fields were understood"""
    text = job.texts[index]
    end, timing = text.ended, text.timing()
    assert end is not None
    report: Ending = {
        "finish_reason": _own_reason(end),
        "matched": end.matched,
        "fingerprint": f"{end.fingerprint:016x}",
        "notes": [*readings, *text.notes],
        "timing": {
            "queue_s": job.queue_seconds(index),
            "ttft_s": timing.ttft_s,
            "decode_tokens_per_s": timing.decode_tokens_per_s,
        },
    }
    if (grammar := text.request.constraint.source) is not None:
        report["grammar"] = {
            "kind": cast(Any, grammar.kind),
            "sha256": grammar.sha256,
            "forced": sum(step.source == "grammar" for step in text.steps),
            "complete": end.reason in _WHOLE,
            "neg_log_z": neg_log_z(text.steps),
        }
    if text.options.denoise:
        rows = sum(canvas_pass.rows for canvas_pass in text.passes)
        report["canvas"] = {"passes": len(text.passes), "rows": rows}
    if job.route:
        report["replicas"], report["resumed"] = list(job.route.reasons), job.route.resumed
    return report


# -- answers with one text: those of Responses, Messages and Ollama's API ----------------------


class OneText(Events):
    """An answer with one text.

    body  the request's fields
    id    the request's id, which is part of the ids in the answer
    """

    def __init__(self, service: Service, body: Any, job: TextJob, id: str) -> None:
        self._job, self._body, self._text, self._id = job, body, job.texts[0], id
        self._name = service.names.resolve(body.model)
        self._fingerprint = service.names.fingerprint(body.model)
        self._tokenizer = service.llm.tokenizer

    @cached_property
    def _settings(self) -> InForce:
        return settings(self._job, self._body)

    def _ending(self) -> Ending:
        """Return the report on the text's end, with the trace records that were not yet sent."""
        report = ending(self._job, 0, self._body.readings)
        if self._body.trace:
            report["trace"] = self._job.traces[0].take()
        return report

    def _extra_fields(self, event: Event) -> dict[str, Any]:
        """Return the fields of an event that were asked for: its token id and trace records."""
        fields: dict[str, Any] = {}
        if self._body.return_token_ids and isinstance(event, Step):
            fields["token_ids"] = [event.token_id]
        if self._body.trace and (records := self._job.traces[0].take()):
            fields["cutaway"] = {"trace": records}
        return fields

    def _token_ids(self) -> dict[str, Any]:
        """Return the token ids of the prompt and of the text, if asked for."""
        if not self._body.return_token_ids:
            return {}
        token_ids = [step.token_id for step in self._text.steps]
        return {"prompt_token_ids": list(self._text.prompt_token_ids), "token_ids": token_ids}


# -- log-probabilities in OpenAI's two forms, token by token -----------------------------------
# Logarithms are natural. A token has its exact bytes, even if they are part of a character.


@dataclass(frozen=True, slots=True)
class Entry:
    """A token and its log-probability; ``top`` has the likeliest tokens and their logprobs.

    logprob  None for the first token of a prompt
    offset   how many characters of the text come before the token
    """

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]
    offset: int


_NO_TEXT = (FinishReason.END_TOKEN, FinishReason.STOP_TOKEN)  # the last token is no text


class Entries:
    """The entries of one text; an entry is sent with the first character of its token.

    An entry waits, like the text, while its token may belong to a stop string. The entry is left
    out if the stop string is completed, or if its token ends the text but is not part of the text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        text: Generation,
        top: int,
        when: When = "before",
        offset: int = 0,
    ) -> None:
        """offset: how many characters are sent before the text."""
        self._tokenizer, self._text, self._top, self._when = tokenizer, text, top, when
        self._decoder, self._waiting = TextStream(), deque[tuple[int, Entry]]()
        self._decoded = self._shown_length = offset
        self._bytes = self._released = 0  # bytes of all tokens, and of the released text

    def push(self, step: Step) -> list[Entry]:
        """Take a step, and return the entries that can be sent now."""
        end = end_at(self._text, step)
        self._released += step.released_bytes
        if end is None or end.reason not in _NO_TEXT:
            data = self._tokenizer.token_bytes(step.token_id)
            self._bytes += len(data)
            self._waiting.append((self._bytes, self._entry(step)))
            self._decoded += len(self._decoder.push(data))
        self._shown_length += len(step.text)
        ready: list[Entry] = []
        while self._waiting and self._is_ready(*self._waiting[0], has_ended=end is not None):
            ready.append(self._waiting.popleft()[1])
        return ready

    def _is_ready(self, end: int, entry: Entry, *, has_ended: bool) -> bool:
        """Whether an entry can be sent. end: bytes of the text up to and including its token"""
        return end <= self._released and (has_ended or entry.offset < self._shown_length)

    def _entry(self, step: Step) -> Entry:
        logprob: float | None = step.logprob
        top: tuple[tuple[int, float], ...] = ()
        if step.observed:
            scores, before = step.observed.logprobs(self._top), self._when == "before"
            top = scores.model if before else scores.chain
            logprob = scores.chosen_model if before else scores.chosen_chain
        return Entry(step.token_id, REMOVED if logprob is None else logprob, top, self._decoded)


def prompt_entries(
    tokenizer: Tokenizer, ids: Iterable[int], read: Iterable[ReadRow], top: int, text: str
) -> list[Entry]:
    """Return the entries of a prompt that is echoed as ``text``; the first entry has no logprob."""
    decoder, end, entries = TextStream(), 0, list[Entry]()
    for token_id, row in zip(ids, [None, *read], strict=False):
        logprob = row.logprob if row else None
        start, end = _place(text, end, decoder.push(tokenizer.token_bytes(token_id)))
        entries.append(Entry(token_id, logprob, row.top[:top] if row else (), start))
    return entries


def _place(text: str, after: int, piece: str) -> tuple[int, int]:
    """Return the offsets of a token's beginning and end in a prompt's text.

    after: the offset where the previous token ends; piece: the text of the token

    The tokenizer may put a space in front that the text lacks. A special token has an empty piece,
    but the text may have its name. A piece that is empty or is not found takes no characters.
    """
    for spelling in (piece, piece.removeprefix(" ")):
        if text.startswith(spelling, after):
            return after, after + len(spelling)
    position = text.find(piece, after)
    return (after, after) if position < 0 else (position, position + len(piece))


def chat_form(tokenizer: Tokenizer, entries: Iterable[Entry]) -> list[ChatToken]:
    """Return the ``content`` of a chat completion's logprobs."""
    return [
        {
            **_chat_token(tokenizer, e.token_id, e.logprob),
            "top_logprobs": [_chat_token(tokenizer, i, p) for i, p in e.top],
        }
        for e in entries
    ]


def _chat_token(tokenizer: Tokenizer, token_id: int, logprob: float | None) -> LikelyToken:
    data, name = tokenizer.token_bytes(token_id), tokenizer.token_name(token_id)
    return cast(LikelyToken, openai_token(data, name, logprob))


def completion_form(tokenizer: Tokenizer, entries: list[Entry]) -> CompletionLogprobs:
    """Return the ``logprobs`` of a completion; ``top_logprobs`` has only one token of each text."""
    return {
        "tokens": [_name(tokenizer, e.token_id) for e in entries],
        "token_logprobs": [e.logprob for e in entries],
        "top_logprobs": [
            None if e.logprob is None else _logprobs_by_name(tokenizer, e.top) for e in entries
        ],
        "text_offset": [e.offset for e in entries],
    }


def prompt_form(
    tokenizer: Tokenizer, text: Generation, top: int
) -> list[dict[str, PromptToken] | None]:
    """Return vLLM's ``prompt_logprobs``: each prompt token, and the likeliest in its place."""

    def to_prompt_token(token_id: int, logprob: float, rank: int) -> PromptToken:
        return {"logprob": logprob, "rank": rank, "decoded_token": _name(tokenizer, token_id)}

    scores: list[dict[str, PromptToken] | None] = [None]
    for prompt_id, row in zip(text.prompt_token_ids[1:], text.prompt_scores, strict=True):
        assert row.logprob is not None
        assert row.rank is not None
        likeliest = {i: to_prompt_token(i, p, rank) for rank, (i, p) in enumerate(row.top[:top], 1)}
        by_id = {prompt_id: to_prompt_token(prompt_id, row.logprob, row.rank)} | likeliest
        scores.append({str(i): token for i, token in by_id.items()})
    return scores


def _logprobs_by_name(tokenizer: Tokenizer, top: Iterable[tuple[int, float]]) -> dict[str, float]:
    by_name: dict[str, float] = {}
    for token_id, logprob in top:
        by_name.setdefault(_name(tokenizer, token_id), logprob)
    return by_name


def _name(tokenizer: Tokenizer, token_id: int) -> str:
    """Return a token's text; for a part of a character, its bytes in OpenAI's notation."""
    data = tokenizer.token_bytes(token_id)
    if not data:
        return tokenizer.token_name(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
