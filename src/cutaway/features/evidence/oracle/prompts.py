"""Other prompts that an engine may have read: begin tokens, templates, white space at the end."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from cutaway.api.llm import LLM
from cutaway.errors import CutawayError
from cutaway.features.evidence.oracle.told import Told

Ids = tuple[int, ...]
Prompt = Callable[[LLM, Told], Ids | None]


def variants(llm: LLM, answers: Sequence[Told]) -> Iterator[tuple[str, tuple[Told, ...]]]:
    """What else the prompts may have been, in words, and the answers after these prompts."""
    seen = {tuple(told.prompt_token_ids for told in answers)}
    for words, make in _WAYS.items():
        prompts = [_made(make, llm, told) for told in answers]
        ids = tuple(
            was.prompt_token_ids if p is None else p
            for p, was in zip(prompts, answers, strict=True)
        )
        if not any(prompts) or ids in seen or not all(ids):
            continue
        seen.add(ids)
        yield (
            words,
            tuple(replace(t, prompt_token_ids=i) for t, i in zip(answers, ids, strict=True)),
        )


def _made(make: Prompt, llm: LLM, told: Told) -> Ids | None:
    with suppress(CutawayError):  # a template may refuse such messages: then nobody sent them
        return make(llm, told)
    return None


def _no_begin(llm: LLM, told: Told) -> Ids | None:
    first, *rest = told.prompt_token_ids
    return (
        tuple(rest)
        if not llm.tokenizer.token_bytes(first) or first == llm.tokenizer.bos_id
        else None
    )


def _begin(llm: LLM, told: Told) -> Ids | None:
    begin = llm.tokenizer.bos_id
    return None if begin is None else (begin, *told.prompt_token_ids)


def _bare(llm: LLM, told: Told) -> Ids | None:
    """The words alone: of the messages, or of a prompt that the template seems to have made."""
    if told.messages:
        return tuple(llm.tokenize("\n".join(str(m.get("content", "")) for m in told.messages)))
    return None


def _as_message(llm: LLM, told: Told) -> Ids | None:
    if told.messages or llm.template is None:
        return None
    text = llm.detokenize(told.prompt_token_ids)
    return tuple(llm.chat_ids([{"role": "user", "content": text}]))


def _messages(change: Callable[[list[Mapping[str, Any]]], list[Mapping[str, Any]]]) -> Prompt:
    def make(llm: LLM, told: Told) -> Ids | None:
        return tuple(llm.chat_ids(change([*told.messages]))) if told.messages else None

    return make


def _no_system(messages: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [m for m in messages if m.get("role") != "system"]


def _system(text: str) -> Prompt:
    return _messages(lambda m: [{"role": "system", "content": text}, *_no_system(m)])


def _without_default_system(llm: LLM, told: Told) -> Ids | None:
    """Without what the template puts before the first message, as templates of others do not."""
    if llm.template is None or not told.messages or told.messages[0].get("role") == "system":
        return None
    system = {"role": "system", "content": "A"}
    before = llm.template.render([system], add_generation_prompt=False)
    whole = llm.template.render([system, *told.messages])
    if not whole.startswith(before):
        return None
    begin = _name(llm) if before.startswith(_name(llm)) else ""
    return tuple(llm.tokenize(begin + whole.removeprefix(before), special=True, add_bos=False))


def _no_generation_prompt(llm: LLM, told: Told) -> Ids | None:
    if llm.template is None or not told.messages:
        return None
    text = llm.template.render(told.messages, add_generation_prompt=False)
    return tuple(llm.tokenize(text, special=True, add_bos=False))


def _stripped(llm: LLM, told: Told) -> Ids | None:
    return _last(llm, told, lambda text: text.rstrip())


def _newline(llm: LLM, told: Told) -> Ids | None:
    return _last(llm, told, lambda text: text + "\n")


def _last(llm: LLM, told: Told, change: Callable[[str], str]) -> Ids | None:
    text = llm.detokenize(told.prompt_token_ids, special=True)
    if (other := change(text)) == text:
        return None
    begin = told.prompt_token_ids[0] == llm.tokenizer.bos_id
    ids = llm.tokenize(
        other.removeprefix(_name(llm)) if begin else other, special=True, add_bos=begin
    )
    return tuple(ids)


def _name(llm: LLM) -> str:
    begin = llm.tokenizer.bos_id
    return "" if begin is None else llm.tokenizer.token_name(begin)


_WAYS: Mapping[str, Prompt] = {
    "without the first token": _no_begin,
    "with the begin token before it": _begin,
    "the messages' words alone, without the chat template": _bare,
    "as a user's message in the chat template": _as_message,
    "without the system message that the template adds": _without_default_system,
    "without the system message": _messages(_no_system),
    "with an empty system message": _system(""),
    "with the system message 'You are a helpful assistant.'": _system(
        "You are a helpful assistant."
    ),
    "without what begins the answer (add_generation_prompt)": _no_generation_prompt,
    "without white space at its end": _stripped,
    "with a newline at its end": _newline,
}
