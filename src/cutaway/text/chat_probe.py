"""Find what a chat template writes around thoughts and between messages, by rendering probes.

Knows the fields in which templates take a thought, and the marks of families whose templates write
no thoughts. Does not know what other modules use the marks for. ``tools.dialect`` probes tools.
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
from cutaway.text.inkling import InklingMessages
from cutaway.text.muse import Muse
from cutaway.text.thinking import Thinking
from cutaway.text.tools.dialect import TAGS

if TYPE_CHECKING:
    from cutaway.text.chat import ChatTemplate
    from cutaway.text.tokenizers import Tokenizer


# -- the marks around thoughts -----------------------------------------------------------------

_PROBE_THOUGHT, _PROBE_TEXT, _PROBE_TOOL = (
    "cutaway probe thought",
    "cutaway probe text",
    "cutaway_probe_tool",
)
_MESSAGE_FORMS = (Harmony, Muse, InklingMessages)
_USER = {"role": "user", "content": "cutaway probe question"}
_FIELDS = ("reasoning_content", "reasoning", "thinking")
_VARIABLES = {"add_generation_prompt": False, "enable_thinking": True, "thinking": True}
_TAG = re.compile(TAGS.pattern.removesuffix("|."))  # whole tags only, no single characters

UNRENDERED = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel>thought\n", "<channel|>"),
)
"""(opening, closing) of templates that write no thought, but have both marks in their source."""


def thinking_of(template: ChatTemplate, tokenizer: Tokenizer) -> Thinking | None:
    """Return how a model writes thoughts after a question's prompt; None if it writes none."""
    thinking = _find_thinking(template, tokenizer)
    return thinking and thinking.with_prompt(template.render([{"role": "user", "content": "a"}]))


def _find_thinking(template: ChatTemplate, tokenizer: Tokenizer) -> Thinking | None:
    texts = [_render_or_empty(template, messages) for messages in _thought_conversations()]
    for form in _MESSAGE_FORMS:
        message = f"{form.before}{_PROBE_THOUGHT}{form.after}"
        if any(message in text for text in texts):
            return form.known_to(tokenizer)
    marks = _marks(template, tokenizer)
    return marks and Thinking(*marks, control=_tokens("".join(marks), tokenizer))


def _tokens(marks: str, tokenizer: Tokenizer) -> dict[str, int]:
    """Map text -> id for each control token and each tag of these marks that is one token."""
    tags = {tag: _encode_tag(tag, tokenizer) for tag in _TAG.findall(marks)}
    single = {tag: ids[0] for tag, ids in tags.items() if len(ids) == 1}
    return {**single, **tokenizer.control_tokens(marks)}


