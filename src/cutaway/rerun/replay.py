"""Replay: the recorded request once more, compared with the record step by step."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cutaway.api.llm import LLM
from cutaway.engine import Ended, Step
from cutaway.errors import InputError
from cutaway.rerun.request import (
    Disagreement,
    Progress,
    check_room,
    check_vocabulary,
    disagreements,
    settings_of,
    silent,
)
from cutaway.trace import Trace

_OUTER = ("context_full", "aborted", "error")
"""Reasons to end that do not follow from the tokens."""


@dataclass(frozen=True, slots=True)
class ReplayMismatch:
    """The first step that is not as it was recorded: name -> (on record, now)."""

    step: int
    what: Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay.

    steps          how many were compared, the one that differs included
    recorded       how many the trace has
    fingerprint    of the steps compared, in hex
    disagreements  fields of the trace's head that differ in this run
    mismatch       None where every step is the same to the last bit
    """

    steps: int
    recorded: int
    fingerprint: str
    disagreements: tuple[Disagreement, ...]
    mismatch: ReplayMismatch | None

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return self.mismatch is None

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, where ``mismatch`` is difference, and whether all is the same."""
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
    """Run the recorded request again and stop at the first step that differs.

    Compared are each step's token, what the sampler drew, the hash of its logits and the chained
    fingerprint; then why the text ended and the last fingerprint, where the end follows from the
    tokens. Threads, instruction set, other sequences in the batch, ``speculate`` and ``kv_cache``
    change none of them. ``progress`` is called with ("replaying", tokens done, of how many).

    The grammar is compiled again; another version of what compiles it is told as a disagreement.

    Raises InputError where the weights, the tokenizer, the backend, the chain or the grammar are
    not those on record, unless ``anyway``; where the vocabulary is another, or the context too
    small; where the trace has no steps; where the run had processors.
    """
    if not trace.steps:
        raise InputError("the trace has no steps: there is nothing to replay")
    check_vocabulary(llm, trace)
    check_room(llm, trace)
    total = len(trace.steps)
    options = settings_of(trace.head) | {"max_tokens": total}
    options |= {"speculate": speculate, "kv_cache": kv_cache}
    count, last, mismatch = 0, None, None
    with llm.stream(trace.head.prompt_token_ids, **options) as stream:
        found = disagreements(trace.head, llm, stream)
        if not anyway:
            _refuse(found, trace.head.model)
        for count, (recorded, last) in enumerate(zip(trace.steps, stream, strict=False), 1):
            progress("replaying", count, total)
            if mismatch := _mismatch(recorded, last):
                break
        else:
            mismatch = _at_the_end(trace, count, last, stream.ended)
    fingerprint = f"{last.fingerprint:016x}" if last else ""
    return Replayed(count, total, fingerprint, found, mismatch)


def _refuse(found: tuple[Disagreement, ...], model: str) -> None:
    if decisive := [str(each) for each in found if each.is_decisive]:
        raise InputError(
            f"this is not what the trace was written with ({'; '.join(decisive)}): "
            f"use the recorded one, of the model {model!r:.80}, or replay anyway"
        )


def _mismatch(recorded: Step, now: Step) -> ReplayMismatch | None:
    return _unequal(
        recorded.index,
        token=(recorded.token_id, now.token_id),
        own=(recorded.sampled_id, now.sampled_id),
        row=(f"{recorded.logits_hash:016x}", f"{now.logits_hash:016x}"),
        fingerprint=(f"{recorded.fingerprint:016x}", f"{now.fingerprint:016x}"),
    )


def _at_the_end(
    trace: Trace, count: int, last: Step | None, ended: Ended | None
) -> ReplayMismatch | None:
    """The steps agree as far as both go: whether the ends do."""
    if last is None or ended is None or count < len(trace.steps):
        return ReplayMismatch(count, {"end": (None, ended and str(ended.reason))})
    end = trace.end
    if end is None or end.reason in _OUTER:
        return None
    return _unequal(
        count - 1,
        end=((end.reason, end.matched), (str(ended.reason), ended.matched)),
        fingerprint=(end.fingerprint, f"{last.fingerprint:016x}"),  # steps may be missing
    )


def _unequal(step: int, **pairs: tuple[Any, Any]) -> ReplayMismatch | None:
    differing = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    return ReplayMismatch(step, differing) if differing else None
