"""SyncLLM: a model whose engine is in this process; any thread may read its streams.

Stream yields one sequence's steps as they are made; LogitsReader gathers its prompt's logits. An
EngineOwner steps the engine.
"""

import sys
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from cutaway.compute.backends import Logits
from cutaway.compute.loading.model import LoadedModel
from cutaway.engine import (
    Ended,
    Engine,
    Event,
    Pass,
    Request,
    Scored,
    Step,
)
from cutaway.engine import Sequence as EngineSequence
from cutaway.errors import CutawayError, InputError
from cutaway.requests.base import BaseLLM, Prompt
from cutaway.requests.completion import Completion
from cutaway.requests.generation import Generation
from cutaway.requests.keywords import RequestOptions
from cutaway.requests.options import Options
from cutaway.requests.owner import EndListener, EngineOwner
from cutaway.requests.prepared import Prepared, prepare
from cutaway.requests.shown_step import ShownStep
from cutaway.requests.signatures import names_keywords

if TYPE_CHECKING:
    from typing import Unpack

    from cutaway.text.grammar.compiler import Compiled


class Stream(Generation, Iterator[Step]):
    """Yields each Step of one sequence; ``completion()`` has the result after the last Step.

    Closing it early (or leaving its ``with`` block, or dropping it) ends the sequence as "aborted".
    So does an interrupt (KeyboardInterrupt) of a thread that waits for a step. ``held_text`` is the
    text that such an end releases. An error of this sequence alone, such as one in the caller's own
    processor, is raised to its reader.
    """

    def __init__(
        self,
        owner: EngineOwner,
        sequence: EngineSequence,
        prepared: Prepared,
        model: LoadedModel,
        asked_at: float,
    ) -> None:
        """Call this between steps, for a sequence that was just added."""
        super().__init__(sequence.id, prepared, model, asked_at)
        self.stop_asked = False
        self._owner, self._sequence = owner, sequence
        self._outbox = owner.follow(sequence)
        self._reading = Lock()  # one stream may be read by several threads

    def __next__(self) -> Step:
        while isinstance(event := self._next(), Pass):
            pass
        return event

    def events(self) -> Iterator[Step | Pass]:
        """Yield each step, and each pass of a canvas, as they are made."""
        with suppress(StopIteration):
            while True:
                yield self._next()

    def _next(self) -> Step | Pass:
        try:
            return self._wait_for_next()
        except Exception:
            raise
        except BaseException:  # a notebook keeps the traceback, and with it this stream: end it now
            self.close()
            raise

    def _wait_for_next(self) -> Step | Pass:
        while not self._closed:
            if self._outbox.has_news:
                if (event := self._read()) is not None:
                    return event
            elif self.stop_asked or self._end:
                break
            else:
                self._owner.wait(self._has_news)
        self.close()
        if self.error:
            raise self.error
        raise StopIteration

    # fmt: off
    def _read(self) -> Step | Pass | None:  # on one line each: see owner.py
        with self._reading: return self._take()  # noqa: E701

    def _read_unseen(self) -> None:
        with self._reading: self._note_all()  # noqa: E701
    # fmt: on

    def _note_all(self) -> None:
        """Note the events that were not read."""
        while self._note_next() is not None:
            pass

    def _take(self) -> Step | Pass | None:
        """Take events up to the next step or pass; None if it has not come."""
        while (event := self._note_next()) is not None:
            if isinstance(event, Step):
                self.steps.append(event)
                return ShownStep.with_names(event, self._model.tokenizer)
            if isinstance(event, Pass):
                self.passes.append(event)
                return event
        return None

    def _note_next(self) -> Event | None:
        """Take the next event and note it; None if it has not come."""
        if (emission := self._outbox.take()) is None:
            return None
        self.speculation = emission.speculation
        try:
            self.receive(emission.event, emission.emitted_at)
        except CutawayError as error:  # its trace cannot be written: only this sequence fails
            self._owner.call(partial(self._owner.engine.fail, self._sequence, error))
        return emission.event

    @property
    def ended(self) -> Ended | None:
        """The last event as soon as it comes, even before the steps before it are read."""
        return self._end or self._outbox.end

    @ended.setter
    def ended(self, end: Ended | None) -> None:
        self._end = end

    @property
    def num_arrived(self) -> int:
        """Tokens written so far, read or not."""
        return len(self.steps) + sum(isinstance(event, Step) for event in self._outbox.news)

    def _has_news(self) -> bool:
        return self._outbox.has_news or self._closed or self.stop_asked

    def stop(self) -> None:
        """Begin no more steps; steps that were made can still be read.

        Safe in a signal handler.
        """
        self.stop_asked = True

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the sequence if it has not ended, and free its blocks."""
        if not self._closed:
            self._owner.abort(self._sequence)
            self._read_unseen()  # so that a trace has them
            self.abort()

    def finish(self) -> Completion:
        """Run to the end and return the completion; raises the sequence's error."""
        for _ in self:
            pass
        return self.completion()


