"""The dialect of a model: the texts that it writes around tool calls.

Knows the literal texts, the places of name, arguments and id between them, and the texts that are
control tokens. Finds these by rendering calls with known parts in a chat template. The grammar and
the call parser depend on this description alone.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from hashlib import blake2b
from itertools import takewhile
from typing import Any

from cutaway.errors import InputError
from cutaway.text.tools.parameters import ParameterList

TAGS = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]|.", re.DOTALL)  # a tag, or any other character
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ID_LENGTH = 9  # Mistral's templates require it, others accept it


class Slot(Enum):
    """A place between literal texts: the tool's name, the call's id, or its number in a chat."""

    NAME = "name"
    ID = "id"
    NUMBER = "number"


Parts = tuple["str | Slot", ...]


@dataclass(frozen=True)
class Dialect:
    """begin  head ARGUMENTS tail  (between  head ARGUMENTS tail)…  end.

    begin, end: the texts around all calls of an answer; "": none
    head:       the text from a call's first character up to its arguments, with Slot.NAME
    tail:       the text from the arguments to the call's end
    between:    the text between two calls
    allows_several: whether an answer may have more than one call
    form:       how the arguments are written; None: as a JSON object
    control:    name -> id of the model's control tokens among these texts
    """

    head: Parts
    tail: Parts
    begin: str = ""
    between: str = ""
    end: str = ""
    allows_several: bool = True
    form: ParameterList | None = None
    control: Mapping[str, int] = field(default_factory=dict)

    @property
    def opening(self) -> Parts:
        """The text before the first call's arguments."""
        return join_parts([self.begin, *self.head])

    @property
    def numbers(self) -> bool:
        """Whether calls are numbered; their ids then contain the numbers (``numbered_id``)."""
        return Slot.NUMBER in self.head

    @property
    def all_parts(self) -> Parts:
        """The parts of an answer with two calls, without keys and values of arguments."""
        form = self.form.texts if self.form else ()
        return (*self.opening, *form, *self.tail, self.between, *self.head, *self.tail, self.end)

    @property
    def trigger(self) -> str:
        """The beginning of the opening, after which only a call may follow.

        "" if calls begin without a tag: then the answer has either calls or content, not both.
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
        """Map control token id -> the bytes that a call parser reads for it: its name."""
        return {token_id: name.encode() for name, token_id in self.control.items()}

    def write(self, calls: Iterable[tuple[str, str, str]]) -> str:
        """Return the text of ``calls``, each (name, arguments as JSON, id)."""
        call_texts = [
            "".join(
                [
                    *_fill_slots(self.head, name, call_id),
                    self.form.write(json.loads(arguments)) if self.form else arguments,
                    *_fill_slots(self.tail, name, call_id),
                ]
            )
            for name, arguments, call_id in calls
        ]
        return self.begin + self.between.join(call_texts) + self.end


def join_parts(parts: Sequence[str | Slot]) -> Parts:
    """Join adjacent texts, and leave out empty ones."""
    runs: list[str | Slot] = []
    for part in parts:
        if isinstance(part, str) and runs and isinstance(runs[-1], str):
            runs[-1] += part
        elif part != "":
            runs.append(part)
    return tuple(runs)


def same(a: str, b: str, backwards: bool = False) -> int:
    """Return how many characters two texts share at one end; a tag counts as a whole."""
    step = -1 if backwards else 1
    pairs = zip(TAGS.findall(a)[::step], TAGS.findall(b)[::step], strict=False)
    return sum(len(tag) for tag, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _fill_slots(parts: Parts, name: str, call_id: str) -> list[str]:
    slots = {Slot.NAME: name, Slot.ID: call_id, Slot.NUMBER: call_id.rpartition(":")[2]}
    return [slots[part] if isinstance(part, Slot) else part for part in parts]


def call_id(request: str, index: int) -> str:
    """Return the id of a call, nine letters and digits; the same call always gets the same id."""
    number = int.from_bytes(blake2b(f"{request}/{index}".encode(), digest_size=8).digest())
    digits = []
    for _ in range(ID_LENGTH):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(digits)


def numbered_id(name: str, number: int | str) -> str:
    """Return the id of a numbered call, in Kimi K2's form."""
    return f"functions.{name}:{number}"


def as_json(value: Any) -> str:
    """Return JSON as models read it."""
    return json.dumps(value, ensure_ascii=False)


def _json_dialect(arguments: str, before: str, after: str, **fields: Any) -> Dialect:
    head = (before + '{"name": "', Slot.NAME, f'", "{arguments}": ')
    return Dialect(head, ("}" + after,), **fields)


DEFAULT_DIALECT = _json_dialect("arguments", "<tool_call>\n", "\n</tool_call>", between="\n")
"""The dialect for templates without support for tools is the dialect of Qwen and Hermes."""

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
"""Text in the source of a template that writes no calls -> the dialect of its model.

Phi-4-mini closes the list, Granite 3 does not. Jinja's sandbox refuses llama.cpp's templates of
Kimi K2 and DeepSeek R1.
"""


