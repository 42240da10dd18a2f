"""The dialect of a model: the strings that it writes around the calls of tools.

Knows the literal texts, the places of name, arguments and id between them, and which of them are
control tokens; and how to find them, by letting a chat template write calls whose parts are known.
The grammar and the call parser are both made of this description alone.
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


# -- the form of arguments, found --------------------------------------------------------------
# Of arguments that are no JSON object: what a template wrote is cut at keys and values that occur
# nowhere else.

KEY = "cutaway_key_a"
_SECOND = "cutaway_key_b"
_VALUE, _OTHER = "cutaway probe value", "cutaway probe other"
_NUMBER = 48151623

Write = Callable[[Mapping[str, Any]], str]  # arguments -> the text of a call with them


def parameter_list(write: Write) -> ParameterList | None:
    """How ``write`` writes arguments; None where they are no list of parameters."""
    empty, one = write({}), write({KEY: _VALUE})
    two, number = write({KEY: _VALUE, _SECOND: _OTHER}), write({KEY: _NUMBER})
    if not (
        _in_order(one, KEY, _VALUE)
        and _in_order(two, KEY, _VALUE, _SECOND, _OTHER)
        and _in_order(number, KEY, str(_NUMBER))
    ):
        return None
    opening, text_opening, behind = _cut(one, KEY, _VALUE)
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
    made = ParameterList(before, text, other, between)
    own = replace(made, nested=True)
    deep = {KEY: {_SECOND: [_VALUE]}}
    return own if own.write(deep) in write(deep) else made


def _in_order(text: str, *pieces: str) -> bool:
    """Whether the text has each of the pieces once, in this order."""
    places = [text.find(piece) for piece in pieces]
    return all(map((1).__eq__, map(text.count, pieces))) and places == sorted(places)


def _cut(text: str, key: str, value: str) -> tuple[str, str, str]:
    """What is before the key, between it and its value, and behind that."""
    before, rest = text.split(key, 1)
    middle, behind = rest.split(value, 1)
    return before, middle, behind


# -- the dialect of a template, found ----------------------------------------------------------
# What it wrote is cut at names and arguments that occur nowhere else.

RenderMessages = Callable[[Sequence[dict[str, Any]]], str]

_SAID = "cutaway probe text"
_USER = {"role": "user", "content": "cutaway probe question"}
_NAMES = ("cutaway_probe_a", "cutaway_probe_b")
_IDS = ("cutProbe1", "cutProbe2")  # of nine letters and digits, as Mistral wants them
_RESULT = "<|tool_response>"  # begins a result, before which Gemma 4 stops
_KEYS = ("cutaway_key_a", "cutaway_key_b")


_NUMBERS = ("481516", "234299")


def probe_calls(count: int, arguments_as_text: bool) -> list[dict[str, Any]]:
    """The first calls of the probe, as templates take them."""
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
    """The dialect in which ``render`` writes calls; None where it writes none.

    InputError where the form of the arguments is not known, or they come before the name.
    """

    def turn(content: str | None, *calls: dict[str, Any]) -> str | None:
        message = {"role": "assistant", "content": content}
        try:
            return render([_USER, message | {"tool_calls": [*calls]} if calls else message])
        except InputError:
            return None

    first, second = probe_calls(2, arguments_as_text)
    plain, one = turn(_SAID), turn(_SAID, first) or turn("", first)
    if plain is None or one is None or _SAID not in plain:
        return None
    if _NAMES[0] not in one:  # it may be in the id
        first, second = map(_with_number, (first, second), _NAMES, _NUMBERS)
        if _NAMES[0] not in (turn(_SAID, first) or ""):
            return None
    before, after = plain.split(_SAID, 1)

    def written(*calls: dict[str, Any]) -> str:
        """The text of the calls: behind what is said, or else of a message that says nothing."""
        for said in (_SAID, None, ""):
            text = turn(said, *calls) or ""
            _, _, behind = text.partition(_SAID)
            if after.strip() and behind.startswith(after.rstrip()):
                continue  # what is said is a turn of its own
            if _NAMES[0] in (found := _call_text(text, before, after)):
                return found
        return ""

    form = _form(lambda arguments: written(_with(first, arguments)), arguments_as_text)
    cut = partial(_cut_list, form) if form else _cut_json
    opening, rest = cut(written(first), 0)
    if _NAMES[0] not in opening:
        raise InputError(
            "tools",
            ": this model writes a call's arguments before its name, which is not supported; "
            "use a model that writes the name first",
        )
    pair = written(first, second)
    if _KEYS[1] not in pair:
        return Dialect(joined(_slots(opening)), joined(_slots(rest)), many=False, form=form)
    gap, _ = cut(cut(pair, 0)[1], 1)
    return _several(opening, rest, gap, form)


def _several(opening: str, rest: str, gap: str, form: ParameterList | None) -> Dialect:
    """rest: what follows the arguments of a single call; gap: what is between those of two."""
    for told in (_IDS, _NAMES, _NUMBERS):
        gap = gap.replace(told[1], told[0])
    tail = rest[: same(gap, rest)]
    head = opening[len(opening) - same(gap[len(tail) :], opening, backwards=True) :]
    between = gap[len(tail) : len(gap) - len(head)]
    begin, end = opening.removesuffix(head), rest.removeprefix(tail).removesuffix(_RESULT)
    parts = joined(_slots(head)), joined(_slots(tail))
    return Dialect(*parts, begin, between, end, form=form)


def _call_text(text: str, before: str, after: str) -> str:
    """What the model itself wrote of the calls in a rendered conversation."""
    if _SAID in text:
        text = text.split(_SAID, 1)[1]
    else:
        text = text[same(text, before) :]
    return text[: len(text) - same(text, after, backwards=True)].strip()


def _with_number(call: dict[str, Any], name: str, number: str) -> dict[str, Any]:
    return {**call, "id": numbered(name, number)}


def _with(call: dict[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _cut_json(text: str, number: int) -> tuple[str, str]:
    """The text before and after the arguments of one call."""
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
    """The same, where the arguments are a list of parameters."""
    start = text.index(_KEYS[number]) - len(form.before)
    size = len("1".join(form.other)) + len(form.before + _KEYS[number])
    return text[:start], text[start + size :]


def _form(write: Write, as_text: bool) -> ParameterList | None:
    """How arguments are written; None for JSON, or what nobody knows."""
    try:
        _cut_json(write({_KEYS[0]: 1}), 0)
    except InputError:
        return None if as_text else parameter_list(write)
    return None


def _shape(text: str) -> str:
    line = " ".join(text.split()).replace(_NAMES[0], "NAME").replace(_KEYS[0], "ARGUMENT")
    return line if len(line) <= 80 else f"{line[:79]}…"


def _slots(text: str) -> list[str | Slot]:
    """The text cut at the name, the id and the number."""
    slots = {_NAMES[0]: Slot.NAME, _IDS[0]: Slot.ID, _NUMBERS[0]: Slot.NUMBER}
    return [slots.get(piece, piece) for piece in re.split(f"({'|'.join(slots)})", text)]
