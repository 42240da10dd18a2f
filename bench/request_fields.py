"""Every place of a request whose content a client chooses, and the slowest known contents.

The module finds fields at any depth in the server's own routes, and parameters, parts of forms and
headers. So it also finds each new field.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fastapi.openapi.utils import get_openapi

from cutaway.base.strict_json import MAX_NESTS, MAX_VALUES
from cutaway.server.app import ROUTERS

Schema = Mapping[str, Any]
Put = Callable[[Any], Any]
"""A value -> the whole body with the value in its place."""
Contents = Iterator[tuple[str, Any]]
"""Contents, each with its name."""

MAX_BODY = 4 << 20
_ROOM = MAX_BODY - 4096
_HEAD = 60 << 10
_SHORT = ("max_completion_tokens", "max_tokens", "max_output_tokens", "n_predict")
_SERVER = Path(__file__).resolve().parents[1] / "src" / "cutaway" / "server"


class Place(NamedTuple):
    """A place of a request that takes a content.

    endpoint  method and path
    name      as a client writes it: messages[0].content
    send      a content -> the arguments of httpx's request
    contents  the contents that are tried
    """

    endpoint: str
    name: str
    send: Callable[[Any], Mapping[str, Any]]
    contents: Callable[[], Contents]


def places() -> Iterator[Place]:
    """Yield all places of the server's requests."""
    routes = [copy(route) for router in ROUTERS for route in router.routes]
    for route in routes:
        route.include_in_schema = True
    document = get_openapi(title="", version="", routes=routes)
    shapes, seen = document["components"]["schemas"], set[tuple[str, str]]()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            forms = operation.get("requestBody", {}).get("content", {})
            if "application/json" in forms:
                yield from _fields(method, path, forms["application/json"]["schema"], shapes, seen)
            if "multipart/form-data" in forms:
                yield from _parts(method, path, forms["multipart/form-data"]["schema"])
            yield from _parameters(method, path, operation.get("parameters", ()))
    yield from map(_header, header_names())


# -- contents -----------------------------------------------------------------------------------


