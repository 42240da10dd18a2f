"""What answers have in all forms: finish reasons, usage, log-probabilities, our own ``cutaway``.

Knows a job and its steps. Refuses to know whose form it is, but for OpenAI's two of
log-probabilities, which others have, too.
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
"""Reasons for which a text of a grammar ends when it is whole."""


def finish_reason(ended: Ended) -> Reason:
    """OpenAI's word for how a text ended."""
    return _REASONS[_own_reason(ended)]


def _own_reason(ended: Ended) -> OwnReason:
    """Our word; a text in an answer was neither aborted nor did it fail."""
    return cast(OwnReason, str(ended.reason))


def usage(texts: Sequence[Generation], samples: int) -> CompletionUsage:
    """Of all texts; each prompt counts once, with what was found of it for its first sample."""
    each = [text.usage() for text in texts]
    firsts = each[::samples]
    prompt = sum(one.prompt_tokens for one in firsts)
    completion = sum(one.completion_tokens for one in each)
    accepted = sum(text.speculation.accepted for text in texts)
    proposed = sum(text.speculation.proposed for text in texts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in firsts)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": proposed - accepted,
        },
    }


def settings(job: TextJob, body: Any) -> InForce:
    """The settings in force that requests of this form can have, and where each came from."""
    texts, first = job.texts, job.texts[0]
    params = first.options.to_json(first.seed)
    params["speculate"] = params["speculate"].partition(":")[0]  # a draft's path is private
    if params["json_schema"] is not None:
        params["json_schema"] = json.loads(params["json_schema"])
    names = [name for name in params if name in fields_at(body.FACE) and name != "trace"]
    sources = first.options.sources
    found: InForce = {
        "params": {name: params[name] for name in names},
        "params_source": {name: _source(sources[name], name in job.given) for name in names},
        "chain": list(first.chain),
        "seeds": [text.seed for text in texts],
        "schema_in_prompt": body.schema_shown,
    }
    if job.route:
        found["replica"] = job.route.reasons[-1]
    return found


def _source(source: str, by_client: bool) -> Source:
    """Where a setting came from, as a client sees it."""
    if source == "given" and not by_client:  # the endpoint has chosen what was left open
        return "default"
    return cast(Source, "server" if source == "common" else source)


def estimates(texts: Sequence[Generation], samples: int) -> list[SamplesEstimate | None]:
    """What the samples of each prompt say of the model under their constraint."""
    weights = [neg_log_z(text.steps) for text in texts]
    temperature = texts[0].options.sampling.temperature
    each = [
        estimate_of(weights[i : i + samples], temperature) for i in range(0, len(weights), samples)
    ]
    return [cast(SamplesEstimate, one.to_dict()) if one else None for one in each]


def ending(job: TextJob, index: int, readings: Sequence[str]) -> Ending:
    """How a text ended, in our own words. readings: notes on how the request was read."""
    text = job.texts[index]
    ended, timing = text.ended, text.timing()
    assert ended is not None
    found: Ending = {
        "finish_reason": _own_reason(ended),
        "matched": ended.matched,
        "fingerprint": f"{ended.fingerprint:016x}",
        "notes": [*readings, *text.notes],
        "timing": {
            "queue_s": job.waited(index),
            "ttft_s": timing.ttft_s,
            "decode_tokens_per_s": timing.decode_tokens_per_s,
        },
    }
    if (grammar := text.request.constraint.source) is not None:
        found["grammar"] = {
            "kind": cast(Any, grammar.kind),
            "sha256": grammar.sha256,
            "forced": sum(step.source == "grammar" for step in text.steps),
            "complete": ended.reason in _WHOLE,
            "neg_log_z": neg_log_z(text.steps),
        }
    if text.options.denoise:
        rows = sum(made.rows for made in text.passes)
        found["canvas"] = {"passes": len(text.passes), "rows": rows}
    if job.route:
        found["replicas"], found["resumed"] = list(job.route.reasons), job.route.resumed
    return found


# -- answers with one text: those of Responses, Messages and Ollama's forms --------------------


class OneText(Events):
    """An answer with one text.

    body  the request; id: the request's, of which those in the answer are made
    """

    def __init__(self, service: Service, body: Any, job: TextJob, id: str) -> None:
        self._job, self._body, self._text, self._id = job, body, job.texts[0], id
        self._name = service.names.named(body.model)
        self._fingerprint = service.names.fingerprint(body.model)
        self._tokenizer = service.llm.tokenizer

    @cached_property
    def _settings(self) -> InForce:
        return settings(self._job, self._body)

    def _ending(self) -> Ending:
        """How the text ended, with the records of its trace that were not sent before."""
        ours = ending(self._job, 0, self._body.readings)
        if self._body.trace:
            ours["trace"] = self._job.traces[0].take()
        return ours

    def _beside(self, event: Event) -> dict[str, Any]:
        """What is sent beside a piece of text, if asked for: its token and trace records."""
        fields: dict[str, Any] = {}
        if self._body.return_token_ids and isinstance(event, Step):
            fields["token_ids"] = [event.token_id]
        if self._body.trace and (records := self._job.traces[0].take()):
            fields["cutaway"] = {"trace": records}
        return fields

    def _token_ids(self) -> dict[str, Any]:
        """The ids of the prompt and of the text, if asked for."""
        if not self._body.return_token_ids:
            return {}
        written = [step.token_id for step in self._text.steps]
        return {"prompt_token_ids": list(self._text.prompt_token_ids), "token_ids": written}


