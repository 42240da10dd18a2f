"""Errors that a person can act on.

Every message is one sentence that names the field or file and the fix; the command line, the server
and the page show only the message, without a traceback. An error knows which of its words are names
of fields, since the three write names in different ways; none of them parses a sentence.
"""

from typing import Self


class CutawayError(Exception):
    """Base of all errors whose message cutaway writes."""


class Name(str):
    """A field's name within a sentence, written as in code: messages[0].content

    path   the field, then the keys and indices that lead to a part of its value
    prose  words after the name, which describe that part of the value
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

    A single argument is a sentence about no field. With more arguments, the first is the field, and
    the others are the rest of the sentence, as in ``InputError("top_p", " must be at most 1")``;
    fields among them are of the type ``Name``.
    """

    def __init__(self, *words: str) -> None:
        super().__init__(*words)

    def __str__(self) -> str:
        return "".join(self.args)

    @property
    def name(self) -> Name | None:
        """The field, or part of a field, that the error is about; None if there is no field."""
        return Name(self.args[0]) if len(self.args) > 1 else None

    @property
    def path(self) -> tuple[str | int, ...]:
        """The path of ``name``; empty for an error about no field."""
        return self.name.path if self.name is not None else ()

    @property
    def field(self) -> str | None:
        """The name of the whole field, without the path within it; None if there is no field."""
        return next((str(part) for part in self.path), None)

    @property
    def index(self) -> int | None:
        """The index in the field's list that the error is about; None if there is no index."""
        return next((part for part in self.path[1:2] if isinstance(part, int)), None)

    @property
    def reason(self) -> str:
        """The words that follow the field's name: ": it is empty", " must be 1"."""
        return str(self.args[-1]) if self.path else f": {self}"

    def with_name(self, *path: str | int) -> Self:
        """Return the error with another name for its field."""
        prose = self.name.prose if self.name is not None else ""
        return type(self)(Name(*path, prose=prose), *self.args[1:])


class TooLongError(InputError):
    """A prompt leaves no room for an answer in the model's context."""


class CompileLimitError(InputError):
    """Compiling a client's grammar takes more time, memory or trials than it may."""


class FormatError(InputError):
    """A file is truncated, corrupt, hostile or of an unsupported kind."""


class FileChangedError(FormatError):
    """A file was changed, truncated or lost while it was read; a fresh copy can be read.

    The error's first argument is the file's path.
    """


class FetchError(CutawayError):
    """A model could not be fetched; no partial file was left in the cache."""


class ModelLoadError(CutawayError):
    """A model that is loaded on demand could not be loaded; other models are still served."""


class OutOfMemoryError(CutawayError, MemoryError):
    """There was not enough memory for a step; the model continues once there is."""


class DeviceLostError(CutawayError):
    """A GPU takes no more calls, as after a reset of its driver; the model must be loaded again."""


class DiskFullError(CutawayError):
    """A file could not be written: its disk, or its owner's quota, is full."""


class ClosedError(CutawayError):
    """The model or server is closed, or was closed during the call."""


class ReplayError(CutawayError):
    """A text computed again, to be continued, differs from the text that was interrupted."""


class ReplicaLostError(CutawayError):
    """A replica died, hangs or shuts down; another may take its jobs."""


class QueueFullError(CutawayError):
    """Too many requests are waiting; the same request may be accepted later."""
