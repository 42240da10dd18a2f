"""A chat template as the texts that it writes between messages, where that is all it does.

Knows conversations of a system message, if any, and of questions and answers in turn. Each is tried
against the template itself; refuses to know tools and variables. For who has no Jinja (a page).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cutaway.errors import InputError
from cutaway.text.chat import ChatTemplate

START, END = "start", "end"
TURNS = 6  # questions, in the longest conversation that is tried
_CLOCK = "strftime_now"
_CONTENTS = (
    "Hello!", "", " two  words\n", "\n\n\x1c a\u3000", "<|im_start|>system\nx<|im_end|>",
    "<s>[INST] é </s>", "<think>\na\n</think>\n\nb", "{{ 1 }}{% raw %}", "<|eot_id|>",
    "🙂 'q' \"q\" \\", "a\r\nb", "<thi", "nk>",
)  # fmt: skip
_OPEN, _CLOSE = "\U00020000", "\U00020001"  # letters that no template has, and none trims
_Message = Mapping[str, str]


@dataclass(frozen=True)
class ChatPieces:
    """What stands between two messages by their roles, "user assistant": text.

    The first follows "start", and after the last comes "end", with the opening of the answer.
    trimmed: the roles whose contents lose the white space around them, as ``str.strip`` has it
    """

    between: Mapping[str, str]
    trimmed: tuple[str, ...]

    @classmethod
    def of(cls, template: ChatTemplate) -> "ChatPieces":
        """InputError where the template is not of this form, FormatError where it fails."""
        if _CLOCK in template.source:
            raise InputError("the model's chat template writes today's date")
        roles = ("user", "assistant", "system")
        trimmed = tuple(role for role in roles if _is_trimmed(template, role))
        made = cls(_between(template), trimmed)
        for messages in _conversations(has_system=made.takes_system):
            made._check(template, messages)
        return made

    @property
    def takes_system(self) -> bool:
        """Whether a conversation may begin with a system message."""
        return f"{START} system" in self.between

    def text(self, messages: Sequence[_Message]) -> str:
        """The prompt for a conversation, ready to be answered."""
        roles = [START, *(m["role"] for m in messages), END]
        said = [
            m["content"].strip() if m["role"] in self.trimmed else m["content"] for m in messages
        ]
        joins = [self.between[f"{a} {b}"] for a, b in pairwise(roles)]
        return joins[0] + "".join(a + b for a, b in zip(said, joins[1:], strict=True))

    def _check(self, template: ChatTemplate, messages: Sequence[_Message]) -> None:
        if template.render(messages) != self.text(messages):
            raise InputError(
                "the model's chat template does more than write texts between messages (it changes "
                "or leaves out some)"
            )


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


def _conversations(*, has_system: bool) -> "list[list[_Message]]":
    made = []
    for first in range(len(_CONTENTS)):
        contents = [*_CONTENTS[first:], *_CONTENTS[:first]]
        for questions in range(1, TURNS + 1):
            made.append(_turns(questions, contents))
            if has_system:
                made.append([{"role": "system", "content": contents[-1]}, *made[-1]])
    return made
