"""The lines of a batch's input: checked before any of them is answered."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from cutaway.base.strict_json import parse
from cutaway.errors import InputError
from cutaway.features.batches.schemas import LineFault

MOST_LINES = 50_000
_MOST_FAULTS = 100
_FIELDS = ("custom_id", "method", "url", "body")


class Line(NamedTuple):
    """A request. number: from 1; body: its fields."""

    number: int
    custom_id: str
    body: dict[str, Any]


class Checked(NamedTuple):
    """The lines, or what is wrong with them: at most the first hundred faults."""

    lines: list[Line]
    faults: list[LineFault]


def check_lines(data: bytes, endpoint: str) -> Checked:
    """Read a file of requests to one endpoint."""
    lines, faults = list[Line](), list[LineFault]()
    places = dict[str, int]()
    for number, text in enumerate(data.split(b"\n"), 1):
        if not text.strip():
            continue
        line = _read(text, number, endpoint)
        if isinstance(line, Line) and line.custom_id in places:
            line = _fault(
                number, "duplicate_custom_id", "custom_id",
                f"custom_id: line {places[line.custom_id]} has the same: give each its own",
            )  # fmt: skip
        if isinstance(line, Line):
            places[line.custom_id] = number
            lines.append(line)
        elif len(faults) < _MOST_FAULTS:
            faults.append(line)
    if not lines and not faults:
        faults.append(_fault(None, "empty_file", None, "the file has no line: give one at least"))
    if len(lines) > MOST_LINES:
        said = f"the file has {len(lines)} lines; at most {MOST_LINES} are one batch: split it"
        faults.append(_fault(None, "too_many_requests", None, said))
    return Checked(lines, faults)


def _read(text: bytes, number: int, endpoint: str) -> Line | LineFault:
    try:
        given = parse(text, "this line")
    except InputError as error:
        return _fault(number, "invalid_json_line", None, str(error))
    for param, said in _wrong(given, endpoint):
        return _fault(number, "invalid_request", param, said)
    return Line(number, given["custom_id"], given["body"])


def _wrong(given: Any, endpoint: str) -> Iterator[tuple[str | None, str]]:
    """(field, sentence) of what is wrong with a line."""
    if not isinstance(given, dict):
        yield None, f"a line must be an object with {', '.join(_FIELDS)}"
        return
    yield from ((name, f"{name} is missing") for name in _FIELDS if given.get(name) is None)
    unknown = [name for name, value in given.items() if name not in _FIELDS and value is not None]
    yield from ((name, f"unknown field {name!r:.40}") for name in unknown)
    if not isinstance(given["custom_id"], str) or not 0 < len(given["custom_id"]) <= 512:
        yield "custom_id", "custom_id must be a text of 1 to 512 characters"
    if given["method"] != "POST":
        yield "method", "method must be POST"
    if given["url"] != endpoint:
        yield "url", f"url must be the batch's endpoint, {endpoint}"
    if not isinstance(given["body"], dict):
        yield "body", "body must be an object: the fields of the request"
    elif given["body"].get("stream"):
        yield "body.stream", "body.stream: a batch has whole answers: leave it out"


def _fault(line: int | None, code: str, param: str | None, message: str) -> LineFault:
    return {"code": code, "line": line, "message": message, "param": param}
