"""Reading texts while they are written, one thread for all: whoever reads turns the loop.

Knows which sequence's steps belong to whom. Refuses to know models, prompts as text,
HTTP and terminals.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary, finalize

from cutaway.completion import Completion, Stopwatch, Usage, chain_as_data
from cutaway.engine import Engine, TokenStep
from cutaway.engine import Sequence as EngineSequence
from cutaway.engine.fingerprint import START
from cutaway.errors import CutawayError
from cutaway.options import Options

if TYPE_CHECKING:
    from cutaway.recording import Machine, Recorder
    from cutaway.trace import Parent

__all__ = ["Loaded", "Stream", "SyncEngine"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a completion and a trace tell about their model."""

    name: str
    load_s: float
    machine: "Callable[[], Machine]"


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


class Stream(Iterator[TokenStep]):
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
        self._engine, self._options, self._watch = engine, options, Stopwatch()
        params = replace(options.sampling, seed=seed)
        self.sequence: EngineSequence = engine.engine.add(
            prompt, params, options.stops, options.run, leader=leader.sequence if leader else None
        )
        self.steps: list[TokenStep] = []
        self.held_back = ""
        self._recorder: Recorder | None = None
        self.stop_asked = self._closed = False
        self._arrived: deque[TokenStep] = deque()
        engine.open[self.sequence.id] = self
        finalize(self, engine.abandoned.append, self.sequence).atexit = False

    def record(
        self,
        path: str | PathLike[str],
        *,
        prompt: str | None = None,
        parent: "Parent | None" = None,
    ) -> None:
        """Write a trace of this text, of which no step was made yet, while it is made.

        prompt: the text, if it was one; parent: what this is a fork of. InputError where the
        file cannot be begun, or the steps are not observed: see ``RunParams.candidates``.
        """
        from cutaway.recording import Recorder

        machine = self._engine.loaded.machine()
        self._recorder = Recorder(
            Path(path), self.sequence, self._options, machine, prompt=prompt, parent=parent
        )

    def receive(self, step: TokenStep) -> None:
        """Take a step of this sequence from the loop, which may be turned by another stream."""
        self._watch.token()
        self._arrived.append(step)
        try:
            if self._recorder:
                self._recorder.step(step)
        except CutawayError as error:  # of this text alone: whoever turns the loop goes on
            self._recorder = None
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
        self._closed = True
        if not (self.steps and self.steps[-1].finish_reason):
            to_bytes = self._engine.engine.token_bytes
            whole = b"".join(to_bytes(step.token_id) for step in self.steps)
            shown = sum(len(step.text) for step in self.steps)
            self.held_back = whole.decode("utf-8", "replace")[shown:]
        if self._recorder:
            self._recorder.end()

    def finish(self) -> Completion:
        """Run to the end and return the completion; raise what the sequence failed with."""
        for _ in self:
            pass
        return self.completion()

    def completion(self) -> Completion:
        """What there is so far; of a stream that was not read to its end, the part that was."""
        sequence, usage, loaded = self.sequence, self._usage(), self._engine.loaded
        last = self.steps[-1] if self.steps else None
        return Completion(
            model=loaded.name,
            prompt_token_ids=sequence.prompt_token_ids,
            token_ids=tuple(step.token_id for step in self.steps),
            text="".join(step.text for step in self.steps) + self.held_back,
            finish_reason=str((last and last.finish_reason) or self._unread()),
            matched=last.matched if last else None,
            usage=usage,
            params=self._options.in_force(sequence.seed),
            params_source=self._options.sources,
            chain=chain_as_data(sequence),
            seed=sequence.seed,
            timing=self._watch.timing(loaded.load_s, usage.prompt_tokens, usage.completion_tokens),
            fingerprint=f"{last.fingerprint if last else START:016x}",
            prompt_logprobs=tuple(sequence.prompt_logprobs),
            speculation=replace(sequence.speculation),
            error=str(sequence.error) if sequence.error else None,
            steps=tuple(self.steps),
        )

    def _unread(self) -> str:
        """Why a text ends whose last step was not read or did not come."""
        if self.sequence.error:
            return "error"
        return "aborted" if self._closed else "unfinished"

    def _usage(self) -> Usage:
        prompt, cached = self.sequence.prompt_token_ids, self.sequence.num_cached_tokens
        return Usage(len(prompt), cached or 0, len(self.steps))
