"""A row of the table of keywords: what a face needs to know of a keyword of a request."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

Kind = Literal[
    "number", "int", "bool", "off", "text", "texts", "stops", "ids", "names", "breakers", "biases",
    "schema", "grammar", "tokens", "interventions", "rule", "file", "own",
]  # fmt: skip
"""How a value is written: number is one of ``PARAMS``, off is true unless said otherwise."""


class Flag(NamedTuple):
    """How a keyword is given at a terminal.

    group    the heading of the help under which it is listed
    metavar  what stands for its value; "": it has none
    more     what its help adds
    name     where it is not --KEYWORD
    """

    group: str
    metavar: str = ""
    more: str = ""
    name: str = ""


class Fields(NamedTuple):
    """In which requests over HTTP a keyword is a field.

    faces   those where it has its own name and form: "chat", "completions" and "responses" are
            OpenAI's, "messages" is Anthropic's, "ollama" is in Ollama's options
    others  a face where its form or name is another -> its name there
    openai  whether it is OpenAI's own
    more    what its description adds
    """

    faces: tuple[str, ...]
    others: Mapping[str, str] = MappingProxyType({})
    openai: bool = False
    more: str = ""


class Absent(NamedTuple):
    """A face that does not have a keyword, and why."""

    why: str


class Keyword(NamedTuple):
    """A row. page: whether the page has a control for it; choices: what a text may be."""

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
        """What the keyword ``name`` is called on a face; None: it is not there."""
        if isinstance(self.fields, Absent):
            return None
        return name if face in self.fields.faces else self.fields.others.get(face)
