"""The marks around a model's thoughts, found by letting its chat template write one.

Knows the fields in which templates take a thought, and the marks of families whose templates write
none. Refuses to know what is done with the marks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cutaway.errors import FormatError, InputError
from cutaway.text.harmony import Harmony
from cutaway.text.thinking import Thinking
from cutaway.text.tools.dialect import TAGS

if TYPE_CHECKING:
    from cutaway.text.chat import ChatTemplate
    from cutaway.text.tokenizer import Tokenizer

_THOUGHT, _SAID, _NAME = "cutaway probe thought", "cutaway probe text", "cutaway_probe_tool"
_HARMONY = f"<|channel|>analysis<|message|>{_THOUGHT}<|end|>"
_USER = {"role": "user", "content": "cutaway probe question"}
_FIELDS = ("reasoning_content", "reasoning", "thinking")
_VARIABLES = {"add_generation_prompt": False, "enable_thinking": True, "thinking": True}
_TAG = re.compile(TAGS.pattern.removesuffix("|."))  # without its other characters

UNRENDERED = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel>thought\n", "<channel|>"),
)
"""Of templates that drop every thought: marks that are in the template's source."""


def thinking_of(template: ChatTemplate, tokenizer: Tokenizer) -> Thinking | None:
    """How a model writes thoughts, behind the prompt of a question; None where it has none."""
    found = _found(template, tokenizer)
    return found and found.behind(template.render([{"role": "user", "content": "a"}]))


def _found(template: ChatTemplate, tokenizer: Tokenizer) -> Thinking | None:
    if any(_HARMONY in _tried(template, messages) for messages in _conversations()):
        return Harmony.known_to(tokenizer)
    marks = _marks(template, tokenizer)
    return marks and Thinking(*marks, control=_tokens("".join(marks), tokenizer))


def _tokens(marks: str, tokenizer: Tokenizer) -> dict[str, int]:
    """name -> id of what is one token in these marks: control tokens, and whole tags."""
    tags = {tag: _encoded(tag, tokenizer) for tag in _TAG.findall(marks)}
    single = {tag: ids[0] for tag, ids in tags.items() if len(ids) == 1}
    return {**single, **tokenizer.control_tokens(marks)}


def _encoded(tag: str, tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(tag, special=True, add_bos=False, goes_on=True)


def _marks(template: ChatTemplate, tokenizer: Tokenizer) -> tuple[str, str] | None:
    """Before and after a thought.

    Marks that only the template's source has count where all their tags are tokens.
    """
    for messages in _conversations():
        if marks := _between(template, messages):
            return marks
    for marks in UNRENDERED:
        tags = _TAG.findall("".join(marks))
        if all(tag in template.source for tag in tags) and all(
            len(_encoded(tag, tokenizer)) == 1 for tag in tags
        ):
            return marks
    return None


def _conversations() -> Iterator[list[dict[str, Any]]]:
    """With a thought in each of the forms that templates take."""
    fields = dict.fromkeys(_FIELDS, _THOUGHT)
    said = {"role": "assistant", "content": _SAID}
    yield [_USER, said | fields]
    for thought in (_THOUGHT, [{"type": "text", "text": _THOUGHT}]):
        parts = [{"type": "thinking", "thinking": thought}, {"type": "text", "text": _SAID}]
        yield [_USER, said | {"content": parts}]
    blocks = [{"type": "thoughts", "text": _THOUGHT}, {"type": "response", "text": _SAID}]
    yield [_USER, said | {"content": {"blocks": blocks}}]
    for arguments in ({"a": 1}, '{"a": 1}'):  # only beside a call
        function = {"name": _NAME, "arguments": arguments}
        call = {"id": "cutProbe1", "type": "function", "function": function}
        yield [_USER, {"role": "assistant", "content": "", "tool_calls": [call]} | fields]


def _between(
    template: ChatTemplate, messages: Sequence[Mapping[str, Any]]
) -> tuple[str, str] | None:
    """The marks in a conversation: the tags next to the thought, and the blanks around them."""
    text = _tried(template, messages)
    before, thought, rest = text.partition(_THOUGHT)
    rest, answer, _ = rest.partition(_NAME if "tool_calls" in messages[-1] else _SAID)
    opening, closing = [*_TAG.finditer(before)], _TAG.search(rest)
    if not (thought and answer and opening and closing) or rest[: closing.start()].strip():
        return None
    first, last = opening[-1][0], closing[0]
    asked, _, behind = _tried(template, [_USER]).partition(_USER["content"])
    if first in _TAG.findall(asked)[-1:] or last in _TAG.findall(behind)[:1]:  # tags of turns
        return None
    if "tool_calls" in messages[-1]:
        bare = {k: v for k, v in messages[-1].items() if k not in _FIELDS}
        plain = _tried(template, [_USER, bare])
        if last in plain and first not in plain:  # a tag of calls
            return None
    size = closing.end() + len(rest[closing.end() :]) - len(rest[closing.end() :].lstrip())
    return before[opening[-1].start() :], rest[:size]


def _tried(template: ChatTemplate, messages: Sequence[Mapping[str, Any]]) -> str:
    """The text, "" where the template refuses or fails."""
    try:
        return template.written(messages, None, _VARIABLES)
    except (InputError, FormatError):
        return ""
