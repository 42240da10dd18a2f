"""Errors that a person can act on.

Every message is one sentence that names the field or file and the fix; the command line, the server
and the page show it alone, without a traceback.
"""


class CutawayError(Exception):
    """Base of all errors that cutaway explains itself."""


class InputError(CutawayError, ValueError):
    """The caller asked for something impossible: a value out of range, an unknown name."""


class TooLongError(InputError):
    """A prompt leaves no room for an answer in the model's context."""


class FormatError(InputError):
    """A file is truncated, corrupt, hostile or of an unsupported kind."""


class FileChangedError(FormatError):
    """A file was written to, cut or lost while it was read; copied again, it can be read."""


class FetchError(CutawayError):
    """A model could not be fetched; no partial file was left in the cache."""


class ModelLoadError(CutawayError):
    """A model that is loaded on demand could not be loaded; other models are still served."""


class OutOfMemoryError(CutawayError, MemoryError):
    """There was not enough memory for a step; once there is, the model goes on working."""


class DiskFullError(CutawayError):
    """A file could not be written, since its disk or its owner's share of it is full."""


class ClosedError(CutawayError):
    """What was asked is closed, or was while it worked: a server that shuts down says so."""


class ReplayError(CutawayError):
    """A text that was to be continued differs from the one that was cut."""


class ReplicaLostError(CutawayError):
    """A replica died, hangs or shuts down; another may take its jobs."""


class QueueFullError(CutawayError):
    """Too many requests are waiting; the same request may be accepted later."""
