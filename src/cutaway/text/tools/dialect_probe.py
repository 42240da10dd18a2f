"""The dialect of a chat template, found by letting it write calls whose parts are known.

Knows how to cut what was written at names and arguments that occur nowhere else.
"""

import json
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from cutaway.errors import InputError
from cutaway.text.tools.dialect import TAGS, Dialect, Slot, joined

Render = Callable[[Sequence[dict[str, Any]]], str]

_SAID = "cutaway probe text"
_USER = {"role": "user", "content": "cutaway probe question"}
_NAMES = ("cutaway_probe_a", "cutaway_probe_b")
_IDS = ("cutProbe1", "cutProbe2")  # of nine letters and digits, as Mistral wants them
_KEYS = ("cutaway_key_a", "cutaway_key_b")


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

    InputError where the arguments are not JSON, or come before the name.
    """

    def turn(content: str, count: int) -> str | None:
        calls = probe_calls(count, arguments_as_text)
        message = {"role": "assistant", "content": content}
        try:
            return render([_USER, message | {"tool_calls": calls} if count else message])
        except InputError:
            return None

    plain, one = turn(_SAID, 0), turn(_SAID, 1) or turn("", 1)
    if plain is None or one is None or _NAMES[0] not in one or _SAID not in plain:
        return None
    before, after = plain.split(_SAID, 1)
    opening, rest = _cut(_call_text(one, before, after), 0)
    pair = turn(_SAID, 2) or turn("", 2)
    if pair is None or _KEYS[1] not in pair:
        return Dialect(joined(_slots(opening, 0)), joined(_slots(rest, 0)), many=False)
    _, behind = _cut(_call_text(pair, before, after), 0)
    return _several(opening, rest, behind)


def _several(opening: str, rest: str, behind: str) -> Dialect:
    """rest: what follows the arguments of a single call; behind: of the first of two."""
    gap, _ = _cut(behind, 1)
    gap = gap.replace(_IDS[1], _IDS[0]).replace(_NAMES[1], _NAMES[0])
    tail = rest[: _same(gap, rest)]
    head = opening[len(opening) - _same(gap[len(tail) :], opening, backwards=True) :]
    between = gap[len(tail) : len(gap) - len(head)]
    begin, end = opening.removesuffix(head), rest.removeprefix(tail)
    return Dialect(joined(_slots(head, 0)), joined(_slots(tail, 0)), begin, between, end)


def _call_text(text: str, before: str, after: str) -> str:
    """What the model itself wrote of the calls in a rendered conversation."""
    if _SAID in text:
        text = text.split(_SAID, 1)[1]
    else:
        text = text[_same(text, before) :]
    return text[: len(text) - _same(text, after, backwards=True)].strip()


def _same(a: str, b: str, backwards: bool = False) -> int:
    """How many characters are the same from an end on, no tag counted in part."""
    step = -1 if backwards else 1
    pairs = zip(TAGS.findall(a)[::step], TAGS.findall(b)[::step], strict=False)
    return sum(len(one) for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _cut(text: str, number: int) -> tuple[str, str]:
    """The text before and after the arguments of one call."""
    key = text.find(f'"{_KEYS[number]}"')
    start = text.rfind("{", 0, key) if key >= 0 else -1
    try:
        value, size = json.JSONDecoder().raw_decode(text[start:] if start >= 0 else "")
    except json.JSONDecodeError:
        value, size = None, 0
    if value != {_KEYS[number]: 1}:
        raise InputError(
            f"tools: this model writes calls as {_shape(text)}, whose arguments are not JSON, and "
            "that is not supported; use a model whose template writes JSON"
        )
    before = text[:start]
    if _NAMES[number] not in before:
        raise InputError(
            "tools: this model writes a call's arguments before its name, which is not supported; "
            "use a model that writes the name first"
        )
    return before, text[start + size :]


def _shape(text: str) -> str:
    line = " ".join(text.split()).replace(_NAMES[0], "NAME").replace(_KEYS[0], "ARGUMENT")
    return line if len(line) <= 80 else f"{line[:79]}…"


def _slots(text: str, number: int) -> list[str | Slot]:
    """The text cut at the name and the id."""
    parts: list[str | Slot] = []
    for index, piece in enumerate(text.split(_NAMES[number])):
        parts += [Slot.NAME] * (index > 0)
        for place, literal in enumerate(piece.split(_IDS[number])):
            parts += [Slot.ID] * (place > 0)
            parts.append(literal)
    return parts
