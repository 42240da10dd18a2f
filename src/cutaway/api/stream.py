"""Reading texts while they are written, one thread for all: whoever reads turns the loop.

Knows which sequence's steps belong to whom. Refuses to know models, prompts as text,
HTTP and terminals.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter
from weakref import WeakValueDictionary, finalize

from cutaway.api.completion import Completion
from cutaway.api.options import Options
from cutaway.api.writing import Loaded, Writing
from cutaway.engine import Engine, TokenStep
from cutaway.engine import Sequence as EngineSequence
from cutaway.errors import CutawayError

__all__ = ["Stream", "SyncEngine"]


class SyncEngine:
    """The synchronous face of an engine. Not safe to use from several threads at once."""

    def __init__(self, engine: Engine, loaded: Loaded) -> None:
        self.engine, self.loaded = engine, loaded
        self.open: WeakValueDictionary[int, Stream] = WeakValueDictionary()  # by sequence id
        self.abandoned: deque[EngineSequence] = deque()

    def turn(self) -> None:
        """One turn of the loop; every sequence's step goes to its stream."""
        self.end_abandoned()
        for step in self.engine.step():
            if (stream := self.open.get(step.sequence_id)) is not None:
                stream.receive(step)

    def end_abandoned(self) -> None:
        """End what nobody can read any more. Not at once: that may be in the midst of a step."""
        while self.abandoned:
            self.engine.abort(self.abandoned.popleft())

    def run(self, streams: "Sequence[Stream]", tell: Callable[[int], object]) -> None:
        """Turn the loop until these have all ended; ``tell`` how many have, as it grows."""
        left = list(streams)
        while left:
            self.turn()
            left = [s for s in left if not s.sequence.finish_reason]
            tell(len(streams) - len(left))


class Stream(Writing, Iterator[TokenStep]):
    """The steps of one sequence as they are made; ``completion()`` when they have ended.

    Closing it (or leaving its ``with`` block, or dropping it) early ends the sequence as
    "aborted". ``held_back`` is the text that such an end releases. What goes wrong with this
    sequence alone, such as an error in the caller's own processor, is raised to its reader.
    """

    def __init__(
        self,
        engine: SyncEngine,
        prompt: Sequence[int],
        options: Options,
        seed: int | None,
        leader: "Stream | None" = None,
    ) -> None:
        asked, params = perf_counter(), replace(options.sampling, seed=seed)
        sequence = engine.engine.add(
            prompt, params, options.stops, options.run, leader=leader.sequence if leader else None
        )
        super().__init__(sequence, options, engine.loaded, asked)
        self._engine = engine
        self.stop_asked = False
        self._arrived: deque[TokenStep] = deque()
        engine.open[self.sequence.id] = self
        finalize(self, engine.abandoned.append, self.sequence).atexit = False

    def receive(self, step: TokenStep) -> None:
        """Take a step of this sequence from the loop, which may be turned by another stream."""
        self._arrived.append(step)
        try:
            self.arrived(step)
        except CutawayError as error:  # of this text alone: whoever turns the loop goes on
            self._engine.engine.fail(self.sequence, error)

    def __next__(self) -> TokenStep:
        while not self._arrived or self._closed:
            if self.stop_asked or self._closed or self.sequence.finish_reason:
                self.close()
                if self.sequence.error:
                    raise self.sequence.error
                raise StopIteration
            self._engine.turn()
        self.steps.append(self._arrived.popleft())
        return self.steps[-1]

    def stop(self) -> None:
        """Ask for the end: what has come can be read, and the next turn is not begun.

        Safe in a signal handler.
        """
        self.stop_asked = True

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the sequence if it has not ended, and free what it held."""
        self._engine.engine.abort(self.sequence)
        self._engine.open.pop(self.sequence.id, None)
        self.closed()

    def finish(self) -> Completion:
        """Run to the end and return the completion; raise what the sequence failed with."""
        for _ in self:
            pass
        return self.completion()