def texts(size: int) -> Contents:
    """Yield texts of ``size`` bytes, each of which was slow to read in some endpoint."""
    yield f"{size} digits", "1" * size + "a"
    yield f"{size} spaces", " " * size + "1"
    yield f"{size} letters", "a" * size
    yield f"{size} short words", "a b " * (size // 4)
    yield f"{size} accents", "\u0301" * (size // 2)
    yield f"{size} parentheses", "(" * (size // 2) + ")" * (size // 2)
    yield f"{size} special tokens", "<|im_start|>" * (size // 12)


def values() -> Contents:
    """Yield lists and objects that fill a body, or have the most values that a body may have."""
    for name, each, most in (
        ("empty lists", [], 1 << 20), ("empty lists", [], MAX_NESTS - 64),
        ("numbers", 1, MAX_VALUES - 64), ("letters", "a", MAX_VALUES - 64),
    ):  # fmt: skip
        yield f"{most} {name}", [each] * most
    yield "190000 strings", [f"w{i:0>7}" for i in range(190_000)]
    yield "190000 names", {f"{i:0>7}": i for i in range(190_000)}
    yield "500 short texts", [f"ÿ{i:0>3}" for i in range(500)]
    yield "500 names", {str(i): 1 for i in range(500)}


def _contents(schema: Schema, shapes: Any, few: bool) -> Contents:
    """Yield the contents for a field, also as many of the field's own items as fit.

    few: yield only a few contents, for a field that other requests have, too
    """
    for branch in _branches(schema, shapes):
        if branch.get("type") in ("integer", "number"):
            yield "the largest number", branch.get("maximum", 10**9)
        if "items" in branch:
            each = _least(branch["items"], shapes)
            size, (count, nests) = len(json.dumps(each)) + 1, _counted(each)
            fit = min(_ROOM // size, (MAX_VALUES - 64) // count, (MAX_NESTS - 64) // (nests or 1))
            for most in (fit,) if few else (fit, 256):
                yield f"{most} items", [each] * most
    if few or all(_is_plain(branch) for branch in _branches(schema, shapes)):
        yield f"{_ROOM} digits", "1" * _ROOM
        yield f"{MAX_NESTS - 64} empty lists", [[]] * (MAX_NESTS - 64)
        yield "190000 names", {f"{i:0>7}": i for i in range(190_000)}
    else:
        for size in (_ROOM, 1 << 18, 1 << 14):
            yield from texts(size)
        yield from values()


def _is_plain(branch: Schema) -> bool:
    """Whether a schema allows only a few values, or numbers."""
    kinds = ("null", "boolean", "integer", "number")
    return "enum" in branch or "const" in branch or branch.get("type") in kinds


def _counted(value: Any) -> tuple[int, int]:
    """Count the values within a value, and the lists and objects."""
    if not isinstance(value, dict | list):
        return 1, 0
    each = [*map(_counted, value.values() if isinstance(value, dict) else value)]
    return 1 + sum(count for count, _ in each), 1 + sum(nests for _, nests in each)


# -- fields of JSON -----------------------------------------------------------------------------


def _fields(
    method: str, path: str, schema: Schema, shapes: Any, seen: set[tuple[str, str]]
) -> Iterator[Place]:
    [whole] = _branches(schema, shapes)
    names, needed = whole["properties"], whole.get("required", ())
    # A short text, since the measure is other clients' wait, not the time to write a text.
    short = next(({name: 1} for name in _SHORT if name in names), {})
    base = {**_least(schema, shapes), **short, **({"stream": False} if "stream" in names else {})}
    base.pop("trace", None)

    def put(value: Any) -> Any:
        return {**base, **value}

    for name, inner, inner_put in _within({**whole, "examples": [{}]}, shapes, put):

        def send(value: Any, inner_put: Put = inner_put) -> Mapping[str, Any]:
            content = json.dumps(inner_put(value), separators=(",", ":"), ensure_ascii=False)
            headers = {"content-type": "application/json"}
            return {"method": method, "url": path, "content": content.encode(), "headers": headers}

        known = (name.rpartition(".")[2], json.dumps(inner))
        contents = partial(_contents, inner, shapes, few=known in seen and name not in needed)
        seen.add(known)
        yield Place(f"{method.upper()} {path}", name, send, contents)


def _within(
    schema: Schema, shapes: Any, put: Put, name: str = "", above: Sequence[Schema] = ()
) -> Iterator[tuple[str, Schema, Put]]:
    """Yield each field, at any depth: its name, its schema, and the function that sets it."""
    for branch in _branches(schema, shapes):
        if any(branch is each for each in above):
            continue
        base = _least(branch, shapes)
        for key, inner in branch.get("properties", {}).items():

            def put_field(value: Any, base: Any = base, key: str = key) -> Any:
                return put({**base, key: value})

            called = f"{name}.{key}" if name else key
            yield called, inner, put_field
            yield from _within(inner, shapes, put_field, called, (*above, branch))
        if "items" in branch:

            def put_item(value: Any) -> Any:
                return put([value])

            if not any("properties" in inner for inner in _branches(branch["items"], shapes)):
                yield f"{name}[0]", branch["items"], put_item
            yield from _within(branch["items"], shapes, put_item, f"{name}[0]", (*above, branch))


def _branches(schema: Schema, shapes: Any) -> Iterator[Schema]:
    """Yield the schemas that a value may match, without references and alternatives."""
    inner = [each for key in ("anyOf", "oneOf", "allOf") for each in schema.get(key, ())]
    if "$ref" in schema:
        inner.append(shapes[schema["$ref"].rpartition("/")[2]])
    for each in inner:
        yield from _branches(each, shapes)
    if not inner:
        yield schema


def _least(schema: Schema, shapes: Any) -> Any:
    """Make a small value that the schema allows."""
    branch = next((b for b in _branches(schema, shapes) if b.get("type") != "null"), {})
    if shown := schema.get("examples") or branch.get("examples"):
        return shown[0]
    if "const" in branch or "enum" in branch:
        return branch.get("const", [*branch.get("enum", ()), None][0])
    if "properties" in branch:
        needed = branch.get("required", ())
        return {name: _least(branch["properties"][name], shapes) for name in needed}
    if branch.get("type") == "array":
        return [_least(branch.get("items", {}), shapes)] * branch.get("minItems", 0)
    plain = {"string": "a", "integer": 1, "number": 1, "boolean": True, "object": {}}
    return plain.get(branch.get("type", "string"), "a")


# -- forms, parameters and headers --------------------------------------------------------------


def _parts(method: str, path: str, schema: Schema) -> Iterator[Place]:
    def form(head: str, body: str) -> Mapping[str, Any]:
        said = f"--b\r\nContent-Disposition: form-data; {head}\r\n\r\n{body}\r\n--b--\r\n"
        kind = "multipart/form-data; boundary=b"
        return {"method": method, "url": path, "content": said.encode(),
                "headers": {"content-type": kind}}  # fmt: skip

    def contents() -> Contents:
        yield from texts(_ROOM)
        for each in (";", "\r\n--b\r\n", "{}\n", '";a="', "\\"):
            yield f"of {each!r}", each * (_ROOM // len(each))

    for name in schema["properties"]:
        head = f'name="{name}"; filename="a"'
        of_body, of_head = (lambda v, h=head: form(h, v)), (lambda v, h=head: form(h + v, "{}"))
        yield Place(f"{method.upper()} {path}", name, of_body, contents)
        yield Place(f"{method.upper()} {path}", f"head of {name}", of_head, contents)


def _parameters(method: str, path: str, parameters: Sequence[Schema]) -> Iterator[Place]:
    for parameter in parameters:
        name, in_path = parameter["name"], parameter["in"] == "path"

        def send(value: str, name: str = name, in_path: bool = in_path) -> Mapping[str, Any]:
            url = re.sub(r"\{\w+\}", value if in_path else "a", path)
            return {"method": method, "url": url, **({} if in_path else {"params": {name: value}})}

        yield Place(f"{method.upper()} {path}", name, send, lambda: texts(_HEAD // 3))


def header_names() -> list[str]:
    """The headers that the server's code reads by name, and some that lower layers read."""
    read = re.compile(r'headers?(?:\.get\(|\[)b?"([\w-]+)"|(?:==|else) b"([\w-]+)"')
    found = {
        next(filter(None, names)).lower()
        for file in _SERVER.rglob("*.py")
        for names in read.findall(file.read_text())
    }
    return sorted(found | {"x-request-id", "range", "cookie", "if-none-match", "expect", "x-other"})


def _header(name: str) -> Place:
    of_file = name in ("range", "if-none-match", "accept", "accept-encoding")

    def send(value: str) -> Mapping[str, Any]:
        headers = {"content-type": "application/json", name: value}
        if of_file:
            return {"method": "get", "url": "/static/js/app/main.js", "headers": headers}
        body = b'{"prompt":"a","max_tokens":1}'
        return {"method": "post", "url": "/v1/completions", "headers": headers, "content": body}

    def contents() -> Contents:
        yield from ((what, text.strip()) for what, text in texts(_HEAD) if text.isascii())
        for each in (";", ",", "a;q=0.1,", "%", "=", "/", '"'):
            yield f"of {each}", each * (_HEAD // len(each))
        yield "of ranges", "bytes=" + ",".join(f"{i}-{i}" for i in range(5000))

    return Place("any", f"header {name}", send, contents)