class LogitsReader(EndListener):
    """Gathers the logits of a scored sequence, from position ``start`` on."""

    def __init__(self, rows: int, vocab: int, start: int) -> None:
        super().__init__()
        self._start = start
        self._logits = np.empty((rows, vocab), np.float32)

    def take(self, event: Event) -> None:
        """See ``EndListener``."""
        if isinstance(event, Scored) and event.logits is not None:
            at = event.position - 1 - self._start
            self._logits[at : at + len(event.logits)] = event.logits

    def logits(self) -> Logits:
        """The logits, float32 (rows, vocab), after the sequence's end; raises its error."""
        self.check("logits")
        return self._logits


# -- the model ---------------------------------------------------------------------------------


class SyncLLM(BaseLLM):
    """A model as ``methods/`` needs it. owner: steps its engine."""

    def __init__(self, model: LoadedModel, owner: EngineOwner, *, progress: bool) -> None:
        super().__init__(model, progress)
        self.owner = owner

    @property
    def engine(self) -> Engine:
        """The engine. Use it between steps only: see ``EngineOwner.call``."""
        return self.owner.engine

    def request(self, token_ids: Sequence[int], **parts: Any) -> Request:
        """Return a request for this model, with its adapter if it has one."""
        adapter = self.model.request_adapter
        return Request(prompt_token_ids=tuple(token_ids), adapter=adapter, **parts)

    def add(
        self,
        prompt: Prompt,
        options: Options,
        traces: Iterator[Path] | None = None,
        grammar: "Compiled | None" = None,
    ) -> list[Stream]:
        """Queue the n samples of a prompt, all or none.

        traces: the paths of the samples' traces, if the traces of several prompts are numbered
                together
        grammar: the options' grammar, if it is compiled already
        """
        asked_at = perf_counter()
        try:
            prepared = prepare(self, prompt, options, grammar)
            if options.draft is not None:
                self.load_draft(options.draft)

            def add() -> list[Stream]:
                sequences = self.engine.add(prepared.request, options.n)
                samples = [(s, prepared._replace(request=s.request)) for s in sequences]
                return [
                    Stream(self.owner, s, sample, self.model, asked_at) for s, sample in samples
                ]

            traces = traces or options.traces(1)
            streams = self.owner.call(add)
        except ImportError as error:
            if not sys.is_finalizing():
                raise
            raise CutawayError(
                "Python is ending, and can import nothing more that this text needs: write it "
                "earlier, at the latest in a function of atexit"
            ) from error
        if options.trace is not None:
            self._record(streams, traces)
        return streams

    @abstractmethod
    def with_adapter(self, adapter: str) -> Self:
        """Return an LLM of this model with a loaded adapter, for functions that take an LLM.

        It shares engine, weights and prefix cache; closing it closes nothing. "" returns this LLM.
        InputError for an adapter that is not loaded.
        """

    @names_keywords(RequestOptions)
    def stream(self, prompt: Prompt, **options: "Unpack[RequestOptions]") -> Stream:
        """Continue a prompt, and yield each Step as it is made.

        The options are those of ``generate``.
        """
        parsed = self.parse_options(options)
        if parsed.n != 1:
            raise InputError("n", " must be 1 to stream; streams and generate take several")
        return self.add(prompt, parsed)[0]

    def load_draft(self, name: str) -> None:
        """Load a draft model or head, unless it is loaded.

        Raises the errors of the function ``load_draft``.
        """
        if self.draft != name:
            self.owner.call(partial(self._load_draft, name))

    @property
    def draft(self) -> str:
        """The loaded draft model or head, draft:MODEL or mtp; "" for none."""
        loaded = self.engine.speculator.draft
        return loaded.name if loaded else ""

    def _load_draft(self, name: str) -> None:
        from cutaway.requests.drafting import load_draft  # few texts are drafted by a model

        if self.draft != name:  # another thread may have loaded it while this waited
            load_draft(name, self.model, self.engine, progress=self.progress)

    def _record(self, streams: list[Stream], traces: Iterator[Path]) -> None:
        try:
            for stream in streams:
                stream.record(next(traces))
        except BaseException:
            for stream in streams:
                stream.close()
            raise
