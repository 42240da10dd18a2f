"""Replay: the recorded request once more, compared with the record step by step."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from cutaway.api.llm import LLM
from cutaway.engine import Pass, PassCell, Step
from cutaway.errors import InputError
from cutaway.requests.stream import Stream
from cutaway.rerun.request import (
    Disagreement,
    Progress,
    check_room,
    check_vocabulary,
    disagreements,
    prompt_of,
    refuse_others,
    settings_of,
    silent,
)
from cutaway.trace import Trace

_OUTER = ("context_full", "aborted", "error")
"""Reasons for an end that do not follow from the tokens."""


@dataclass(frozen=True, slots=True)
class ReplayMismatch:
    """The first step, or pass over a canvas, that differs from the recorded one.

    what    name -> (recorded, now)
    passed  the pass that differs; None where a step does
    """

    step: int
    what: Mapping[str, tuple[Any, Any]]
    passed: int | None = None


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay.

    passes         how many passes over a canvas were compared
    steps          how many steps were compared, the one that differs included
    recorded       how many steps the trace has
    fingerprint    of the steps compared, in hex
    disagreements  fields of the trace's head that differ in this run
    mismatch       None where every step is the same to the last bit
    """

    steps: int
    recorded: int
    fingerprint: str
    disagreements: tuple[Disagreement, ...]
    mismatch: ReplayMismatch | None
    passes: int = 0

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return self.mismatch is None

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, where ``mismatch`` is called "difference"; with ``same``."""
        plain = {"same": self.same, **asdict(self)}
        plain["difference"] = plain.pop("mismatch")
        return plain


def replay(
    llm: LLM,
    trace: Trace,
    *,
    anyway: bool = False,
    speculate: str = "off",
    kv_cache: bool = True,
    progress: Progress = silent,
) -> Replayed:
    """Run the recorded request again and stop at the first step or pass that differs.

    Compared are each step's token, what the sampler drew, the hash of its logits and the chained
    fingerprint, and all of a pass but its time and its number of rows; then why the text ended and
    the last fingerprint, where the end follows from the tokens. Threads, instruction set, other
    sequences in the batch, ``speculate`` and ``kv_cache`` change none of these. ``progress`` is
    called with ("replaying", tokens done, of how many).

    Raises InputError where the weights, the tokenizer, the backend, the chain or the grammar are
    not the recorded ones, unless ``anyway``; where the vocabulary differs, or the context is too
    small; where the trace has no steps; where the run had processors.
    """
    if not trace.steps and not trace.passes:
        raise InputError("the trace has no steps: there is nothing to replay")
    check_vocabulary(llm, trace)
    check_room(llm, trace)
    options = settings_of(trace.head) | {"speculate": speculate, "kv_cache": kv_cache}
    if not trace.head.decoder:  # for a canvas, max_tokens is its number of cells
        options["max_tokens"] = len(trace.steps)
    with llm.stream(prompt_of(llm, trace.head), **options) as stream:
        found = disagreements(trace.head, llm, stream)
        if not anyway:
            refuse_others(found, trace.head.model, ", or replay anyway")
        mismatch = _compare(trace, stream, progress)
        steps, passes = stream.steps, stream.passes
    fingerprint = f"{steps[-1].fingerprint:016x}" if steps else ""
    return Replayed(len(steps), len(trace.steps), fingerprint, found, mismatch, len(passes))


def _compare(trace: Trace, stream: Stream, progress: Progress) -> ReplayMismatch | None:
    """Compare the text until it differs from the record, or to the end of the record."""
    steps, passes = trace.steps, trace.passes
    total = len(steps) + len(passes)
    while (done := len(stream.steps) + len(stream.passes)) < total:
        progress("replaying", done + 1, total)
        event = next(stream.events(), None)
        if event is None:
            break
        n = event.index
        if isinstance(event, Pass):
            mismatch = _pass_mismatch(passes[n], event) if n < len(passes) else None
        else:
            mismatch = _mismatch(steps[n], event) if n < len(steps) else None
        if mismatch:
            return mismatch
    return _at_the_end(trace, stream)


def _mismatch(recorded: Step, now: Step) -> ReplayMismatch | None:
    return _unequal(
        recorded.index,
        token_id=(recorded.token_id, now.token_id),
        sampled_id=(recorded.sampled_id, now.sampled_id),
        logits_hash=(f"{recorded.logits_hash:016x}", f"{now.logits_hash:016x}"),
        fingerprint=(f"{recorded.fingerprint:016x}", f"{now.fingerprint:016x}"),
    )


_OF_CELL = [name for name in PassCell._fields if name != "observed"]
_OF_PASS = ("block", "masked_again", "bound", "redraw", "fingerprint")


def _pass_mismatch(recorded: Pass, now: Pass) -> ReplayMismatch | None:
    """The fields of a pass that differ, and those of its first cell that differs."""
    old, new = recorded.cells, now.cells
    pairs = {name: (getattr(recorded, name), getattr(now, name)) for name in _OF_PASS}
    pairs["cells"] = len(old), len(new)
    for a, b in zip(old, new, strict=False):
        of_cell = {name: (getattr(a, name), getattr(b, name)) for name in _OF_CELL}
        if any(was != now for was, now in of_cell.values()):
            pairs |= {f"{name} at {a.position}": pair for name, pair in of_cell.items()}
            break
    found = _unequal(now.index, **pairs)
    return found and replace(found, passed=now.index)


def _at_the_end(trace: Trace, stream: Stream) -> ReplayMismatch | None:
    """Compare the ends; all steps and passes that came are equal."""
    count, end, ended = len(stream.steps), trace.end, stream.ended
    if count < len(trace.steps) or len(stream.passes) < len(trace.passes):
        return ReplayMismatch(count, {"end": (None, ended and str(ended.reason))})
    if end is None or end.reason in _OUTER:
        return None
    return _unequal(
        count - 1,
        end=((end.reason, end.matched), ended and (str(ended.reason), ended.matched)),
        fingerprint=(end.fingerprint, stream.fingerprint),  # steps may be missing
    )


def _unequal(step: int, **pairs: tuple[Any, Any]) -> ReplayMismatch | None:
    differing = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    return ReplayMismatch(step, differing) if differing else None