# -- log-probabilities in OpenAI's two forms, token by token -----------------------------------
# The logarithms are natural; tokens have their true bytes, also where these are part of a
# character.


@dataclass(frozen=True, slots=True)
class Entry:
    """One token, its log-probability and the likeliest; None for the first token of a prompt.

    offset  characters of the text before it
    """

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]
    offset: int


_NO_TEXT = (FinishReason.END_TOKEN, FinishReason.STOP_TOKEN)  # whose last token is no text


class Entries:
    """Those of one text, each shown when the text that it begins is shown.

    A token of which a byte may belong to a stop string is delayed like the text, and left out
    if the stop string is completed; so is the token that ends the text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        text: Generation,
        top: int,
        when: When = "before",
        offset: int = 0,
    ) -> None:
        """offset: characters that are shown before the text."""
        self._tokenizer, self._text, self._top, self._when = tokenizer, text, top, when
        self._decoder, self._waiting = TextStream(), deque[tuple[int, Entry]]()
        self._decoded = self._shown = offset
        self._bytes = self._released = 0  # of the tokens, and of the text that is certain

    def after(self, step: Step) -> list[Entry]:
        """What can be shown after this step."""
        ended = end_at(self._text, step)
        self._released += step.released_bytes
        if ended is None or ended.reason not in _NO_TEXT:
            data = self._tokenizer.token_bytes(step.token_id)
            self._bytes += len(data)
            self._waiting.append((self._bytes, self._entry(step)))
            self._decoded += len(self._decoder.push(data))
        self._shown += len(step.text)
        ready: list[Entry] = []
        while self._waiting and self._is_ready(*self._waiting[0], ended=ended is not None):
            ready.append(self._waiting.popleft()[1])
        return ready

    def _is_ready(self, end: int, entry: Entry, *, ended: bool) -> bool:
        """end: how many bytes of the text there are with this token."""
        return end <= self._released and (ended or entry.offset < self._shown)

    def _entry(self, step: Step) -> Entry:
        own: float | None = step.logprob
        top: tuple[tuple[int, float], ...] = ()
        if step.observed:
            both, before = step.observed.logprobs(self._top), self._when == "before"
            top = both.model if before else both.chain
            own = both.chosen_model if before else both.chosen_chain
        return Entry(step.token_id, REMOVED if own is None else own, top, self._decoded)


def of_prompt(
    tokenizer: Tokenizer, ids: Iterable[int], read: Iterable[ReadRow], top: int, text: str
) -> list[Entry]:
    """Those of a prompt that is echoed as ``text``; nothing says how likely its first token was."""
    decoder, end, entries = TextStream(), 0, list[Entry]()
    for token_id, row in zip(ids, [None, *read], strict=False):
        own = row.logprob if row else None
        start, end = _place(text, end, decoder.push(tokenizer.token_bytes(token_id)))
        entries.append(Entry(token_id, own, row.top[:top] if row else (), start))
    return entries


def _place(text: str, after: int, piece: str) -> tuple[int, int]:
    """Where a token begins and ends in a prompt that was written as text.

    A space that the tokenizer put in front is not there; a special token is, by its name.
    """
    for written in (piece, piece.removeprefix(" ")):
        if text.startswith(written, after):
            return after, after + len(written)
    found = text.find(piece, after)
    return (after, after) if found < 0 else (found, found + len(piece))


def chat_form(tokenizer: Tokenizer, entries: Iterable[Entry]) -> list[ChatToken]:
    """The ``content`` of a chat completion's logprobs."""
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
    """The ``logprobs`` of a completion; of tokens with equal text the likelier is kept."""
    return {
        "tokens": [_name(tokenizer, e.token_id) for e in entries],
        "token_logprobs": [e.logprob for e in entries],
        "top_logprobs": [
            None if e.logprob is None else _by_name(tokenizer, e.top) for e in entries
        ],
        "text_offset": [e.offset for e in entries],
    }


def prompt_form(
    tokenizer: Tokenizer, text: Generation, top: int
) -> list[dict[str, PromptToken] | None]:
    """The ``prompt_logprobs`` of vLLM: each token of the prompt, and the ``top`` likeliest."""

    def told(token_id: int, logprob: float, rank: int) -> PromptToken:
        return {"logprob": logprob, "rank": rank, "decoded_token": _name(tokenizer, token_id)}

    found: list[dict[str, PromptToken] | None] = [None]
    for own, row in zip(text.prompt_token_ids[1:], text.prompt_scores, strict=True):
        assert row.logprob is not None
        assert row.rank is not None
        likeliest = {i: told(i, p, rank) for rank, (i, p) in enumerate(row.top[:top], 1)}
        each = {own: told(own, row.logprob, row.rank)} | likeliest
        found.append({str(i): one for i, one in each.items()})
    return found


def _by_name(tokenizer: Tokenizer, top: Iterable[tuple[int, float]]) -> dict[str, float]:
    by_name: dict[str, float] = {}
    for token_id, logprob in top:
        by_name.setdefault(_name(tokenizer, token_id), logprob)
    return by_name


def _name(tokenizer: Tokenizer, token_id: int) -> str:
    """The token's text; where it is part of a character, its bytes as OpenAI writes them."""
    data = tokenizer.token_bytes(token_id)
    if not data:
        return tokenizer.token_name(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