# -- finding the form of arguments -------------------------------------------------------------
# If arguments are no JSON object, a rendered call is cut at its keys and values, which occur
# nowhere else.

KEY = "cutaway_key_a"
_SECOND = "cutaway_key_b"
_VALUE, _OTHER = "cutaway probe value", "cutaway probe other"
_NUMBER = 48151623

Write = Callable[[Mapping[str, Any]], str]  # arguments -> the text of a call


def parameter_list(write: Write) -> ParameterList | None:
    """Return the form in which ``write`` writes arguments; None if it is no parameter list."""
    empty, single = write({}), write({KEY: _VALUE})
    two, number = write({KEY: _VALUE, _SECOND: _OTHER}), write({KEY: _NUMBER})
    if not (
        _has_in_order(single, KEY, _VALUE)
        and _has_in_order(two, KEY, _VALUE, _SECOND, _OTHER)
        and _has_in_order(number, KEY, str(_NUMBER))
    ):
        return None
    opening, text_opening, behind = _cut(single, KEY, _VALUE)
    _, other_opening, other_behind = _cut(number, KEY, str(_NUMBER))
    size = same(opening, empty)
    head, tail = empty[:size], empty[size:]
    if not tail or not (behind.endswith(tail) and other_behind.endswith(tail)):
        return None
    closing, other_closing = behind.removesuffix(tail), other_behind.removesuffix(tail)
    before = opening.removeprefix(head)
    gap = two[two.index(_VALUE) + len(_VALUE) : two.index(_SECOND)]
    if not (gap.startswith(closing) and gap.endswith(before) and text_opening and other_opening):
        return None
    between = gap.removeprefix(closing).removesuffix(before)
    text, other = (text_opening, closing), (other_opening, other_closing)
    if text_opening[0] != other_opening[0] or not (closing or between):
        return None
    parameters = ParameterList(before, text, other, between)
    nested = replace(parameters, nested=True)
    deep = {KEY: {_SECOND: [_VALUE]}}
    return nested if nested.write(deep) in write(deep) else parameters


def _has_in_order(text: str, *pieces: str) -> bool:
    """Return whether the text has each piece exactly once, in this order."""
    places = [text.find(piece) for piece in pieces]
    return all(map((1).__eq__, map(text.count, pieces))) and places == sorted(places)


def _cut(text: str, key: str, value: str) -> tuple[str, str, str]:
    """Return the text before the key, between it and its value, and after the value."""
    before, rest = text.split(key, 1)
    middle, behind = rest.split(value, 1)
    return before, middle, behind


# -- finding the dialect of a template ---------------------------------------------------------
# A rendered conversation is cut at names and arguments that occur nowhere else.

RenderMessages = Callable[[Sequence[dict[str, Any]]], str]

_PROBE_TEXT = "cutaway probe text"
_USER = {"role": "user", "content": "cutaway probe question"}
_NAMES = ("cutaway_probe_a", "cutaway_probe_b")
_IDS = ("cutProbe1", "cutProbe2")  # nine letters and digits, as Mistral's templates require
_RESULT = "<|tool_response>"  # begins a result; Gemma 4 stops before it
_KEYS = ("cutaway_key_a", "cutaway_key_b")
_NUMBERS = ("481516", "234299")


def probe_calls(count: int, arguments_as_text: bool) -> list[dict[str, Any]]:
    """Return the first calls of the probe, as templates take them."""
    calls = []
    for name, call_id, key in list(zip(_NAMES, _IDS, _KEYS, strict=True))[:count]:
        arguments: Any = {key: 1}
        function = {
            "name": name,
            "arguments": json.dumps(arguments) if arguments_as_text else arguments,
        }
        calls.append({"id": call_id, "type": "function", "function": function})
    return calls


def find_dialect(render: RenderMessages, arguments_as_text: bool = False) -> Dialect | None:
    """Return the dialect in which ``render`` writes calls; None if it writes none.

    InputError if the arguments have an unknown form, or precede the name.
    """
    turns = _Turns(render)
    calls = _named_calls(turns, *probe_calls(2, arguments_as_text))
    if calls is None:
        return None
    first, second = calls
    form = _form(
        lambda arguments: turns.calls(_with_arguments(first, arguments)), arguments_as_text
    )
    cut = partial(_cut_list, form) if form else _cut_json
    opening, rest = cut(turns.calls(first), 0)
    if _NAMES[0] not in opening:
        raise InputError(
            "tools",
            ": this model writes a call's arguments before its name, which is not supported; "
            "use a model that writes the name first",
        )
    pair = turns.calls(first, second)
    if _KEYS[1] not in pair:
        return Dialect(
            join_parts(_slots(opening)), join_parts(_slots(rest)), allows_several=False, form=form
        )
    gap, _ = cut(cut(pair, 0)[1], 1)
    return _several(opening, rest, gap, form)


