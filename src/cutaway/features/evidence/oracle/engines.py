"""Ask other engines for answers with log-probabilities: servers, and transformers in process.

vLLM, SGLang, llama-server, Ollama and cutaway are each recognised by an answer that no other server
gives. Any other server is asked by OpenAI's protocol; the bytes of its tokens give the tokens' ids.
This module judges no answer.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from cutaway.errors import InputError
from cutaway.features.evidence.oracle.answers import EngineAnswer, checked_ids, checked_logprob
from cutaway.requests.base import BaseLLM
from cutaway.rerun.asking import AnswerPart, RefusedError, Server, UnreadableError

_BYTE = re.compile(
    r"<0x[0-9A-F]{2}>"
)  # a byte's token: not used where another token has the same bytes
_ESCAPED = re.compile(r"bytes:((?:\\x[0-9a-fA-F]{2})+)")


class TokenWords:
    """Token ids by their bytes.

    Where several tokens have the same bytes, the lowest id wins; a byte token, such as <0x0A>, wins
    only if no other token has its bytes.
    """

    def __init__(self, llm: BaseLLM) -> None:
        self.llm = llm

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        tokenizer, ids = self.llm.tokenizer, dict[bytes, int]()
        token_ids = range(tokenizer.vocab_size)
        names = {i: tokenizer.token_name(i) for i in token_ids}
        for token_id in sorted(token_ids, key=lambda i: bool(_BYTE.fullmatch(names[i]))):
            if data := tokenizer.token_bytes(token_id):
                ids.setdefault(data, token_id)
        for token_id in token_ids:
            if not tokenizer.token_bytes(token_id):
                ids.setdefault(names[token_id].encode(), token_id)
        return ids

    def id_of(self, data: bytes) -> int:
        """Return the token with these bytes; InputError where the model has none."""
        if (token_id := self._ids.get(data)) is None:
            raise InputError(
                f"the server tells a token {data!r}, which {self.llm.name} has not: another model, "
                "or a server that tells no whole tokens"
            )
        return token_id

    def bytes_of(self, token: str) -> bytes:
        """The bytes of a token; OpenAI writes bytes:\\xe2 for a token that is not UTF-8."""
        if match := _ESCAPED.fullmatch(token):
            return bytes.fromhex(match[1].replace("\\x", ""))
        return token.encode()

    def text(self, ids: Iterable[int]) -> str:
        """Return the text of ids; control tokens are written by name."""
        return self.llm.detokenize(ids, special=True)


# -- servers ---------------------------------------------------------------------------------------


Ids = Sequence[int]
Body = Mapping[str, Any]

_KNOWN_BY = {
    "sglang": ("/get_model_info", "model_path"), "llama-server": ("/props", "total_slots"),
    "ollama": ("/api/tags", "models"), "vllm": ("/version", "version"),
}  # fmt: skip
"""Kind -> a path, and a field that only this kind answers there: some servers answer any path."""
_NUMBERS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def kind_of(server: Server) -> str:
    """Return vllm, sglang, llama-server, ollama or cutaway, and openai for any other server."""
    with suppress(RefusedError, UnreadableError):
        if server.get("/v1/models")["data"][0]["owned_by"].value == "cutaway":
            return "cutaway"
    for kind, (path, field) in _KNOWN_BY.items():
        with suppress(RefusedError, UnreadableError):
            if server.get(path).has(field):
                return kind
    return "openai"


def ask(
    server: Server, llm: BaseLLM, prompts: Sequence[Any], *,
    model: str = "", max_tokens: int = 64, seed: int = 0, **settings: Any,
) -> list[EngineAnswer]:  # fmt: skip
    """Let the server write after each prompt, with log-probabilities.

    prompts   token ids, or the messages of a conversation, from which the server makes a prompt
    model     the model's name at the server; "": the first that the server lists
    settings  temperature, top_p, top_k, min_p, repetition_penalty: only those given are sent

    CutawayError where the server fails, InputError where it gives no log-probabilities.
    """
    if unknown := [name for name in settings if name not in _NUMBERS]:
        raise InputError(unknown[0], f" is not sent to a server: {', '.join(_NUMBERS)} are")
    kind, words = kind_of(server), TokenWords(llm)
    common = {"max_tokens": max_tokens, "seed": seed, **settings}
    name = {"model": model or server.model()}
    answers = []
    for prompt in prompts:
        if prompt and isinstance(prompt[0], dict):
            answers.append(_chat(server, words, prompt, {**name, **common}, kind))
        else:
            answers.append(_FORMS[kind](server, words, tuple(prompt), {**name, **common}))
    return answers


def ask_echo(server: Server, llm: BaseLLM, ids: Ids, model: str = "") -> EngineAnswer:
    """Ask the server for the log-probabilities of these given tokens, except the first."""
    name, words = {"model": model or server.model()}, TokenWords(llm)
    kind, (first, *rest) = kind_of(server), ids
    if kind == "sglang":
        request = {"input_ids": [*ids], "return_logprob": True, "logprob_start_len": 0}
        request |= {"sampling_params": {"max_new_tokens": 0}}
        tokens = server.post("/generate", request)["meta_info"]["input_token_logprobs"]
        return _make_answer(words, (first,), *_pairs([*tokens][1:]))
    body = {**name, "prompt": [*ids], "max_tokens": 1, "temperature": 0}
    if kind in ("vllm", "cutaway"):
        answer = server.post("/v1/completions", {**body, "prompt_logprobs": 1})
        rows = [*answer["choices"][0]["prompt_logprobs"]][1:]
        pairs = zip(rest, rows, strict=False)
        return _make_answer(
            words, (first,), rest, [row[str(i)]["logprob"].logprob for i, row in pairs]
        )
    choice = server.post("/v1/completions", {**body, "echo": True, "logprobs": 1})["choices"][0]
    logprobs = choice.get("logprobs")
    logs = [token.logprob for token in logprobs.each("token_logprobs")] if logprobs else []
    if len(logs) < len(ids):
        raise InputError(f"{server.url} does not tell the log-probabilities of a prompt (echo)")
    return _make_answer(words, (first,), rest, logs[1 : len(ids)])


def _vllm(server: Server, words: TokenWords, ids: Ids, body: Body) -> EngineAnswer:
    request = {**body, "prompt": [*ids], "logprobs": 1, "return_token_ids": True}
    choice = server.post("/v1/completions", request)["choices"][0]
    if not (token_parts := choice.each("token_ids")):  # vLLM before 0.10.2
        return _openai(server, words, ids, body)
    logprobs = [part.logprob for part in choice["logprobs"]["token_logprobs"]]
    return _make_answer(words, ids, [part.whole for part in token_parts], logprobs)


def _sglang(server: Server, words: TokenWords, ids: Ids, body: Body) -> EngineAnswer:
    params = {k: v for k, v in body.items() if k in _NUMBERS}
    params |= {"max_new_tokens": body["max_tokens"], "sampling_seed": body["seed"]}
    request = {"input_ids": [*ids], "sampling_params": params, "return_logprob": True}
    tokens = server.post("/generate", request)["meta_info"]["output_token_logprobs"]
    return _make_answer(words, ids, *_pairs(tokens))


def _pairs(parts: Iterable[AnswerPart]) -> tuple[list[int], list[float | None]]:
    """Split SGLang's [log-probability, id, …] of each token into ids and log-probabilities."""
    tokens = [*parts]
    return [token[1].whole for token in tokens], [token[0].logprob for token in tokens]


