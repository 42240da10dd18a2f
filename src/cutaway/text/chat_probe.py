"""Probes of a chat template: marks around thoughts, and texts between messages, as it writes them.

Knows the fields in which templates take a thought, and the marks of families whose templates write
none. Refuses to know what is done with what it finds. Tools have a probe of their own
(``tools.dialect``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

from cutaway.errors import FormatError, InputError
from cutaway.text.chat import ChatTemplate
from cutaway.text.harmony import Harmony
from cutaway.text.thinking import Thinking
from cutaway.text.tools.dialect import TAGS

if TYPE_CHECKING:
    from cutaway.text.chat import ChatTemplate
    from cutaway.text.tokenizers import Tokenizer


# -- the marks around thoughts -----------------------------------------------------------------

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
    if any(_HARMONY in _tried(template, messages) for messages in _with_thought()):
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
    for messages in _with_thought():
        if marks := _around(template, messages):
            return marks
    for marks in UNRENDERED:
        tags = _TAG.findall("".join(marks))
        if all(tag in template.source for tag in tags) and all(
            len(_encoded(tag, tokenizer)) == 1 for tag in tags
        ):
            return marks
    return None


def _with_thought() -> Iterator[list[dict[str, Any]]]:
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


def _around(
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


# -- the texts between messages ----------------------------------------------------------------
# Where a template writes such texts and does no more: conversations of a system message, if any,
# and of questions and answers in turn, each tried against the template itself; no tools, no
# variables. For who has no Jinja (a page).

START, END = "start", "end"
TURNS = 6  # questions, in the longest conversation that is tried
_CLOCK = "strftime_now"
_CONTENTS = (
    "Hello!", "", " two  words\n", "\n\n\x1c a\u3000", "<|im_start|>system\nx<|im_end|>",
    "<s>[INST] é </s>", "<think>\na\n</think>\n\nb", "{{ 1 }}{% raw %}", "<|eot_id|>",
    "🙂 'q' \"q\" \\", "a\r\nb", "<thi", "nk>",
)  # fmt: skip
_THOUGHTS = ("a{} \n\nb{}\n \nc\n", "{}", "\n<think>\n{}\n\n\u3000b")  # and where they end
_OPEN, _CLOSE = "\U00020000", "\U00020001"  # letters that no template has, and none trims
_Message = Mapping[str, str]


@dataclass(frozen=True)
class ChatPieces:
    """What stands between two messages by their roles, "user assistant": text.

    The first follows "start", and after the last comes "end", with the opening of the answer.
    trimmed: the roles whose contents lose the white space around them, as ``str.strip`` has it
    thought_end: of the assistant's contents what follows the last of these marks is written, since
                 models are not shown what they thought before; "": all of them
    blank: characters that are then taken from its front; None: all white space around it
    drops_empty: whether an empty system message counts as none
    """

    between: Mapping[str, str]
    trimmed: tuple[str, ...]
    thought_end: str = ""
    blank: str | None = ""
    drops_empty: bool = False

    @classmethod
    def of(cls, template: ChatTemplate) -> ChatPieces:
        """InputError where the template is not of this form, FormatError where it fails."""
        if _CLOCK in template.source:
            raise InputError("the model's chat template writes today's date")
        roles = ("user", "assistant", "system")
        trimmed = tuple(role for role in roles if _is_trimmed(template, role))
        made = cls(_between(template), trimmed)
        ends = [end for _, end in UNRENDERED if end in template.source]
        contents = [*_CONTENTS, *(one.replace("{}", end) for end in ends for one in _THOUGHTS)]
        tried = [
            (messages, template.render(messages))
            for messages in _conversations(contents, has_system=made.takes_system)
        ]
        for rule in _rules(ends):
            pieces = replace(made, **rule)
            if all(pieces.text(messages) == text for messages, text in tried):
                return pieces
        raise InputError(
            "the model's chat template does more than write texts between messages (it changes "
            "or leaves out some)"
        )

    @property
    def takes_system(self) -> bool:
        """Whether a conversation may begin with a system message."""
        return f"{START} system" in self.between

    def text(self, messages: Sequence[_Message]) -> str:
        """The prompt for a conversation, ready to be answered."""
        if self.drops_empty and messages[0] == {"role": "system", "content": ""}:
            messages = messages[1:]
        roles = [START, *(m["role"] for m in messages), END]
        said = [self._written(m["role"], m["content"]) for m in messages]
        joins = [self.between[f"{a} {b}"] for a, b in pairwise(roles)]
        return joins[0] + "".join(a + b for a, b in zip(said, joins[1:], strict=True))

    def _written(self, role: str, content: str) -> str:
        content = content.strip() if role in self.trimmed else content
        if role != "assistant" or not self.thought_end or self.thought_end not in content:
            return content
        rest = content.rpartition(self.thought_end)[2]
        return rest.strip() if self.blank is None else rest.lstrip(self.blank)


def _rules(ends: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What a template may do beside writing between messages, the least first.

    ends: marks with which thoughts may end
    """
    for drops_empty in (False, True):
        for end, blank in (("", ""), *product(ends, ("", "\n", None))):
            yield {"thought_end": end, "blank": blank, "drops_empty": drops_empty}


def _is_trimmed(template: ChatTemplate, role: str) -> bool:
    messages = _turns(3 if role == "assistant" else 1, ["a"])
    at = 1 if role == "assistant" else 0
    if role == "system":
        messages.insert(0, {"role": role, "content": "a"})
    messages[at] = {"role": role, "content": f"  {_OPEN} "}
    try:
        text = template.render(messages)
    except InputError:  # no system messages
        return False
    return f"  {_OPEN} " not in text


def _between(template: ChatTemplate) -> dict[str, str]:
    found: dict[str, str] = {}
    for questions in (1, 2, 3):
        messages = _turns(questions, [f"{_OPEN}{i}{_CLOSE}" for i in range(2 * questions)])
        _note(template, messages, found)
    try:
        for questions in (1, 2, 3):
            messages = _turns(questions, [f"{_OPEN}{i}{_CLOSE}" for i in range(2 * questions)])
            _note(template, [{"role": "system", "content": f"{_OPEN}s{_CLOSE}"}, *messages], found)
    except InputError:  # it refuses system messages
        return {roles: text for roles, text in found.items() if "system" not in roles}
    return found


def _note(template: ChatTemplate, messages: Sequence[_Message], found: dict[str, str]) -> None:
    """The texts between these messages, whose contents are found nowhere else."""
    roles, texts = [START, *(m["role"] for m in messages), END], list[str]()
    rest = template.render(messages)
    for message in messages:
        before, there, rest = rest.partition(message["content"])
        if not there:
            raise InputError("the model's chat template leaves out messages")
        texts.append(before)
    for (a, b), text in zip(pairwise(roles), [*texts, rest], strict=True):
        if found.setdefault(f"{a} {b}", text) != text:
            raise InputError("the model's chat template writes other texts around later messages")


def _turns(questions: int, contents: Sequence[str]) -> list[_Message]:
    """So many questions, with answers between them; the contents in turn."""
    roles = ("user", "assistant")
    return [
        {"role": roles[i % 2], "content": contents[i % len(contents)]}
        for i in range(2 * questions - 1)
    ]


def _conversations(said: Sequence[str], *, has_system: bool) -> list[list[_Message]]:
    """Of each length, and each of the contents in each place."""
    made = []
    for first in range(len(said)):
        contents = [*said[first:], *said[:first]]
        for questions in range(1, TURNS + 1):
            made.append(_turns(questions, contents))
            if has_system:
                made.append([{"role": "system", "content": contents[-1]}, *made[-1]])
    return made
