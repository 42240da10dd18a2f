"""What can go wrong and be explained in one sentence.

Knows the kinds of failure that a person can act on. Every message names the field or file and the
fix; faces print the message alone, without a traceback.
"""


class CutawayError(Exception):
    """Base of every failure that cutaway explains itself."""


class InputError(CutawayError, ValueError):
    """The caller asked for something that cannot be: a value out of range, an unknown name."""


class TooLongError(InputError):
    """A prompt leaves no room to answer in the model's context."""


class FormatError(InputError):
    """A file is truncated, corrupt, hostile or of a kind that is not supported."""


class FetchError(CutawayError):
    """A model could not be fetched; nothing half-finished was left in the cache."""


class ModelLoadError(CutawayError):
    """A model that is loaded when it is used could not be; others are served on."""


class ReplayError(CutawayError):
    """A text that was to go on where it was cut is not the one that was being written."""


class ReplicaLostError(CutawayError):
    """A replica died, hangs or leaves; another may do what was asked of it."""


class QueueFullError(CutawayError):
    """Too many requests wait already; the same request may be welcome later."""
