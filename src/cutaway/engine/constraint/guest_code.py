"""Code that a request brings along or causes to run: constraints, checks, processors.

Knows whose an exception is that comes while such code runs. An Exception is its request's own
error, and nobody else's. Any other, such as a KeyboardInterrupt, may have been thrown into the
thread: it is raised there, and the step that it tears is undone (``Engine.begin``). Where one comes
again before the text has gone on, it is the code's own, as a panic of a native library is.
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

    outbox   says how far the text has come
    torn_at  how far it had come when such code was last left by what is no Exception
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox, self.torn_at = outbox, -1

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what the function returns, or raise the Exception that it raises.

        Another BaseException is raised as it is, and as a CutawayError where it comes again.
        """
        try:
            return function(*args, **kwargs)
        except Exception:
            raise
        except BaseException as error:
            if self.torn_at != (come := len(self._outbox.emissions)):
                self.torn_at = come
                raise
            raise CutawayError(f"{type(error).__name__}: {error}") from error

    def ask(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As ``call``, but an Exception becomes a CutawayError."""
        try:
            return self.call(function, *args, **kwargs)
        except CutawayError:
            raise
        except Exception as error:
            raise as_cutaway_error(error) from error

    def guard_processors(self, params: SamplingParams) -> SamplingParams:
        """The same settings, whose processors are called from here."""
        if not params.processors:
            return params
        guarded = tuple([self._guarded(processor) for processor in params.processors])
        return replace(params, processors=guarded)

    def _guarded(self, processor: Processor) -> Processor:
        return lambda token_ids, logits: self.call(processor, token_ids, logits)


class GuestConstraint(Constraint):
    """A constraint of which every method raises nothing but CutawayError.

    It is the only one that the loop calls.
    """

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

    def forced(self) -> Sequence[int]:
        """See ``Constraint``."""
        return self._code.ask(self._inner.forced)

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
