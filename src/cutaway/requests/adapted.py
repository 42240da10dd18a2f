"""The runner of a model under an adapter: another's, all of whose requests are computed with it.

Refuses to know what is asked, and what an adapter is.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeVar

from cutaway.engine import Engine, Request, Sequence
from cutaway.errors import InputError
from cutaway.requests.runner import Reader, Runner

T = TypeVar("T")


class AdaptedRunner(Runner):
    """See ``Runner``, which everything is left to.

    adapter: as a ``Request`` has it
    """

    def __init__(self, runner: Runner, adapter: str) -> None:
        self._runner, self._adapter = runner, adapter
        self.abandoned = runner.abandoned

    @property
    def engine(self) -> Engine:
        """See ``Runner``."""
        return self._runner.engine

    @property
    def steps(self) -> int:
        """See ``Runner``."""
        return self._runner.steps

    @property
    def draft(self) -> str:
        """See ``Runner``."""
        return self._runner.draft

    @draft.setter
    def draft(self, name: str) -> None:
        self._runner.draft = name

    def call(self, function: Callable[[], T]) -> T:
        """See ``Runner``."""
        return self._runner.call(function)

    def listen(self, sequence: Sequence, reader: Reader) -> None:
        """See ``Runner``."""
        self._runner.listen(sequence, reader)

    @contextmanager
    def running(self, request: Request, reader: Reader) -> Iterator[Sequence]:
        """See ``Runner``."""
        with self._runner.running(request.but(adapter=self._adapter), reader) as sequence:
            yield sequence

    def wait(self, ready: Callable[[], object]) -> None:
        """See ``Runner``."""
        self._runner.wait(ready)

    def turn(self) -> None:
        """See ``Runner``."""
        self._runner.turn()

    def abort(self, sequence_id: int) -> None:
        """See ``Runner``."""
        self._runner.abort(sequence_id)

    def hand_over(self, why: str) -> NoReturn:  # noqa: ARG002
        """The engine is that of the model itself."""
        raise InputError("a model under an adapter has no engine of its own: give the model itself")

    def close(self, why: str) -> None:
        """It ends with the model itself."""
