"""Keyword: a row of the table of a request's keywords, for the command line, HTTP and the page."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

Kind = Literal[
    "number", "int", "bool", "off", "text", "texts", "stops", "ids", "names", "breakers", "biases",
    "schema", "grammar", "tokens", "interventions", "rule", "file", "own",
]  # fmt: skip
"""How a value is written. number: one of ``PARAMS``; off: a bool whose default is true."""


class Flag(NamedTuple):
    """How a keyword is given at a terminal.

    group    the heading of the help under which it is listed
    metavar  the placeholder of its value in the help; "": the flag has no value
    more     added to the keyword's help
    name     the flag, if it is not --KEYWORD
    """

    group: str
    metavar: str = ""
    more: str = ""
    name: str = ""


class Fields(NamedTuple):
    """The HTTP endpoints ("faces") whose requests have a keyword as a field.

    faces   those where the field has the keyword's name and form: "chat", "completions" and
            "responses" are OpenAI's, "messages" is Anthropic's, "ollama" is in Ollama's options
    others  face -> name of the field, where name or form differ
    openai  whether OpenAI's API has it
    more    added to the keyword's help in the schema
    """

    faces: tuple[str, ...]
    others: Mapping[str, str] = MappingProxyType({})
    openai: bool = False
    more: str = ""


class Absent(NamedTuple):
    """Why the command line or HTTP lacks a keyword."""

    why: str


class Keyword(NamedTuple):
    """A row. page: whether the page has a control for it; choices: the values a text may have."""

    kind: Kind
    default: Any
    help: str
    flag: Flag | Absent
    fields: Fields | Absent
    page: bool = False
    choices: tuple[str, ...] = ()

    def flag_name(self, name: str) -> str:
        """The flag of the keyword ``name``."""
        no = "no-" if self.kind == "off" else ""
        own = self.flag.name if isinstance(self.flag, Flag) else ""
        return own or f"--{no}{name.replace('_', '-')}"

    def field(self, name: str, face: str) -> str | None:
        """The field of the keyword ``name`` on a face; None where it has none."""
        if isinstance(self.fields, Absent):
            return None
        return name if face in self.fields.faces else self.fields.others.get(face)
