"""A model behind ``cutaway serve``, for tests of prompts: what they use of an ``LLM``, over HTTP.

A server's answer comes with the trace of its run, which has all that is asserted of it. Other
servers tell no trace, and are refused.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

from cutaway.errors import InputError
from cutaway.lab.asking import Server
from cutaway.requests.base import accepted
from cutaway.requests.completion import ToolCall
from cutaway.text.grammar.acceptance import Accepted
from cutaway.trace import Trace
from cutaway.trace.record import Token


@dataclass(frozen=True)
class ServedAnswer:
    """Of a run: its trace, and the tool calls that the server read in its text."""

    trace: Trace
    text: str
    tool_calls: tuple[ToolCall, ...]

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """What was read."""
        return self.trace.head.prompt_token_ids

    @property
    def token_ids(self) -> tuple[int, ...]:
        """What was written."""
        return self.trace.output_token_ids

    @property
    def steps(self) -> tuple[Any, ...]:
        """The steps, with what was observed of each draw."""
        return self.trace.steps

    @property
    def fingerprint(self) -> str:
        """Of the logits of all steps, 16 hex digits."""
        return self.trace.end.fingerprint if self.trace.end else ""


@dataclass(frozen=True)
class ServedScore:
    """Log-probabilities of an answer's tokens."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    @property
    def total(self) -> float:
        """Their sum."""
        return fsum(self.logprobs)


class ServedModel:
    """A model of a cutaway server; InputError where the server is another.

    name      its name there; "": the first that the server lists
    identity  what its answers depend on beside the request
    """

    def __init__(self, url: str, key: str = "", name: str = "") -> None:
        self._server = Server(url, key)
        listed = self._server.get("/v1/models")["data"]
        if not listed or listed[0].get("owned_by") != "cutaway":
            raise InputError(f"{url} is no server of cutaway, and tells no trace of an answer")
        self.name = name or str(listed[0]["id"])
        self.tokenizer = ServedTokenizer(self._server, self.name)
        head = self.generate("a", max_tokens=1, candidates=1).trace.head
        self.identity = (url, self.name, head.cutaway, head.backend, head.weights, head.tokenizer)

    def generate(self, prompt: str | Sequence[int], **options: Any) -> ServedAnswer:
        """Continue a text or token ids."""
        return self._answer("/v1/completions", {"prompt": prompt, **options})

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> ServedAnswer:
        """Answer a conversation, in the model's own template."""
        return self._answer("/v1/chat/completions", {"messages": messages, **options})

    def score(self, prompt: Sequence[int], answers: Sequence[str]) -> list[ServedScore]:
        """How likely each text is after the prompt."""
        body = {"text_1": list(prompt), "text_2": list(answers), "trace": True}
        found = self._server.post("/v1/score", {"model": self.name, **body})["data"]
        read = [each["cutaway"]["tokens"] for each in found]
        return [
            ServedScore(tuple(t["token_id"] for t in each), tuple(t["logprob"] for t in each))
            for each in read
        ]

    def accepts(self, text: str, *, json_schema: Mapping[str, Any]) -> Accepted:
        """Whether a schema allows the text, by the grammars of this process."""
        return accepted(text, json_schema=json_schema)

    def _answer(self, path: str, body: dict[str, Any]) -> ServedAnswer:
        asked = {"model": self.name, **body, "trace": True}
        try:
            [choice] = self._server.post(path, asked)["choices"]
        except TypeError as error:
            raise InputError(f"a server is asked in JSON: {error}") from error
        lines = (json.dumps(record).encode() + b"\n" for record in choice["cutaway"]["trace"])
        trace = Trace.parse(b"".join(lines))
        self.tokenizer.known.update(trace.tokens)
        made = (choice.get("message") or {}).get("tool_calls") or ()
        calls = ((call["id"], call[call["type"]]) for call in made)
        tools = (ToolCall(i, c["name"], c.get("arguments", c.get("input", ""))) for i, c in calls)
        return ServedAnswer(trace, trace.text, tuple(tools))


class ServedTokenizer:
    """What token ids mean: from traces, else asked for."""

    def __init__(self, server: Server, model: str) -> None:
        self._server, self._model = server, {"model": model}
        self.known = dict[int, Token]()

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to the text."""
        return self._token(token_id).bytes

    def token_name(self, token_id: int) -> str:
        """A token that adds none, as shown to a person."""
        return self._token(token_id).name or f"[{token_id}]"

    def _token(self, token_id: int) -> Token:
        if token_id not in self.known:
            text = self._server.post("/detokenize", {**self._model, "tokens": [token_id]})["prompt"]
            self.known[token_id] = Token(token_id, text.encode())
        return self.known[token_id]