def _llama_server(server: Server, words: TokenWords, ids: Ids, body: Body) -> EngineAnswer:
    params = {
        k: v for k, v in body.items() if k in ("temperature", "top_p", "top_k", "min_p", "seed")
    }
    params["repeat_penalty"] = body.get("repetition_penalty", 1.0)
    request = {"prompt": [*ids], "n_predict": body["max_tokens"], "n_probs": 1, **params}
    tokens = server.post("/completion", request).each("completion_probabilities")
    return _make_answer(
        words, ids, [t["id"].whole for t in tokens], [t["logprob"].logprob for t in tokens]
    )


def _ollama(server: Server, words: TokenWords, ids: Ids, body: Body) -> EngineAnswer:
    options = {
        k: v for k, v in body.items() if k in ("temperature", "top_p", "top_k", "min_p", "seed")
    }
    options |= {"num_predict": body["max_tokens"]}
    options["repeat_penalty"] = body.get("repetition_penalty", 1.0)
    request = {"model": body["model"], "prompt": words.text(ids), "raw": True, "stream": False}
    answer = server.post("/api/generate", {**request, "logprobs": True, "options": options})
    return _read_tokens(words, ids, answer.each("logprobs"))


def _openai(server: Server, words: TokenWords, ids: Ids, body: Body) -> EngineAnswer:
    request = {**body, "logprobs": 1}
    try:
        choice = server.post("/v1/completions", {**request, "prompt": [*ids]})["choices"][0]
    except RefusedError:  # it takes no token ids
        choice = server.post("/v1/completions", {**request, "prompt": words.text(ids)})["choices"][
            0
        ]
    logprobs = choice.get("logprobs")
    if logprobs is None:
        return _make_answer(words, ids, (), ())
    if content := logprobs.each("content"):
        return _read_tokens(words, ids, content)
    token_ids = [words.id_of(words.bytes_of(token.text)) for token in logprobs.each("tokens")]
    return _make_answer(
        words, ids, token_ids, [part.logprob for part in logprobs.each("token_logprobs")]
    )


def _chat(server: Server, words: TokenWords, messages: Any, body: Body, kind: str) -> EngineAnswer:
    request = {**body, "messages": messages, "logprobs": True, "top_logprobs": 1}
    request |= {"return_token_ids": True} if kind == "vllm" else {}
    answer = server.post("/v1/chat/completions", request)
    choice = answer["choices"][0]
    logprobs = choice.get("logprobs")
    engine_answer = _read_tokens(words, (), logprobs.each("content") if logprobs else [])
    prompt_ids = [part.whole for part in answer.each("prompt_token_ids")]
    token_ids = [part.whole for part in choice.each("token_ids")] or engine_answer.token_ids
    chat_answer = _make_answer(
        words, prompt_ids or words.llm.chat_ids(messages), token_ids, engine_answer.logprobs
    )
    return replace(chat_answer, messages=tuple(messages))


