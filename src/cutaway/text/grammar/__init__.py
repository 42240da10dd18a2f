"""Grammar: the texts that a request allows, in a form to be sent, recorded and compiled again.

Knows the forms in which a client may give a JSON Schema, regular expression, grammar or choice, and
their size limits. llguidance compiles them; ``compiler`` imports it for the first grammar.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from cutaway.base import strict_json
from cutaway.base.checks import shown
from cutaway.errors import InputError

KINDS = ("json_schema", "regex", "grammar", "choice")
MAX_BYTES = {"json_schema": 256 << 10, "regex": 16 << 10, "grammar": 256 << 10, "choice": 256 << 10}
_LONGEST_CHOICE = 16 << 10


@dataclass(frozen=True)
class Grammar:
    """A kind (one of KINDS) and its text: a schema or a list of choices as JSON, or the source.

    compact  whether JSON has no white space between its parts
    thought  Lark source of a thought that may precede the text; there, the rule ``answer`` stands
             for the text; "": no thought
    calls    Lark source of tool calls that the model may write instead of the text; "": no calls
    """

    kind: str
    text: str
    compact: bool = False
    thought: str = ""
    calls: str = ""

    @property
    def ways(self) -> "tuple[Grammar, ...]":
        """The grammar without calls and, if there are calls, the grammar of calls.

        A text must match one of these grammars.
        """
        if not self.calls:
            return (self,)
        return replace(self, calls=""), Grammar("grammar", self.calls, thought=self.thought)

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of all fields, in hex."""
        import hashlib  # 4 ms of a start

        parts = [self.kind, self.text, self.compact]
        parts += [self.thought, self.calls] if self.calls else filter(None, [self.thought])
        identity = json.dumps(parts)
        return hashlib.sha256(identity.encode()).hexdigest()


def json_schema(value: Any) -> str:
    """Return a schema as JSON text, with its keys in their original order.

    value: a dict, true, JSON text, a path to a file of it, or a class that has
    ``model_json_schema()``, as pydantic's models have
    """
    text = _schema_text(value)
    schema = strict_json.parse(_check_size("json_schema", text).encode(), "json_schema")
    if not isinstance(schema, (dict, bool)):
        raise InputError("json_schema", f" must be an object, not {shown(schema)}")
    if schema is False:
        raise InputError("json_schema", ": false allows no text")
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def _schema_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, PathLike):
        return _read("json_schema", Path(value))
    if callable(method := getattr(value, "model_json_schema", None)):
        value = method()
    if not isinstance(value, (Mapping, bool)):
        raise InputError(
            "json_schema",
            " must be a schema as a dict, as JSON text, as a path, or a class with "
            f"model_json_schema(), not {shown(value)}",
        )
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError("json_schema", f" is not JSON: {error}") from None
    except RecursionError:
        raise InputError("json_schema", " is nested too deep") from None


def regex(value: Any) -> str:
    """Check and return a regular expression, which the whole text must match."""
    if not isinstance(value, str) or not value:
        raise InputError("regex", f" must be a regular expression, not {shown(value)}")
    return _check_size("regex", value)


def grammar(value: Any) -> str:
    """Return a grammar's text, in Lark or GBNF (llama.cpp). value: the text, or a path to it."""
    if isinstance(value, PathLike):
        value = _read("grammar", Path(value))
    if not isinstance(value, str) or not value.strip():
        raise InputError(
            "grammar", f" must be the text of a Lark or GBNF grammar, not {shown(value)}"
        )
    return _check_size("grammar", value)


def choice(value: Any) -> tuple[str, ...]:
    """Check a list of texts, from which the model writes one text; leave out repeated texts."""
    if isinstance(value, str) or not isinstance(value, (list, tuple)):
        raise InputError("choice", f" must be a list of texts, not {shown(value)}")
    if not all(isinstance(text, str) and text for text in value):
        raise InputError("choice", " must hold texts that are not empty")
    for text in value:
        if len(text) > _LONGEST_CHOICE:
            raise InputError("choice", f" has a text of more than {_LONGEST_CHOICE} characters")
    _check_size("choice", json.dumps(value))
    return tuple(dict.fromkeys(value))


def _check_size(name: str, text: str) -> str:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InputError(name, " must be whole characters, not halves of them") from None
    if size > MAX_BYTES[name]:
        raise InputError(name, f" has {size} bytes; at most {MAX_BYTES[name]}")
    return text


def _read(name: str, path: Path) -> str:
    max_size = MAX_BYTES[name]
    try:
        with path.open("rb") as file:
            data = file.read(max_size + 1)  # /dev/zero has no end
        if len(data) > max_size:
            raise InputError(name, f": {path} has more than {max_size} bytes")
        return data.decode("utf-8")
    except OSError as error:
        raise InputError(name, f": {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(name, f": {path} is not UTF-8 (byte {error.start})") from None
