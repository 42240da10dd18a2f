"""The dialect of a chat template, found by letting it write calls whose parts are known.

Knows how to cut what was written at names and arguments that occur nowhere else.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from cutaway.errors import InputError
from cutaway.text.tools import form_probe
from cutaway.text.tools.argument_form import ParameterList
from cutaway.text.tools.dialect import Dialect, Slot, joined, numbered, same

Render = Callable[[Sequence[dict[str, Any]]], str]

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


def find(render: Render, arguments_as_text: bool = False) -> Dialect | None:
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
            "tools: this model writes a call's arguments before its name, which is not supported; "
            "use a model that writes the name first"
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
            f"tools: this model writes calls as {_shape(text)}, a form that is not known; use a "
            "model whose template writes JSON"
        )
    return text[:start], text[start + size :]


def _cut_list(form: ParameterList, text: str, number: int) -> tuple[str, str]:
    """The same, where the arguments are a list of parameters."""
    start = text.index(_KEYS[number]) - len(form.before)
    size = len("1".join(form.other)) + len(form.before + _KEYS[number])
    return text[:start], text[start + size :]


def _form(write: form_probe.Write, as_text: bool) -> ParameterList | None:
    """How arguments are written; None for JSON, or what nobody knows."""
    try:
        _cut_json(write({_KEYS[0]: 1}), 0)
    except InputError:
        return None if as_text else form_probe.find(write)
    return None


def _shape(text: str) -> str:
    line = " ".join(text.split()).replace(_NAMES[0], "NAME").replace(_KEYS[0], "ARGUMENT")
    return line if len(line) <= 80 else f"{line[:79]}…"


def _slots(text: str) -> list[str | Slot]:
    """The text cut at the name, the id and the number."""
    slots = {_NAMES[0]: Slot.NAME, _IDS[0]: Slot.ID, _NUMBERS[0]: Slot.NUMBER}
    return [slots.get(piece, piece) for piece in re.split(f"({'|'.join(slots)})", text)]
