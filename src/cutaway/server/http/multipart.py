"""Bodies of multipart/form-data (RFC 7578): a file and a few fields, each of them once."""

import re
from typing import NamedTuple

from cutaway.server.http.errors import ApiError

_MOST_PARTS = 32
_MOST_HEAD = 8192  # bytes of a part's headers
_OPTION = re.compile(r';\s*([^\s=;"]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;]*))', re.DOTALL)


class Part(NamedTuple):
    """A field of a form. filename: None for one that is no file."""

    filename: str | None
    content: bytes


def read_form(content_type: str, body: bytes) -> dict[str, Part]:
    """The fields by name. ApiError 415 for another type, 400 for a body that is not of it."""
    kind, options = _header(content_type)
    if kind != "multipart/form-data":
        raise ApiError(
            415, "the body must be a form with a file; send it as multipart/form-data",
            code="unsupported_media_type",
        )  # fmt: skip
    boundary = options.get("boundary", "").encode("utf-8", "replace")
    if not boundary:
        raise _broken("its Content-Type names no boundary")
    # One part too many is enough to know.
    first, *others = (b"\r\n" + body).split(b"\r\n--" + boundary, _MOST_PARTS + 2)
    if len(others) > _MOST_PARTS + 1:
        raise _broken(f"it has more than {_MOST_PARTS} parts")
    if first.strip() or not others or others.pop().strip() != b"--":
        raise _broken("its parts are not between lines of its boundary")
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
    if len(head) > _MOST_HEAD:
        raise _broken(
            f"the headers of a part have {len(head)} bytes; at most {_MOST_HEAD} are read"
        )
    for line in head.decode("utf-8", "replace").split("\r\n"):
        field, _, value = line.partition(":")
        if field.strip().lower() == "content-disposition":
            kind, options = _header(value)
            if kind == "form-data" and "name" in options:
                return options["name"], Part(options.get("filename"), content)
    raise _broken("a part has no Content-Disposition: form-data with a name")


def _header(value: str) -> tuple[str, dict[str, str]]:
    """A header's value and its options. Those of RFC 2231 (``filename*=``) have names of their own.

    Written out since ``email.message`` takes quadratic time.
    """
    kind, _, _ = value.partition(";")
    options = {
        name.lower(): bare.strip() if quoted is None else re.sub(r'\\(["\\])', r"\1", quoted)
        for name, quoted, bare in (found.groups() for found in _OPTION.finditer(value))
    }
    return kind.strip().lower(), options


def _broken(why: str) -> ApiError:
    return ApiError(400, f"the body is not multipart/form-data: {why}", code="invalid_form")
