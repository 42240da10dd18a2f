"""One request through HTTP, read to its end or not.

Knows whole and streamed completions, and how a client hangs up. Does not choose requests, and does
not check answers.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import httpx

WAYS = ("at once", "between events", "within an event")
"""Ways in which a client hangs up."""

_PIECE = 48
"""Bytes that a client reads at a time to leave within an event: less than an event has."""


@dataclass(frozen=True)
class Question:
    """A request, and how its client leaves.

    prompt  as ``LLM`` takes it: a text, token ids, or messages
    leaves  one of WAYS; None: the client stays
    events  number of events before the client leaves; for "at once", milliseconds
    """

    path: str
    prompt: Any
    options: dict[str, Any]
    stream: bool
    leaves: str | None
    events: int

    @property
    def body(self) -> dict[str, Any]:
        """The JSON of the request."""
        name = "messages" if self.path.endswith("/chat/completions") else "prompt"
        asked = {name: self.prompt, "stream": self.stream, "return_token_ids": True}
        return asked | self.options


@dataclass
class Said:
    """One sample's text; if it was streamed, the times in seconds at which it began and ended.

    ending  the field ``cutaway`` of the sample's last event; empty if this event did not come
    """

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    began: float = 0.0
    ended: float = 0.0
    ending: dict[str, Any] = field(default_factory=dict)


@dataclass
class Answer:
    """An answer as its client saw it.

    asked    the time of the request, in seconds
    said     each sample
    refused  number of times that the queue was full
    whole    whether the answer was read to its end
    cut      the error that cut the answer before the client left
    arrived  (time, number of tokens) of each event
    """

    question: Question
    asked: float = 0.0
    said: list[Said] = field(default_factory=list)
    refused: int = 0
    whole: bool = False
    cut: str | None = None
    arrived: list[tuple[float, int]] = field(default_factory=list)


class _CutError(Exception):
    """The answer is an error, or ends too early."""


async def ask(client: httpx.AsyncClient, question: Question) -> Answer:
    """Send a question, again while the queue is full, and read the answer."""
    answer = Answer(question, said=[Said() for _ in range(question.options.get("n", 1))])
    try:
        while (wait := await _once(client, answer)) is not None:
            answer.refused += 1
            await asyncio.sleep(wait)
    except (_CutError, httpx.HTTPError, ValueError) as error:
        answer.cut = f"{type(error).__name__}: {error}"
    return answer


async def _once(client: httpx.AsyncClient, answer: Answer) -> float | None:
    """Send the question once. Return the seconds to wait if the queue is full, else None."""
    question, answer.asked = answer.question, perf_counter()
    soon = question.events / 1e3 if question.leaves == "at once" else None
    with suppress(TimeoutError):
        async with (
            asyncio.timeout(soon),
            client.stream("POST", question.path, json=question.body) as response,
        ):
            if response.status_code == 429:
                return float(response.headers["retry-after"])
            if response.status_code != 200:
                raise _CutError(f"{response.status_code} {(await response.aread()).decode()}")
            if question.stream:
                await _read_events(response, answer)
            else:
                _take(answer, json.loads(await response.aread()))
                answer.whole = True
    return None


async def _read_events(response: httpx.Response, answer: Answer) -> None:
    question = answer.question
    piece = _PIECE if question.leaves == "within an event" else None
    async with aclosing(_events(response, piece)) as events:
        count = 0
        async for event in events:
            if event == b"[DONE]":
                answer.whole = True
            elif event:
                count += 1
                _take(answer, json.loads(event))
            enough = question.leaves is not None and count >= question.events
            if enough and (event is None) == bool(piece):
                return
    if not answer.whole:
        raise _CutError("the stream ended without [DONE]")


async def _events(
    response: httpx.Response, piece: int | None
) -> AsyncGenerator[bytes | None, None]:
    """Yield the data of each event; None for a piece of bytes that ends within an event."""
    rest = b""
    async for part in response.aiter_bytes(piece):
        *whole, rest = (rest + part).split(b"\n\n")
        for event in whole:
            if event.startswith(b"data: "):
                yield event.removeprefix(b"data: ")
        if rest:
            yield None


def _take(answer: Answer, told: dict[str, Any]) -> None:
    """Add an event, or a whole answer, to the record."""
    if "error" in told:
        raise _CutError(told["error"]["message"])
    now, choices = perf_counter(), told["choices"]
    answer.arrived.append((now, sum(len(choice.get("token_ids", ())) for choice in choices)))
    for choice in choices:
        said = answer.said[choice["index"]]
        said.token_ids += choice.get("token_ids", ())
        said.text += _text(choice)
        if choice.get("token_ids") and answer.question.stream:
            said.began, said.ended = said.began or now, now
        said.ending = choice.get("cutaway") or said.ending


def _text(choice: dict[str, Any]) -> str:
    message = choice.get("delta") or choice.get("message") or choice
    text: str = message.get("content") or message.get("text") or ""
    return text


def texts(answers: Iterable[Answer]) -> list[tuple[Answer, int]]:
    """Every sample of the answers that were read to their ends."""
    return [(a, i) for a in answers if a.whole for i in range(len(a.said))]
