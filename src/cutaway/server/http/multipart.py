"""Bodies of multipart/form-data (RFC 7578): a file and a few fields, each of them once."""

import re
from email.message import Message
from typing import NamedTuple

from cutaway.server.http.errors import ApiError

_MOST_PARTS = 32


class Part(NamedTuple):
    """A field of a form. filename: None for one that is no file."""

    filename: str | None
    content: bytes


def read_form(content_type: str, body: bytes) -> dict[str, Part]:
    """The fields by name. ApiError 415 for another type, 400 for a body that is not of it."""
    kind, options = _header("content-type", content_type)
    if kind != "multipart/form-data":
        raise ApiError(
            415, "the body must be a form with a file; send it as multipart/form-data",
            code="unsupported_media_type",
        )  # fmt: skip
    boundary = options.get("boundary", "").encode("utf-8", "replace")
    first, *others = (b"\r\n" + body).split(b"\r\n--" + boundary)
    if not boundary or first.strip() or not others or others.pop().strip() != b"--":
        raise _broken("its parts are not between lines of its boundary")
    if len(others) > _MOST_PARTS:
        raise _broken(f"it has {len(others)} parts; at most {_MOST_PARTS} are read")
    found = dict[str, Part]()
    for text in others:
        name, part = _part(text)
        if name in found:
            raise ApiError(400, f"{name}: there are two of it; give one", param=name)
        found[name] = part
    return found


def _part(text: bytes) -> tuple[str, Part]:
    head, empty, content = text.partition(b"\r\n\r\n")
    if not empty:
        raise _broken("a part has no empty line after its headers")
    for line in head.decode("utf-8", "replace").split("\r\n"):
        field, _, value = line.partition(":")
        if field.strip().lower() == "content-disposition":
            kind, options = _header(field, value)
            if kind == "form-data" and "name" in options:
                return options["name"], Part(options.get("filename"), content)
    raise _broken("a part has no Content-Disposition: form-data with a name")


def _header(field: str, value: str) -> tuple[str, dict[str, str]]:
    """A header's value and its options."""
    message = Message()
    message[field] = re.sub(r"[\r\n]", " ", value)
    (kind, _), *options = message.get_params([("", "")], header=field)
    return kind.strip().lower(), {name.lower(): text for name, text in options}


def _broken(why: str) -> ApiError:
    return ApiError(400, f"the body is not multipart/form-data: {why}", code="invalid_form")
