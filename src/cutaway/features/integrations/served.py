"""A model behind ``cutaway serve``, for tests of prompts: the methods of ``LLM`` that tests use,
over HTTP.

All assertions are on the trace, which the server sends with each answer. Servers other than
cutaway's send no trace, and are refused.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

from cutaway.errors import InputError
from cutaway.requests.base import check_text
from cutaway.requests.completion import ToolCall
from cutaway.rerun.asking import AnswerPart, Server, UnreadableError
from cutaway.text.grammar.compiler import Accepted
from cutaway.trace import Trace
from cutaway.trace.record import Token


@dataclass(frozen=True)
class ServedAnswer:
    """The trace of a run, and the tool calls that the server read in its text."""

    trace: Trace
    text: str
    tool_calls: tuple[ToolCall, ...]

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """The token ids of the prompt."""
        return self.trace.head.prompt_token_ids

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The token ids of the answer."""
        return self.trace.output_token_ids

    @property
    def steps(self) -> tuple[Any, ...]:
        """The steps, with the observation of each draw."""
        return self.trace.steps

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the logits of all steps: 16 hex digits."""
        return self.trace.end.fingerprint if self.trace.end else ""


@dataclass(frozen=True)
class ServedScore:
    """Log-probabilities of an answer's tokens."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    @property
    def total(self) -> float:
        """The sum of the log-probabilities."""
        return fsum(self.logprobs)


class ServedModel:
    """A model of a cutaway server. InputError if the server is not cutaway's.

    name      the model's name at the server; "": the first that the server lists
    identity  everything besides the request that answers depend on
    """

    def __init__(self, url: str, key: str = "", name: str = "") -> None:
        self._server = Server(url, key)
        models = self._server.get("/v1/models").each("data")
        if not (models and models[0].has("owned_by") and models[0]["owned_by"].value == "cutaway"):
            raise InputError(f"{url} is no server of cutaway, and tells no trace of an answer")
        self.name = name or models[0]["id"].text
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
        """The log-probabilities of each answer's tokens after the prompt."""
        body = {"text_1": list(prompt), "text_2": list(answers), "trace": True}
        data = self._server.post("/v1/score", {"model": self.name, **body})["data"]
        rows = [[*answer["cutaway"]["tokens"]] for answer in data]
        return [
            ServedScore(
                tuple(token["token_id"].whole for token in row),
                tuple(token["logprob"].number for token in row),
            )
            for row in rows
        ]

    def accepts(self, text: str, *, json_schema: Mapping[str, Any]) -> Accepted:
        """Whether a schema allows the text; this process checks it, not the server."""
        return check_text(text, json_schema=json_schema)

    def _answer(self, path: str, body: dict[str, Any]) -> ServedAnswer:
        request = {"model": self.name, **body, "trace": True}
        try:
            choice = self._server.post(path, request)["choices"][0]
        except TypeError as error:
            raise InputError(f"a server is asked in JSON: {error}") from error
        records = choice["cutaway"]["trace"]
        lines = (json.dumps(record.fields).encode() + b"\n" for record in records)
        try:
            trace = Trace.parse(b"".join(lines))
        except InputError as error:
            raise UnreadableError(f"{records.place}: {error}") from error
        self.tokenizer.tokens.update(trace.tokens)
        message = choice.get("message")
        calls = message.each("tool_calls") if message else ()
        return ServedAnswer(trace, trace.text, tuple(map(_tool_call, calls)))


def _tool_call(call: AnswerPart) -> ToolCall:
    says = call[call["type"].text]
    arguments = says.get("arguments") or says.get("input")
    return ToolCall(call["id"].text, says["name"].text, arguments.text if arguments else "")


class ServedTokenizer:
    """The bytes and names of tokens, from the traces so far, or else from the server."""

    def __init__(self, server: Server, model: str) -> None:
        self._server, self._model = server, {"model": model}
        self.tokens = dict[int, Token]()

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to the text."""
        return self._token(token_id).bytes

    def token_name(self, token_id: int) -> str:
        """The visible name of a token that adds no text."""
        return self._token(token_id).name or f"[{token_id}]"

    def _token(self, token_id: int) -> Token:
        if token_id not in self.tokens:
            reply = self._server.post("/detokenize", {**self._model, "tokens": [token_id]})
            self.tokens[token_id] = Token(token_id, reply["prompt"].text.encode())
        return self.tokens[token_id]
