"""SyncLLM: a model whose engine is in this process; any thread may read its streams."""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from cutaway.compute.loading.model import LoadedModel
from cutaway.engine import Engine, Request
from cutaway.errors import CutawayError, InputError
from cutaway.requests.base import BaseLLM
from cutaway.requests.drafting import load_draft
from cutaway.requests.options import Options
from cutaway.requests.owner import EngineOwner
from cutaway.requests.prepared import prepare
from cutaway.requests.prompts import Prompt
from cutaway.requests.stream import Stream

if TYPE_CHECKING:
    from typing import Unpack

    from cutaway.requests.keywords import RequestOptions
    from cutaway.text.grammar.compiler import Compiled


class SyncLLM(BaseLLM):
    """What ``methods/`` needs of a model. owner: steps its engine."""

    def __init__(self, model: LoadedModel, owner: EngineOwner, *, progress: bool) -> None:
        super().__init__(model, progress)
        self.owner = owner

    @property
    def engine(self) -> Engine:
        """The engine. To be used between steps only: see ``EngineOwner.call``."""
        return self.owner.engine

    def request(self, token_ids: Sequence[int], **parts: Any) -> Request:
        """A request for this model, under its adapter if it has one."""
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

        traces: paths of their traces, where those of several prompts are numbered together
        grammar: the options' grammar, if it is compiled already
        """
        asked_at = perf_counter()
        try:
            prepared = prepare(self, prompt, options, grammar)
            if options.draft is not None:
                self.load_draft(options.draft)

            def add() -> list[Stream]:
                added = self.engine.add(prepared.request, options.n)
                each = [(s, prepared._replace(request=s.request)) for s in added]
                return [Stream(self.owner, s, own, self.model, asked_at) for s, own in each]

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

    def stream(self, prompt: Prompt, **options: "Unpack[RequestOptions]") -> Stream:
        """Continue a prompt, yielding each Step as it is made. Options as for generate."""
        parsed = self.parse_options(options)
        if parsed.n != 1:
            raise InputError("n must be 1 to stream; streams and generate take several")
        return self.add(prompt, parsed)[0]

    def load_draft(self, name: str) -> None:
        """Load what drafts, draft:MODEL or mtp, unless it is loaded. Errors as of `load_draft`."""
        if self.draft != name:
            self.owner.call(partial(self._load_draft, name))

    @property
    def draft(self) -> str:
        """What is loaded to draft, draft:MODEL or mtp; "" for nothing."""
        loaded = self.engine.speculator.draft
        return loaded.name if loaded else ""

    def _load_draft(self, name: str) -> None:
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
