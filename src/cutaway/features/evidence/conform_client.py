"""Asks a server by OpenAI's protocol, for a test of conformance.

An answer is a text, and log-probabilities where the server gives them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from time import time_ns
from typing import Any

from cutaway.base.checks import shown
from cutaway.errors import CutawayError, InputError
from cutaway.rerun.asking import AnswerPart, RefusedError, Server

Numbers = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """A text, and the log-probability of each of its tokens; None where the server gave none."""

    text: str
    logprobs: Numbers | None


class Client:
    """Asks a server by OpenAI's protocol: for completions, or for chats if it refuses completions.

    model  the model's name at the server; "": the first that the server lists
    """

    def __init__(self, server: Server, model: str = "") -> None:
        self.server, self.model = server, model or server.model()
        self._form = {"model": self.model} if self.model else {}
        self._logprobs = True
        self._chat = False
        self._numbers = count(time_ns() // 1000 % 10**9)
        self._find_form()

    @property
    def form(self) -> str:
        """The kind of request: completions or chats, with log-probabilities or without."""
        name = "chats" if self._chat else "completions"
        return f"{name}, {'with' if self._logprobs else 'without'} log-probabilities"

    def _find_form(self) -> None:
        errors = []
        for self._chat in (False, True):
            for self._logprobs in (True, False):
                try:
                    answer = self.ask("One two", {"temperature": 0, "max_tokens": 2})
                    break
                except RefusedError as error:
                    errors.append(error)
            else:
                continue
            self._logprobs = answer.logprobs is not None
            return
        raise InputError(f"it takes neither completions nor chats: {errors[0]}")

    def body(self, prompt: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The body of the request for a prompt."""
        if self._chat:
            logprob_fields = {"logprobs": True, "top_logprobs": 1} if self._logprobs else {}
            messages = [{"role": "user", "content": prompt}]
            return {**self._form, "messages": messages, **logprob_fields, **settings}
        logprob_fields = {"logprobs": 1} if self._logprobs else {}
        return {**self._form, "prompt": prompt, **logprob_fields, **settings}

    @property
    def path(self) -> str:
        """The path that requests are sent to."""
        return "/v1/chat/completions" if self._chat else "/v1/completions"

    def ignores(self, field: str) -> bool:
        """Whether the server accepts a nonsense value of the field, and so does not read it."""
        settings = {"temperature": 0, "max_tokens": 1, field: "no such value"}
        try:
            self.ask("One two", settings)
        except RefusedError:
            return False
        return True

    def fresh(self, prompt: str) -> str:
        """The prompt with a new number before it, so that no cache has any of it."""
        return f"{next(self._numbers)}. {prompt}"

    def ask(self, prompt: str, settings: Mapping[str, Any]) -> ServerAnswer:
        """Send the request without streaming, and return its first choice."""
        return self.ask_choices(prompt, settings)[0]

    def ask_choices(self, prompt: str, settings: Mapping[str, Any]) -> list[ServerAnswer]:
        """Send the request without streaming, and return all its choices, by index."""
        answer = self.server.post(self.path, self.body(prompt, settings))
        choices = [*answer["choices"]]
        if not choices:
            raise answer["choices"].unlike("a list of one choice or more")
        choices.sort(key=lambda choice: choice["index"].whole if choice.has("index") else 0)
        return [_answer([choice], "message") for choice in choices]

    def stream(self, prompt: str, settings: Mapping[str, Any]) -> ServerAnswer:
        """Send the request with streaming, and return the joined answer."""
        body = {**self.body(prompt, settings), "stream": True}
        pieces = list[AnswerPart]()
        for event in self.server.events(self.path, body):
            if event.has("error"):
                raise CutawayError(f"{self.server.url}: {shown(event['error'].value)}")
            pieces += event.each("choices")
        return _answer(pieces, "delta")


def _answer(pieces: Iterable[AnswerPart], name: str) -> ServerAnswer:
    """Join the pieces of a choice: one without streaming, many with it."""
    texts, numbers, has_logprobs = list[str](), list[float | None](), False
    for piece in pieces:
        message = piece.get(name)
        for part in (piece.get("text"), message and message.get("content")):
            texts += [part.text] if part else []
        if logprobs := piece.get("logprobs"):
            has_logprobs = True
            numbers += [token.logprob for token in logprobs.each("token_logprobs")] or [
                token["logprob"].logprob for token in logprobs.each("content")
            ]
    return ServerAnswer("".join(texts), tuple(numbers) if has_logprobs and numbers else None)
