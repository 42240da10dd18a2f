"""One answer of an OpenAI-compatible server: text, and log-probabilities where it tells them."""

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
    """A text, and the log-probability of each of its tokens; None where none were told."""

    text: str
    logprobs: Numbers | None


class Client:
    """Asks a server in OpenAI's form: completions, or chats where it has only those.

    model  its name there; "": the first that the server lists
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
        """What is asked: completions or chats, with log-probabilities or without."""
        name = "chats" if self._chat else "completions"
        return f"{name}, {'with' if self._logprobs else 'without'} log-probabilities"

    def _find_form(self) -> None:
        errors = []
        for self._chat in (False, True):
            for self._logprobs in (True, False):
                try:
                    told = self.ask("One two", {"temperature": 0, "max_tokens": 2})
                    break
                except RefusedError as error:
                    errors.append(error)
            else:
                continue
            self._logprobs = told.logprobs is not None
            return
        raise InputError(f"it takes neither completions nor chats: {errors[0]}")

    def body(self, prompt: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The request for a prompt."""
        if self._chat:
            told = {"logprobs": True, "top_logprobs": 1} if self._logprobs else {}
            messages = [{"role": "user", "content": prompt}]
            return {**self._form, "messages": messages, **told, **settings}
        told = {"logprobs": 1} if self._logprobs else {}
        return {**self._form, "prompt": prompt, **told, **settings}

    @property
    def path(self) -> str:
        """Where it is sent."""
        return "/v1/chat/completions" if self._chat else "/v1/completions"

    def ignores(self, field: str) -> bool:
        """Whether it takes a value that nothing can mean: then it does not read the field."""
        settings = {"temperature": 0, "max_tokens": 1, field: "no such value"}
        try:
            self.ask("One two", settings)
        except RefusedError:
            return False
        return True

    def fresh(self, prompt: str) -> str:
        """The prompt after a number that nobody gave before: no cache has its beginning."""
        return f"{next(self._numbers)}. {prompt}"

    def ask(self, prompt: str, settings: Mapping[str, Any]) -> ServerAnswer:
        """One answer, whole."""
        return self.each(prompt, settings)[0]

    def each(self, prompt: str, settings: Mapping[str, Any]) -> list[ServerAnswer]:
        """Every choice, whole."""
        answer = self.server.post(self.path, self.body(prompt, settings))
        choices = [*answer["choices"]]
        if not choices:
            raise answer["choices"].unlike("a list of one choice or more")
        choices.sort(key=lambda choice: choice["index"].whole if choice.has("index") else 0)
        return [_answer([choice], "message") for choice in choices]

    def stream(self, prompt: str, settings: Mapping[str, Any]) -> ServerAnswer:
        """One answer, streamed."""
        body = {**self.body(prompt, settings), "stream": True}
        pieces = list[AnswerPart]()
        for event in self.server.events(self.path, body):
            if event.has("error"):
                raise CutawayError(f"{self.server.url}: {shown(event['error'].value)}")
            pieces += event.each("choices")
        return _answer(pieces, "delta")


def _answer(pieces: Iterable[AnswerPart], name: str) -> ServerAnswer:
    """Of choices: a whole one, or the pieces of one."""
    texts, numbers, told = list[str](), list[float | None](), False
    for piece in pieces:
        says = piece.get(name)
        for part in (piece.get("text"), says and says.get("content")):
            texts += [part.text] if part else []
        if logprobs := piece.get("logprobs"):
            told = True
            numbers += [each.logprob for each in logprobs.each("token_logprobs")] or [
                each["logprob"].logprob for each in logprobs.each("content")
            ]
    return ServerAnswer("".join(texts), tuple(numbers) if told and numbers else None)