def _encode_tag(tag: str, tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(tag, special=True, add_bos=False, goes_on=True)


def _marks(template: ChatTemplate, tokenizer: Tokenizer) -> tuple[str, str] | None:
    """Return the marks before and after a thought.

    Marks that only the template's source has are used if each of their tags is one token.
    """
    for messages in _thought_conversations():
        if marks := _find_marks(template, messages):
            return marks
    for marks in UNRENDERED:
        tags = _TAG.findall("".join(marks))
        if all(tag in template.source for tag in tags) and all(
            len(_encode_tag(tag, tokenizer)) == 1 for tag in tags
        ):
            return marks
    return None


def _thought_conversations() -> Iterator[list[dict[str, Any]]]:
    """Yield conversations with a thought, one for each form in which templates take thoughts."""
    fields = dict.fromkeys(_FIELDS, _PROBE_THOUGHT)
    answer = {"role": "assistant", "content": _PROBE_TEXT}
    yield [_USER, answer | fields]
    for thinking in (_PROBE_THOUGHT, [{"type": "text", "text": _PROBE_THOUGHT}]):
        parts = [{"type": "thinking", "thinking": thinking}, {"type": "text", "text": _PROBE_TEXT}]
        yield [_USER, answer | {"content": parts}]
    blocks = [
        {"type": "thoughts", "text": _PROBE_THOUGHT},
        {"type": "response", "text": _PROBE_TEXT},
    ]
    yield [_USER, answer | {"content": {"blocks": blocks}}]
    for arguments in ({"a": 1}, '{"a": 1}'):  # some templates write a thought only with a call
        function = {"name": _PROBE_TOOL, "arguments": arguments}
        call = {"id": "cutProbe1", "type": "function", "function": function}
        yield [_USER, {"role": "assistant", "content": "", "tool_calls": [call]} | fields]


def _find_marks(
    template: ChatTemplate, messages: Sequence[Mapping[str, Any]]
) -> tuple[str, str] | None:
    """Return (opening, closing): the tags next to the thought, with white space; None if none."""
    text = _render_or_empty(template, messages)
    before, probe, rest = text.partition(_PROBE_THOUGHT)
    rest, answer, _ = rest.partition(_PROBE_TOOL if "tool_calls" in messages[-1] else _PROBE_TEXT)
    opening, closing = [*_TAG.finditer(before)], _TAG.search(rest)
    if not (probe and answer and opening and closing) or rest[: closing.start()].strip():
        return None
    first, last = opening[-1][0], closing[0]
    turn_start, _, turn_end = _render_or_empty(template, [_USER]).partition(_USER["content"])
    if (
        first in _TAG.findall(turn_start)[-1:] or last in _TAG.findall(turn_end)[:1]
    ):  # tags of turns
        return None
    if "tool_calls" in messages[-1]:
        bare = {k: v for k, v in messages[-1].items() if k not in _FIELDS}
        plain = _render_or_empty(template, [_USER, bare])
        if last in plain and first not in plain:  # a tag of calls
            return None
    size = closing.end() + len(rest[closing.end() :]) - len(rest[closing.end() :].lstrip())
    return before[opening[-1].start() :], rest[:size]


def _render_or_empty(template: ChatTemplate, messages: Sequence[Mapping[str, Any]]) -> str:
    """Render the messages; "" if the template refuses them or fails."""
    try:
        return template.render_prepared(messages, None, _VARIABLES)
    except (InputError, FormatError):
        return ""


# -- the texts between messages ----------------------------------------------------------------
# An exported page has no Jinja, so it writes prompts by these rules. They serve templates that only
# write fixed texts between messages. A conversation has an optional system message, then questions
# and answers in turn, without tools or variables. Each rule is tried against the template itself.

START, END = "start", "end"
TURNS = 6  # questions, in the longest conversation that is tried
_CLOCK = "strftime_now"
_CONTENTS = (
    "Hello!", "", " two  words\n", "\n\n\x1c a\u3000", "<|im_start|>system\nx<|im_end|>",
    "<s>[INST] é </s>", "<think>\na\n</think>\n\nb", "{{ 1 }}{% raw %}", "<|eot_id|>",
    "🙂 'q' \"q\" \\", "a\r\nb", "<thi", "nk>",
)  # fmt: skip
_THOUGHTS = ("a{} \n\nb{}\n \nc\n", "{}", "\n<think>\n{}\n\n\u3000b")  # {}: the closing mark
_OPEN, _CLOSE = "\U00020000", "\U00020001"  # letters that no template has or trims
_Message = Mapping[str, str]


@dataclass(frozen=True)
class ChatPieces:
    """The texts between two messages, by their roles: "user assistant" -> text.

    The two ends of the conversation count as roles, "start" and "end"; the text before "end" opens
    the answer.
    trimmed: the roles whose contents are stripped as by ``str.strip``
    thought_end: an assistant's content is written only from behind the last such mark, since
                 prompts leave out earlier thoughts; "": the whole content is written
    blank: characters stripped from the front of that rest; None: strip white space at both ends
    drops_empty: whether an empty system message is left out
    """

    between: Mapping[str, str]
    trimmed: tuple[str, ...]
    thought_end: str = ""
    blank: str | None = ""
    drops_empty: bool = False

    @classmethod
    def from_template(cls, template: ChatTemplate) -> ChatPieces:
        """Find the texts; FormatError if the template fails.

        InputError if the template does more than write texts between messages.
        """
        if _CLOCK in template.source:
            raise InputError("the model's chat template writes today's date")
        roles = ("user", "assistant", "system")
        trimmed = tuple(role for role in roles if _is_trimmed(template, role))
        plain = cls(_find_texts_between(template), trimmed)
        ends = [end for _, end in UNRENDERED if end in template.source]
        contents = [*_CONTENTS, *(form.replace("{}", end) for end in ends for form in _THOUGHTS)]
        examples = [
            (messages, template.render(messages))
            for messages in _conversations(contents, has_system=plain.takes_system)
        ]
        for rule in _rules(ends):
            pieces = replace(plain, **rule)
            if all(pieces.text(messages) == text for messages, text in examples):
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
        """Return the prompt for a conversation, up to the opening of the answer."""
        if self.drops_empty and messages[0] == {"role": "system", "content": ""}:
            messages = messages[1:]
        roles = [START, *(m["role"] for m in messages), END]
        contents = [self._write_content(m["role"], m["content"]) for m in messages]
        joins = [self.between[f"{a} {b}"] for a, b in pairwise(roles)]
        return joins[0] + "".join(a + b for a, b in zip(contents, joins[1:], strict=True))

    def _write_content(self, role: str, content: str) -> str:
        content = content.strip() if role in self.trimmed else content
        if role != "assistant" or not self.thought_end or self.thought_end not in content:
            return content
        rest = content.rpartition(self.thought_end)[2]
        return rest.strip() if self.blank is None else rest.lstrip(self.blank)


def _rules(ends: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield values for the fields of ``ChatPieces`` that are not texts; the simplest come first.

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


def _find_texts_between(template: ChatTemplate) -> dict[str, str]:
    texts_between: dict[str, str] = {}
    for questions in (1, 2, 3):
        messages = _turns(questions, [f"{_OPEN}{i}{_CLOSE}" for i in range(2 * questions)])
        _note(template, messages, texts_between)
    try:
        for questions in (1, 2, 3):
            messages = _turns(questions, [f"{_OPEN}{i}{_CLOSE}" for i in range(2 * questions)])
            _note(
                template,
                [{"role": "system", "content": f"{_OPEN}s{_CLOSE}"}, *messages],
                texts_between,
            )
    except InputError:  # it refuses system messages
        return {roles: text for roles, text in texts_between.items() if "system" not in roles}
    return texts_between


def _note(
    template: ChatTemplate, messages: Sequence[_Message], texts_between: dict[str, str]
) -> None:
    """Add the texts between these messages to ``texts_between``; no content may occur twice."""
    roles, texts = [START, *(m["role"] for m in messages), END], list[str]()
    rest = template.render(messages)
    for message in messages:
        before, there, rest = rest.partition(message["content"])
        if not there:
            raise InputError("the model's chat template leaves out messages")
        texts.append(before)
    for (a, b), text in zip(pairwise(roles), [*texts, rest], strict=True):
        if texts_between.setdefault(f"{a} {b}", text) != text:
            raise InputError("the model's chat template writes other texts around later messages")


def _turns(questions: int, contents: Sequence[str]) -> list[_Message]:
    """Return this number of questions with answers between them; they take ``contents`` in turn."""
    roles = ("user", "assistant")
    return [
        {"role": roles[i % 2], "content": contents[i % len(contents)]}
        for i in range(2 * questions - 1)
    ]


def _conversations(all_contents: Sequence[str], *, has_system: bool) -> list[list[_Message]]:
    """Return conversations of each length, with each of the contents in each place."""
    conversations = []
    for first in range(len(all_contents)):
        contents = [*all_contents[first:], *all_contents[:first]]
        for questions in range(1, TURNS + 1):
            conversations.append(_turns(questions, contents))
            if has_system:
                conversations.append(
                    [{"role": "system", "content": contents[-1]}, *conversations[-1]]
                )
    return conversations
