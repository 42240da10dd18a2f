"""The strings that a model writes around the calls of tools.

Knows the literal texts, the places of name, arguments and id between them, and which of them are
control tokens. The grammar and the call parser are both made of this description alone.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from itertools import takewhile
from typing import Any

from cutaway.text.tools.argument_form import ParameterList

TAGS = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]|.", re.DOTALL)  # a text's tags and other characters
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ID_LENGTH = 9  # what Mistral's templates insist on, and others do not mind


class Slot(Enum):
    """A place between literal texts: the tool's name, the call's id, or its number in a chat."""

    NAME = "name"
    ID = "id"
    NUMBER = "number"


Parts = tuple["str | Slot", ...]


@dataclass(frozen=True)
class Dialect:
    """begin  head ARGUMENTS tail  (between  head ARGUMENTS tail)…  end.

    begin, end: around all calls of an answer, "" where there is nothing around them
    head:       from a call's first character up to its arguments; holds Slot.NAME
    tail:       from the arguments to the call's end
    between:    between two calls
    many:       whether an answer may hold more than one call
    form:       how the arguments are written; None: as a JSON object
    control:    name -> id of the model's control tokens among these texts
    """

    head: Parts
    tail: Parts
    begin: str = ""
    between: str = ""
    end: str = ""
    many: bool = True
    form: ParameterList | None = None
    control: Mapping[str, int] = field(default_factory=dict)

    @property
    def opening(self) -> Parts:
        """All that precedes the first call's arguments."""
        return joined([self.begin, *self.head])

    @property
    def numbers(self) -> bool:
        """Whether calls have numbers, and ids that are made of these (``numbered``)."""
        return Slot.NUMBER in self.head

    @property
    def all_parts(self) -> Parts:
        """Of an answer with two calls, what is not keys and values of arguments."""
        form = self.form.texts if self.form else ()
        return (*self.opening, *form, *self.tail, self.between, *self.head, *self.tail, self.end)

    @property
    def trigger(self) -> str:
        """The beginning of the opening that nothing but a call may follow.

        "" where calls begin with no tag: there the whole answer is a call, or none of it.
        """
        first = self.opening[0]
        text = first if isinstance(first, str) else ""
        control = max((name for name in self.control if text.startswith(name)), key=len, default="")
        if control:
            return control
        tag = TAGS.match(text)
        return tag[0] if tag and len(tag[0]) > 1 else self.begin

    @property
    def token_bytes(self) -> dict[int, bytes]:
        """What a call parser must be fed for the control tokens of this dialect: their names."""
        return {token_id: name.encode() for name, token_id in self.control.items()}

    def write(self, calls: Iterable[tuple[str, str, str]]) -> str:
        """The text of ``calls``, each (name, arguments as JSON, id)."""
        written = [
            "".join(
                [
                    *_filled(self.head, name, call_id),
                    self.form.write(json.loads(arguments)) if self.form else arguments,
                    *_filled(self.tail, name, call_id),
                ]
            )
            for name, arguments, call_id in calls
        ]
        return self.begin + self.between.join(written) + self.end


def joined(parts: Sequence[str | Slot]) -> Parts:
    """The same parts, neighbouring texts put together and empty ones left out."""
    found: list[str | Slot] = []
    for part in parts:
        if isinstance(part, str) and found and isinstance(found[-1], str):
            found[-1] += part
        elif part != "":
            found.append(part)
    return tuple(found)


def same(a: str, b: str, backwards: bool = False) -> int:
    """How many characters are the same from an end on, no tag counted in part."""
    step = -1 if backwards else 1
    pairs = zip(TAGS.findall(a)[::step], TAGS.findall(b)[::step], strict=False)
    return sum(len(one) for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _filled(parts: Parts, name: str, call_id: str) -> list[str]:
    slots = {Slot.NAME: name, Slot.ID: call_id, Slot.NUMBER: call_id.rpartition(":")[2]}
    return [slots[part] if isinstance(part, Slot) else part for part in parts]


def call_id(request: str, index: int) -> str:
    """The id of a request's call number ``index``: nine letters and digits, always the same."""
    number = int.from_bytes(blake2b(f"{request}/{index}".encode(), digest_size=8).digest())
    digits = []
    for _ in range(ID_LENGTH):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(digits)


def numbered(name: str, number: int | str) -> str:
    """The id of a call of a model that counts them: Kimi K2's form."""
    return f"functions.{name}:{number}"


def as_json(value: Any) -> str:
    """JSON as models read it."""
    return json.dumps(value, ensure_ascii=False)


def _json_dialect(arguments: str, before: str, after: str, **others: Any) -> Dialect:
    head = (before + '{"name": "', Slot.NAME, f'", "{arguments}": ')
    return Dialect(head, ("}" + after,), **others)


OURS = _json_dialect("arguments", "<tool_call>\n", "\n</tool_call>", between="\n")
"""For templates that know no tools: the form that Qwen and Hermes write."""

_DEEPSEEK = ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", Slot.NAME, "\n```json\n")
_ARGUMENTS = "<|tool_call_argument_begin|>"
_KIMI = ("<|tool_call_begin|>functions.", Slot.NAME, ":", Slot.NUMBER, _ARGUMENTS)

UNRENDERED = {
    _ARGUMENTS: Dialect(
        _KIMI,
        ("<|tool_call_end|>",),
        begin="<|tool_calls_section_begin|>",
        end="<|tool_calls_section_end|>",
    ),
    "<｜tool▁calls▁begin｜>": Dialect(
        _DEEPSEEK,
        ("\n```<｜tool▁call▁end｜>",),
        begin="<｜tool▁calls▁begin｜>",
        between="\n",
        end="<｜tool▁calls▁end｜>",
    ),
    "<|/tool|>": _json_dialect(
        "arguments", "", "", begin="<|tool_call|>[", between=", ", end="]<|/tool_call|>"
    ),
    "<|tool_call|>": _json_dialect(
        "arguments", "", "", begin="<|tool_call|>[", between=", ", end="]"
    ),
}
"""Of templates that write no calls: a text in the template -> its dialect.

Phi-4-mini closes the list, Granite 3 does not. llama.cpp's templates of Kimi K2 and DeepSeek R1
need more than Jinja's sandbox allows.
"""
