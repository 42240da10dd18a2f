"""Continuing a run that was cut: the same request, with the recorded tokens as ``replay``."""

from functools import partial
from typing import Any

from cutaway.api.llm import LLM
from cutaway.engine import Pass, Step
from cutaway.errors import InputError, ReplayError
from cutaway.requests.stream import Stream
from cutaway.rerun.request import (
    check_vocabulary,
    disagreements,
    prompt_of,
    refuse_others,
    settings_of,
)
from cutaway.trace import End, Head, Trace, TraceWriter
from cutaway.trace.sinks import TokenOf


def check_cut(trace: Trace) -> None:
    """InputError unless this is the trace of a cut run, in a file that can be continued."""
    name = trace.path or "the trace"
    if trace.end:
        raise InputError(
            f"{name} has an end already ({trace.end.reason}): there is nothing to resume; "
            "'cutaway trace branch' writes another text from any of its steps"
        )
    if trace.path is None or trace.path.suffix == ".gz":
        raise InputError(
            f"{name}: a gzipped trace cannot be continued after a cut: unpack it first, with "
            "gzip -dc into another file"
        )


def resume(llm: LLM, trace: Trace, **how: Any) -> Stream:
    """A stream of the whole text; its recorded part is computed like a prompt, and the rest is
    appended to the file.

    The file is then that of a run that was never cut, except for times. Each recorded step and pass
    must have the same logits again: where one differs, the text ends with a ReplayError, and the
    file stays unchanged, except for an incomplete last line.

    how: ``speculate`` and ``kv_cache``, if other than recorded. InputError where the run has ended,
    or the model, the backend or the grammar are not the recorded ones.
    """
    check_cut(trace)
    check_vocabulary(llm, trace)
    head = trace.head
    options = settings_of(head) | _observed(head) | {"replay": trace.output_token_ids} | how
    stream = llm.stream(prompt_of(llm, head), **options)
    try:
        refuse_others(disagreements(head, llm, stream), head.model)
        stream.record(partial(RestOfTrace, trace))
    except BaseException:
        stream.close()
        raise
    return stream


def _observed(head: Head) -> dict[str, Any]:
    """Keywords with which every step observes what the recorded ones did."""
    speculate = str(head.params.get("speculate", "off"))
    return {
        "candidates": head.candidates,
        "track": tuple(head.params.get("track", ())),
        "speculate": "off" if speculate.startswith("draft") else speculate,
    }


class RestOfTrace:
    """A sink that compares recorded steps and passes, and writes those that follow.

    A run that is cut again, or differs from the recorded one, leaves the file without an end.
    """

    def __init__(self, trace: Trace, _: Head, token_of: TokenOf) -> None:
        assert trace.path is not None
        self._trace, self._steps_seen = trace, 0
        self._file = TraceWriter(trace.path, trace.head, token_of, rest_of=trace)

    @property
    def closed(self) -> bool:
        """Whether nothing can follow."""
        return self._file.closed

    def add(self, event: Step | Pass) -> None:
        """Compare the next step or pass with the recorded one, or write it if there is none."""
        is_step = isinstance(event, Step)
        self._steps_seen += is_step
        recorded = (self._trace.steps if is_step else self._trace.passes)[event.index :]
        if not recorded:
            self._file.add(event)
        elif event.fingerprint != recorded[0].fingerprint:
            self._refuse(f"{'step' if is_step else 'pass'} {event.index}")
        elif isinstance(event, Step) and event.token_id != self._trace.steps[event.index].token_id:
            self._file.close()  # the text ends with an error that says so

    def end(self, end: End) -> None:
        """Write why the text ended, unless it was cut again or stopped within the recorded part."""
        if end.reason == "aborted" or self._steps_seen < len(self._trace.steps):
            self._file.close()
        else:
            self._file.end(end)

    def close(self) -> None:
        """Leave the file without an end."""
        self._file.close()

    def _refuse(self, what: str) -> None:
        self._file.close()
        raise ReplayError(
            f"{self._trace.path}: {what} differs from the recorded logits: other weights or "
            "another arithmetic wrote it; nothing was added"
        )
