"""One text while it is written: what was read of it, and the completion that it makes.

Knows a sequence, its options and the steps that came. Refuses to know who turns the loop.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING

from cutaway.api.completion import Completion, Stopwatch, Usage, chain_as_data, held_back
from cutaway.api.options import Options
from cutaway.engine import Sequence, TokenStep
from cutaway.engine.fingerprint import START
from cutaway.errors import CutawayError

if TYPE_CHECKING:
    from cutaway.api.recording import Begin, Machine, Recorder
    from cutaway.trace import Parent


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a completion and a trace tell about their model."""

    name: str
    load_s: float
    machine: "Callable[[], Machine]"
    token_bytes: Callable[[int], bytes]


class Writing:
    """A sequence and its reader: the steps that were read, when they came, and their trace.

    held_back  the text that an early end releases
    notes      see ``Completion``
    watch      when it was asked for, and when tokens came
    """

    def __init__(
        self, sequence: Sequence, options: Options, loaded: Loaded, asked: float | None = None
    ) -> None:
        """asked: when, on the clock of ``perf_counter``; None is now."""
        self.sequence, self.options, self.watch = sequence, options, Stopwatch(asked)
        self.steps: list[TokenStep] = []
        self.notes: tuple[str, ...] = ()
        self.held_back = ""
        self._loaded = loaded
        self._recorder: Recorder | None = None
        self._closed = False

    def record(
        self,
        into: "str | PathLike[str] | Begin",
        *,
        prompt: str | None = None,
        parent: "Parent | None" = None,
    ) -> None:
        """Tell a trace of this text, of which no step was made yet, while it is made.

        into: a file's path, or what begins a trace elsewhere; prompt: the text, if it was one;
        parent: what this is a fork of. InputError where the file cannot be begun, or the steps
        are not observed: see ``RunParams.candidates``.
        """
        from cutaway.api.recording import Recorder

        machine = self._loaded.machine()
        self._recorder = Recorder(
            into, self.sequence, self.options, machine, prompt=prompt, parent=parent
        )

    def arrived(self, step: TokenStep, made: float | None = None) -> None:
        """A step was made, now or then. CutawayError where it cannot be recorded; then none is."""
        self.watch.token(made)
        try:
            if self._recorder:
                self._recorder.step(step)
        except CutawayError:
            self._recorder = None
            raise

    def closed(self) -> None:
        """Nothing more is read."""
        self._closed = True
        self.held_back = held_back(self.steps, self._loaded.token_bytes)
        if self._recorder:
            self._recorder.end()

    def completion(self) -> Completion:
        """What there is so far; of a stream that was not read to its end, the part that was."""
        sequence, usage, loaded = self.sequence, self.usage(), self._loaded
        last = self.steps[-1] if self.steps else None
        return Completion(
            model=loaded.name,
            prompt_token_ids=sequence.prompt_token_ids,
            token_ids=tuple(step.token_id for step in self.steps),
            text="".join(step.text for step in self.steps) + self.held_back,
            finish_reason=str((last and last.finish_reason) or self._unread()),
            matched=last.matched if last else None,
            usage=usage,
            params=self.options.in_force(sequence.seed),
            params_source=self.options.sources,
            chain=chain_as_data(sequence),
            seed=sequence.seed,
            timing=self.watch.timing(loaded.load_s, usage.prompt_tokens, usage.completion_tokens),
            fingerprint=f"{last.fingerprint if last else START:016x}",
            prompt_logprobs=tuple(sequence.prompt_logprobs),
            speculation=replace(sequence.speculation),
            notes=self.notes,
            error=str(sequence.error) if sequence.error else None,
            steps=tuple(self.steps),
        )

    def _unread(self) -> str:
        """Why a text ends whose last step was not read or did not come."""
        if self.sequence.error:
            return "error"
        return "aborted" if self._closed else "unfinished"

    def usage(self) -> Usage:
        """Tokens in, and out as far as they were read."""
        prompt, cached = self.sequence.prompt_token_ids, self.sequence.num_cached_tokens
        return Usage(len(prompt), cached or 0, len(self.steps))
