"""Guest code: the constraints, checks and processors that a request brings.

An Exception from guest code becomes the error of its request, and ends no other request. Any
other BaseException, such as a KeyboardInterrupt, may have been thrown into the thread: it is raised
as it is, and the interrupted step is undone (``Engine.begin_change``). If a second one comes before
the text has new events, the code itself raised it, as the panic of a native library does, and it
becomes a CutawayError.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ParamSpec, TypeVar

from cutaway.engine.constraint import Constraint, Mask
from cutaway.engine.events import Outbox, as_cutaway_error
from cutaway.errors import CutawayError
from cutaway.sampling import Processor, SamplingParams

P = ParamSpec("P")
T = TypeVar("T")


class GuestCode:
    """Calls code that one sequence's request brought.

    outbox          the sequence's events; their number is the text's progress
    interrupted_at  the progress when guest code last raised a BaseException that is no Exception
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox, self.interrupted_at = outbox, -1

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what the function returns, or raise the Exception that it raises.

        Any other BaseException passes through; a second one without progress is a CutawayError.
        """
        try:
            return function(*args, **kwargs)
        except Exception:
            raise
        except BaseException as error:
            if self.interrupted_at != (come := len(self._outbox.emissions)):
                self.interrupted_at = come
                raise
            raise CutawayError(f"{type(error).__name__}: {error}") from error

    def ask(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function as ``call`` does, but turn an Exception into a CutawayError."""
        try:
            return self.call(function, *args, **kwargs)
        except CutawayError:
            raise
        except Exception as error:
            raise as_cutaway_error(error) from error

    def guard_processors(self, params: SamplingParams) -> SamplingParams:
        """Return the same settings, with processors that ``call`` calls."""
        if not params.processors:
            return params
        guarded = tuple([self._guard(processor) for processor in params.processors])
        return replace(params, processors=guarded)

    def _guard(self, processor: Processor) -> Processor:
        return lambda token_ids, logits: self.call(processor, token_ids, logits)


class GuestConstraint(Constraint):
    """A constraint whose methods raise only CutawayError; the loop calls no other constraint."""

    def __init__(self, inner: Constraint, code: GuestCode) -> None:
        self._inner, self._code = inner, code

    def mask(self) -> Mask | None:
        """See ``Constraint``."""
        return self._code.ask(self._inner.mask)

    def accept(self, token_id: int) -> None:
        """See ``Constraint``."""
        self._code.ask(self._inner.accept, token_id)

    def fork(self) -> "GuestConstraint":
        """An independent copy in the same state."""
        return GuestConstraint(self._code.ask(self._inner.fork), self._code)

    def find_forced_tokens(self) -> Sequence[int]:
        """See ``Constraint``."""
        return self._code.ask(self._inner.find_forced_tokens)

    @property
    def is_over(self) -> bool:
        """See ``Constraint``."""
        return self._code.ask(lambda: self._inner.is_over)

    @property
    def checks(self) -> Sequence[str]:
        """See ``Constraint``."""
        return self._inner.checks

    @property
    def refused_by(self) -> tuple[str, ...]:
        """See ``Constraint``."""
        return self._code.ask(lambda: self._inner.refused_by)