def _read_tokens(words: TokenWords, ids: Ids, tokens: Sequence[AnswerPart]) -> EngineAnswer:
    """Read tokens that come with their bytes or texts, and perhaps with ids."""
    token_ids = [t["id"].whole if t.has("id") else words.id_of(_bytes(words, t)) for t in tokens]
    return _make_answer(words, ids, token_ids, [t["logprob"].logprob for t in tokens])


def _bytes(words: TokenWords, token: AnswerPart) -> bytes:
    return (
        token["bytes"].byte_string if token.each("bytes") else words.bytes_of(token["token"].text)
    )


def _make_answer(
    words: TokenWords, prompt: Ids, ids: Sequence[int], logprobs: Sequence[float | None]
) -> EngineAnswer:
    if not ids or len(ids) != len(logprobs):
        raise InputError("the server told no log-probabilities of its tokens: ask another endpoint")
    prompt_ids = checked_ids("the server's prompt", list(prompt), words.llm)
    token_ids = checked_ids("the server's tokens", list(ids), words.llm)
    checked_logprobs = (
        checked_logprob(f"the server's logprobs[{i}]", p) for i, p in enumerate(logprobs)
    )
    return EngineAnswer(prompt_ids, token_ids, tuple(checked_logprobs))


_FORMS: Mapping[str, Callable[[Server, TokenWords, Ids, Body], EngineAnswer]] = {
    "vllm": _vllm, "sglang": _sglang, "llama-server": _llama_server, "ollama": _ollama,
    "cutaway": _openai, "openai": _openai,
}  # fmt: skip


# -- transformers, which must be installed, as torch must ------------------------------------------


_OFF = {
    "top_k": 0, "top_p": 1.0, "min_p": None, "typical_p": 1.0, "repetition_penalty": 1.0,
}  # fmt: skip
"""Sampler settings that transformers has, too, each with its neutral value."""


def ask_transformers(
    path: str | Path,
    prompts: Sequence[Sequence[int]],
    *,
    dtype: str = "float32",
    tell: Literal["final", "raw"] = "final",
    max_tokens: int = 64,
    seed: int = 0,
    **settings: Any,
) -> list[EngineAnswer]:
    """Let transformers write after each prompt, with log-probabilities.

    path      a folder that transformers saved, or a .gguf file, whose weights it unpacks
    dtype     float32, bfloat16 or float16
    tell      log-probabilities after its processors and warpers (final), or before them (raw)
    settings  temperature (default 1), top_k, top_p, min_p, typical_p, repetition_penalty

    Raises InputError where torch or transformers is missing or cannot load the model, or a setting
    is not among these.
    """
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise InputError(
            f"transformers in this process needs torch and transformers: {error}"
        ) from error
    options = _generation_options(settings)
    model = _from_pretrained(AutoModelForCausalLM, Path(path), getattr(torch, dtype))
    answers = []
    for number, ids in enumerate(prompts):
        torch.manual_seed(seed + number)
        with torch.no_grad():
            output = model.generate(
                torch.tensor([list(ids)]), max_new_tokens=max_tokens, return_dict_in_generate=True,
                output_scores=tell == "final", output_logits=tell == "raw", **options,
            )  # fmt: skip
        new = output.sequences[0, len(ids) :].tolist()
        rows = torch.cat(output.scores if tell == "final" else output.logits).float()
        logs = rows.log_softmax(-1)[torch.arange(len(new)), torch.tensor(new)].tolist()
        answers.append(EngineAnswer(tuple(ids), tuple(new), tuple(logs)))
    return answers


def _from_pretrained(kind: Any, path: Path, dtype: Any) -> Any:
    """Load a folder or a .gguf file. kind: a class of transformers; dtype: a type of torch."""
    if not path.exists():
        raise InputError(f"transformers: there is no {path}: name a folder or a .gguf file")
    is_gguf = path.suffix == ".gguf"
    folder, options = (path.parent, {"gguf_file": path.name}) if is_gguf else (path, {})
    try:
        return kind.from_pretrained(folder, dtype=dtype, **options)
    except (OSError, ValueError, ImportError) as error:
        raise InputError(f"transformers cannot load {path}: {error}") from error


def _generation_options(settings: dict[str, Any]) -> dict[str, Any]:
    for name in settings:
        if name not in _OFF and name != "temperature":
            raise InputError(f"transformers has no {name} that means the same: leave it out")
    temperature = settings.get("temperature", 1.0)
    if not temperature:
        return {"do_sample": False, "repetition_penalty": settings.get("repetition_penalty", 1.0)}
    options = {k: v for k, v in (_OFF | settings).items() if v is not None}
    return {"do_sample": True, **options, "temperature": float(temperature)}
