"""Errors that a person can act on.

Every message is one sentence that names the field or file and the fix; the command line, the server
and the page show it alone, without a traceback. Knows which words of it are names of fields, which
the three write in different ways; none of them parses a sentence.
"""

from typing import Self


class CutawayError(Exception):
    """Base of all errors that cutaway explains itself."""


class Name(str):
    """A field's name within a sentence, written as a program would: messages[0].content

    path   the field, then what leads to a part of its value: keys and indices
    prose  words that follow the name, on that part of the value
    """

    __slots__ = ("path", "prose")
    path: tuple[str | int, ...]
    prose: str

    def __new__(cls, *path: str | int, prose: str = "") -> "Name":
        """Make a name of a path, whose first part may be a Name itself."""
        first, *rest = path
        if isinstance(first, Name):
            prose = prose or first.prose
        whole = (*(first.path if isinstance(first, Name) else (first,)), *rest)
        text = str(whole[0])
        for part in whole[1:]:
            is_key = isinstance(part, str) and part.isidentifier()
            text += f".{part}" if is_key else f"[{str(part)[:80]}]"
        name = super().__new__(cls, text[:200] + prose)
        name.path, name.prose = whole, prose
        return name

    def __getnewargs_ex__(self) -> tuple[tuple[str | int, ...], dict[str, str]]:
        return self.path, {"prose": self.prose}


class InputError(CutawayError, ValueError):
    """The caller asked for something impossible: a value out of range, an unknown name.

    One argument is a sentence about no field. With more, the first is the field, and the others say
    what is wrong, as in ``InputError("top_p", " must be between 0 and 1")``, where other fields are
    ``Name``s.
    """

    def __init__(self, *words: str) -> None:
        super().__init__(*words)

    def __str__(self) -> str:
        return "".join(self.args)

    @property
    def name(self) -> Name | None:
        """The field that it is about."""
        return Name(self.args[0]) if len(self.args) > 1 else None

    @property
    def path(self) -> tuple[str | int, ...]:
        """The path of ``name``; empty for an error about no field."""
        return self.name.path if self.name is not None else ()

    @property
    def field(self) -> str | None:
        """The whole field that it is about."""
        return next((str(part) for part in self.path), None)

    @property
    def index(self) -> int | None:
        """The element of the field's list that it is about."""
        return next((part for part in self.path[1:2] if isinstance(part, int)), None)

    @property
    def reason(self) -> str:
        """The words that follow the field's name: ": it is empty", " must be 1"."""
        return str(self.args[-1]) if self.path else f": {self}"

    def with_name(self, *path: str | int) -> Self:
        """Return the error with another name for the field that it is about."""
        prose = self.name.prose if self.name is not None else ""
        return type(self)(Name(*path, prose=prose), *self.args[1:])


class TooLongError(InputError):
    """A prompt leaves no room for an answer in the model's context."""


class FormatError(InputError):
    """A file is truncated, corrupt, hostile or of an unsupported kind."""


class FileChangedError(FormatError):
    """A file was written to, cut or lost while it was read; copied again, it can be read.

    Its path is the first of the words.
    """


class FetchError(CutawayError):
    """A model could not be fetched; no partial file was left in the cache."""


class ModelLoadError(CutawayError):
    """A model that is loaded on demand could not be loaded; other models are still served."""


class OutOfMemoryError(CutawayError, MemoryError):
    """There was not enough memory for a step; the model works on once there is."""


class DiskFullError(CutawayError):
    """A file could not be written, since its disk or its owner's share of it is full."""


class ClosedError(CutawayError):
    """The model or server that was asked is closed, or was closed while it worked."""


class ReplayError(CutawayError):
    """A text that should be continued differs from the one that was cut."""


class ReplicaLostError(CutawayError):
    """A replica died, hangs or shuts down; another may take its jobs."""


class QueueFullError(CutawayError):
    """Too many requests are waiting; the same request may be accepted later."""
