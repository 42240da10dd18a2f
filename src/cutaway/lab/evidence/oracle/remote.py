"""Asking a server for answers with log-probabilities, in the form that it has.

vLLM, SGLang, llama-server, Ollama and cutaway are known by what only each of them answers; any
other is asked as OpenAI is, and its tokens are found by their bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from cutaway.errors import CutawayError, InputError
from cutaway.lab.asking import RefusedError, Server
from cutaway.lab.evidence.oracle.told import Told, checked_ids
from cutaway.lab.evidence.oracle.vocabulary import TokenWords
from cutaway.requests.base import BaseLLM

Ids = Sequence[int]
Answer = Mapping[str, Any]

_KNOWN_BY = {
    "sglang": "/get_model_info", "llama-server": "/props", "ollama": "/api/tags",
    "vllm": "/version",
}  # fmt: skip
_NUMBERS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def kind_of(server: Server) -> str:
    """vllm, sglang, llama-server, ollama, cutaway or openai (any other)."""
    with suppress(CutawayError, KeyError, IndexError, TypeError):
        if server.get("/v1/models")["data"][0]["owned_by"] == "cutaway":
            return "cutaway"
    for kind, path in _KNOWN_BY.items():
        with suppress(CutawayError):
            server.get(path)
            return kind
    return "openai"


def ask(
    server: Server, llm: BaseLLM, prompts: Sequence[Any], *,
    model: str = "", max_tokens: int = 64, seed: int = 0, **settings: Any,
) -> list[Told]:  # fmt: skip
    """Let the server write after each prompt, and tell log-probabilities.

    prompts   token ids, or messages of a conversation, of which the server makes a prompt
    model     its name there; "": the first that the server lists
    settings  temperature, top_p, top_k, min_p, repetition_penalty: only those given are sent

    CutawayError where the server fails, InputError where it tells no log-probabilities.
    """
    if others := [name for name in settings if name not in _NUMBERS]:
        raise InputError(f"{others[0]} is not sent to a server: {', '.join(_NUMBERS)} are")
    kind, words = kind_of(server), TokenWords(llm)
    common = {"max_tokens": max_tokens, "seed": seed, **settings}
    name = {"model": model or server.model()}
    told = []
    for prompt in prompts:
        if prompt and isinstance(prompt[0], dict):
            told.append(_chat(server, words, prompt, {**name, **common}, kind))
        else:
            told.append(_FORMS[kind](server, words, tuple(prompt), {**name, **common}))
    return told


def ask_echo(server: Server, llm: BaseLLM, ids: Ids, model: str = "") -> Told:
    """Let the server say how likely given tokens are, the first excepted (echo)."""
    name, words = {"model": model or server.model()}, TokenWords(llm)
    kind, (first, *rest) = kind_of(server), ids
    if kind == "sglang":
        asked = {"input_ids": [*ids], "return_logprob": True, "logprob_start_len": 0}
        asked |= {"sampling_params": {"max_new_tokens": 0}}
        told = server.post("/generate", asked)["meta_info"]["input_token_logprobs"][1:]
        return _told(words, (first,), [t[1] for t in told], [t[0] for t in told])
    body = {**name, "prompt": [*ids], "max_tokens": 1, "temperature": 0}
    if kind in ("vllm", "cutaway"):
        found = server.post("/v1/completions", {**body, "prompt_logprobs": 1})
        rows = found["choices"][0]["prompt_logprobs"][1:]
        return _told(
            words, (first,), rest, [r[str(i)]["logprob"] for i, r in zip(rest, rows, strict=True)]
        )
    found = server.post("/v1/completions", {**body, "echo": True, "logprobs": 1})
    logs = (found["choices"][0].get("logprobs") or {}).get("token_logprobs") or []
    if len(logs) < len(ids):
        raise InputError(f"{server.url} does not tell the log-probabilities of a prompt (echo)")
    return _told(words, (first,), rest, logs[1 : len(ids)])


def _vllm(server: Server, words: TokenWords, ids: Ids, body: Answer) -> Told:
    asked = {**body, "prompt": [*ids], "logprobs": 1, "return_token_ids": True}
    choice = server.post("/v1/completions", asked)["choices"][0]
    if not choice.get("token_ids"):  # before 0.10.2
        return _openai(server, words, ids, body)
    return _told(words, ids, choice["token_ids"], choice["logprobs"]["token_logprobs"])


def _sglang(server: Server, words: TokenWords, ids: Ids, body: Answer) -> Told:
    params = {k: v for k, v in body.items() if k in _NUMBERS}
    params |= {"max_new_tokens": body["max_tokens"], "sampling_seed": body["seed"]}
    asked = {"input_ids": [*ids], "sampling_params": params, "return_logprob": True}
    told = server.post("/generate", asked)["meta_info"]["output_token_logprobs"]
    return _told(words, ids, [t[1] for t in told], [t[0] for t in told])


def _llama_server(server: Server, words: TokenWords, ids: Ids, body: Answer) -> Told:
    params = {
        k: v for k, v in body.items() if k in ("temperature", "top_p", "top_k", "min_p", "seed")
    }
    params["repeat_penalty"] = body.get("repetition_penalty", 1.0)
    asked = {"prompt": [*ids], "n_predict": body["max_tokens"], "n_probs": 1, **params}
    told = server.post("/completion", asked).get("completion_probabilities") or []
    return _told(words, ids, [t["id"] for t in told], [t["logprob"] for t in told])


def _ollama(server: Server, words: TokenWords, ids: Ids, body: Answer) -> Told:
    options = {
        k: v for k, v in body.items() if k in ("temperature", "top_p", "top_k", "min_p", "seed")
    }
    options |= {"num_predict": body["max_tokens"]}
    options["repeat_penalty"] = body.get("repetition_penalty", 1.0)
    asked = {"model": body["model"], "prompt": words.text(ids), "raw": True, "stream": False}
    found = server.post("/api/generate", {**asked, "logprobs": True, "options": options})
    return _by_bytes(words, ids, found.get("logprobs") or [])


def _openai(server: Server, words: TokenWords, ids: Ids, body: Answer) -> Told:
    asked = {**body, "logprobs": 1}
    try:
        choice = server.post("/v1/completions", {**asked, "prompt": [*ids]})["choices"][0]
    except RefusedError:  # it takes no token ids
        choice = server.post("/v1/completions", {**asked, "prompt": words.text(ids)})["choices"][0]
    logprobs = choice.get("logprobs") or {}
    if logprobs.get("content"):
        return _by_bytes(words, ids, logprobs["content"])
    tokens = logprobs.get("tokens") or []
    found = [words.id_of(words.named(token)) for token in tokens]
    return _told(words, ids, found, logprobs.get("token_logprobs") or [])


def _chat(server: Server, words: TokenWords, messages: Any, body: Answer, kind: str) -> Told:
    asked = {**body, "messages": messages, "logprobs": True, "top_logprobs": 1}
    asked |= {"return_token_ids": True} if kind == "vllm" else {}
    answer = server.post("/v1/chat/completions", asked)
    [choice] = answer["choices"]
    told = _by_bytes(words, (), (choice.get("logprobs") or {}).get("content") or [])
    llm = words.llm
    read = answer.get("prompt_token_ids") or llm.chat_ids(messages)
    ids = choice.get("token_ids") or told.token_ids
    return Told(
        checked_ids("prompt_token_ids", read, llm), tuple(ids), told.logprobs, tuple(messages)
    )


def _by_bytes(words: TokenWords, ids: Ids, told: Sequence[Answer]) -> Told:
    """Tokens with their bytes or texts, and perhaps ids."""
    found = [t["id"] if "id" in t else words.id_of(_bytes(words, t)) for t in told]
    return _told(words, ids, found, [t["logprob"] for t in told])


def _bytes(words: TokenWords, token: Answer) -> bytes:
    return bytes(token["bytes"]) if token.get("bytes") else words.named(token["token"])


def _told(
    words: TokenWords, prompt: Ids, ids: Sequence[int], logprobs: Sequence[float | None]
) -> Told:
    if not ids or len(ids) != len(logprobs):
        raise InputError("the server told no log-probabilities of its tokens: ask another endpoint")
    return Told(
        tuple(prompt), checked_ids("the server's tokens", list(ids), words.llm), tuple(logprobs)
    )


_FORMS: Mapping[str, Callable[[Server, TokenWords, Ids, Answer], Told]] = {
    "vllm": _vllm, "sglang": _sglang, "llama-server": _llama_server, "ollama": _ollama,
    "cutaway": _openai, "openai": _openai,
}  # fmt: skip