class _Turns:
    """The assistant's turns as a template writes them, after a question."""

    def __init__(self, render: RenderMessages) -> None:
        self._render = render
        self.plain = self.turn(_PROBE_TEXT)

    def turn(self, content: str | None, *calls: dict[str, Any]) -> str | None:
        """Render the question and a turn with these calls; None if the template refuses it."""
        message = {"role": "assistant", "content": content}
        try:
            return self._render([_USER, message | {"tool_calls": [*calls]} if calls else message])
        except InputError:
            return None

    def calls(self, *calls: dict[str, Any]) -> str:
        """Return the text of calls, after content if the template allows that."""
        before, _, after = (self.plain or "").partition(_PROBE_TEXT)
        for content in (_PROBE_TEXT, None, ""):
            text = self.turn(content, *calls) or ""
            _, _, behind = text.partition(_PROBE_TEXT)
            if after.strip() and behind.startswith(after.rstrip()):
                continue  # the content is a turn of its own
            if _NAMES[0] in (calls_text := _call_text(text, before, after)):
                return calls_text
        return ""


def _named_calls(
    turns: _Turns, first: dict[str, Any], second: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the calls in a form whose names the template writes; None if it writes no names."""
    call_turn = turns.turn(_PROBE_TEXT, first) or turns.turn("", first)
    if call_turn is None or _PROBE_TEXT not in (turns.plain or ""):
        return None
    if _NAMES[0] in call_turn:
        return first, second
    first, second = map(_with_number, (first, second), _NAMES, _NUMBERS)  # a part of the id
    return (first, second) if _NAMES[0] in (turns.turn(_PROBE_TEXT, first) or "") else None


def _several(opening: str, rest: str, gap: str, form: ParameterList | None) -> Dialect:
    """Return the dialect of a model that can write several calls.

    rest: the text after the arguments of a single call
    gap: the text between the arguments of the first call and those of the second
    """
    for probes in (_IDS, _NAMES, _NUMBERS):
        gap = gap.replace(probes[1], probes[0])
    tail = rest[: same(gap, rest)]
    head = opening[len(opening) - same(gap[len(tail) :], opening, backwards=True) :]
    between = gap[len(tail) : len(gap) - len(head)]
    begin, end = opening.removesuffix(head), rest.removeprefix(tail).removesuffix(_RESULT)
    parts = join_parts(_slots(head)), join_parts(_slots(tail))
    return Dialect(*parts, begin, between, end, form=form)


def _call_text(text: str, before: str, after: str) -> str:
    """Return the part of a rendered conversation that the model would write for its calls."""
    if _PROBE_TEXT in text:
        text = text.split(_PROBE_TEXT, 1)[1]
    else:
        text = text[same(text, before) :]
    return text[: len(text) - same(text, after, backwards=True)].strip()


def _with_number(call: dict[str, Any], name: str, number: str) -> dict[str, Any]:
    return {**call, "id": numbered_id(name, number)}


def _with_arguments(call: dict[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _cut_json(text: str, number: int) -> tuple[str, str]:
    """Return the text before and after the arguments of one call."""
    key = text.find(f'"{_KEYS[number]}"')
    start = text.rfind("{", 0, key) if key >= 0 else -1
    try:
        value, size = json.JSONDecoder().raw_decode(text[start:] if start >= 0 else "")
    except json.JSONDecodeError:
        value, size = None, 0
    if value != {_KEYS[number]: 1}:
        raise InputError(
            "tools",
            f": this model writes calls as {_shape(text)}, a form that is not known; use a "
            "model whose template writes JSON",
        )
    return text[:start], text[start + size :]


def _cut_list(form: ParameterList, text: str, number: int) -> tuple[str, str]:
    """Return the text before and after the arguments of one call, a list of parameters."""
    start = text.index(_KEYS[number]) - len(form.before)
    size = len("1".join(form.other)) + len(form.before + _KEYS[number])
    return text[:start], text[start + size :]


def _form(write: Write, as_text: bool) -> ParameterList | None:
    """Return the form of arguments; None for JSON or an unknown form."""
    try:
        _cut_json(write({_KEYS[0]: 1}), 0)
    except InputError:
        return None if as_text else parameter_list(write)
    return None


def _shape(text: str) -> str:
    line = " ".join(text.split()).replace(_NAMES[0], "NAME").replace(_KEYS[0], "ARGUMENT")
    return line if len(line) <= 80 else f"{line[:79]}…"


def _slots(text: str) -> list[str | Slot]:
    """Cut the text at the name, the id and the number."""
    slots = {_NAMES[0]: Slot.NAME, _IDS[0]: Slot.ID, _NUMBERS[0]: Slot.NUMBER}
    return [slots.get(piece, piece) for piece in re.split(f"({'|'.join(slots)})", text)]
