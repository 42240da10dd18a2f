"""Run a trace again with a model: replay, rescore, resume, branch, diff_models.

A recorded run is repeated: the same request, the same tokens, or the logits of its rows. Each is
compared with the record: a replay step by step, a rescore token by token, logits by the hashes of
rows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from cutaway.api.llm import LLM
from cutaway.base.counting import count_from_1
from cutaway.base.progress import Progress, silent
from cutaway.compute.backends import Logits
from cutaway.engine import Pass, PassCell, Step
from cutaway.errors import CutawayError, InputError
from cutaway.requests.completion import Completion
from cutaway.requests.sync_llm import Stream
from cutaway.rerun.forks import Fork, Reconvergence, branch, diff_models, open_branch, token_of
from cutaway.rerun.price import PassPrice, Price, price, price_of_trace
from cutaway.rerun.request import (
    UNSTOPPED,
    Disagreement,
    bound,
    check_room,
    check_text,
    check_vocabulary,
    disagreements,
    prompt_of,
    refuse_others,
    settings_of,
)
from cutaway.rerun.resume import check_cut, resume, resume_at
from cutaway.rerun.statistics import Curve, Estimate, bands, estimate, span
from cutaway.sampling.observe import row_hash
from cutaway.text.grammar import KINDS
from cutaway.trace import Trace
from cutaway.trace.figures import bits, chosen_candidate, final_logprob

__all__ = [
    "Curve", "Disagreement", "Estimate", "Fork", "PassPrice", "Price", "Reading", "Reconvergence",
    "ReplayMismatch", "Replayed", "Rescored", "bands", "branch", "check_cut", "diff_models",
    "estimate", "logits", "open_branch", "price", "price_of_trace", "replay", "rescore", "resume",
    "resume_at", "span", "token_of",
]  # fmt: skip

# -- replay ------------------------------------------------------------------------------------

_OUTER = ("context_full", "aborted", "error")
"""Reasons for an end that do not follow from the tokens."""


@dataclass(frozen=True, slots=True)
class ReplayMismatch:
    """The first step, or pass over a canvas, that differs from the recorded one.

    what    name -> (recorded, now)
    passed  the pass that differs; None if a step differs
    """

    step: int
    what: Mapping[str, tuple[Any, Any]]
    passed: int | None = None


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay.

    passes         how many passes over a canvas were compared
    steps          how many steps were compared, including the one that differs
    recorded       how many steps the trace has
    fingerprint    fingerprint of the compared steps, in hex
    disagreements  fields of the trace's head that differ in this run
    mismatch       None if every step is the same to the last bit
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
        """Return a value for JSON, with ``same``, and ``mismatch`` as "difference"."""
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

    It compares each step's token, the sampler's draw, the hash of the step's logits and the chained
    fingerprint. Of a pass it compares all but the time and the number of rows. Then, if the end
    follows from the tokens, it compares why the text ended, and the last fingerprint. Threads,
    instruction set, other sequences in the batch, ``speculate`` and ``kv_cache`` change none of
    these. ``progress`` is called with ("replaying", tokens done, all tokens).

    Raises InputError if the weights, the tokenizer, the backend, the chain or the grammar are not
    the recorded ones, unless ``anyway`` is set. Raises it also if the vocabulary differs, the
    context is too small, the trace has no steps, or the run had processors.
    """
    if not trace.steps and not trace.passes:
        raise InputError("the trace has no steps: there is nothing to replay")
    check_vocabulary(llm, trace)
    check_room(llm, trace.head, len(trace.steps))
    options = settings_of(trace.head) | {"speculate": speculate, "kv_cache": kv_cache}
    if not trace.head.decoder:  # for a canvas, max_tokens is its number of cells
        options["max_tokens"] = len(trace.steps)
    with llm.stream(prompt_of(llm, trace.head), **options) as stream:
        differing = disagreements(trace.head, llm, stream)
        if not anyway:
            refuse_others(differing, trace.head.model, ", or replay anyway")
        mismatch = _compare(trace, stream, progress)
        steps, passes = stream.steps, stream.passes
    fingerprint = f"{steps[-1].fingerprint:016x}" if steps else ""
    return Replayed(len(steps), len(trace.steps), fingerprint, differing, mismatch, len(passes))


def _compare(trace: Trace, stream: Stream, progress: Progress) -> ReplayMismatch | None:
    """Compare the text with the record until they differ, or to the record's end."""
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
    return _compare_ends(trace, stream)


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
    """Return the fields of a pass that differ, and of its first cell with a difference."""
    old, new = recorded.cells, now.cells
    pairs = {name: (getattr(recorded, name), getattr(now, name)) for name in _OF_PASS}
    pairs["cells"] = len(old), len(new)
    for a, b in zip(old, new, strict=False):
        of_cell = {name: (getattr(a, name), getattr(b, name)) for name in _OF_CELL}
        if any(was != now for was, now in of_cell.values()):
            pairs |= {f"{name} at {a.position}": pair for name, pair in of_cell.items()}
            break
    mismatch = _unequal(now.index, **pairs)
    return mismatch and replace(mismatch, passed=now.index)


def _compare_ends(trace: Trace, stream: Stream) -> ReplayMismatch | None:
    """Compare the ends; all steps and passes of the text are equal."""
    count, end, end_event = len(stream.steps), trace.end, stream.ended
    if count < len(trace.steps) or len(stream.passes) < len(trace.passes):
        return ReplayMismatch(count, {"end": (None, end_event and str(end_event.reason))})
    if end is None or end.reason in _OUTER:
        return None
    return _unequal(
        count - 1,
        end=((end.reason, end.matched), end_event and (str(end_event.reason), end_event.matched)),
        fingerprint=(end.fingerprint, stream.fingerprint),  # steps may be missing
    )


def _unequal(step: int, **pairs: tuple[Any, Any]) -> ReplayMismatch | None:
    differing = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    return ReplayMismatch(step, differing) if differing else None


# -- rescore -----------------------------------------------------------------------------------
# Read the recorded tokens with another model of the same vocabulary, or other settings.


@dataclass(frozen=True, slots=True)
class Reading:
    """A token's figures under one model and one chain.

    bits        its surprise, -log2 p under the model's own logits
    rank        its rank by these logits; 1 is the likeliest
    final_bits  its surprise after the chain; None if it could not be drawn
    own         the token that the chain and the luck draw here
    """

    bits: float
    rank: int
    final_bits: float | None
    own: int


@dataclass(frozen=True, slots=True)
class Rescored:
    """Two readings of the same tokens: recorded and new, one per step of the trace.

    completion  the new reading's completion, with its observations
    """

    token_ids: tuple[int, ...]
    old: tuple[Reading, ...]
    new: tuple[Reading, ...]
    completion: Completion

    @property
    def perplexity(self) -> tuple[float, float]:
        """The perplexity: (recorded, now)."""
        return perplexity(r.bits for r in self.old), perplexity(r.bits for r in self.new)

    @property
    def agreement(self) -> float:
        """The share of steps at which the new reading would have chosen the recorded token."""
        pairs = zip(self.token_ids, self.new, strict=True)
        return sum(token_id == r.own for token_id, r in pairs) / len(self.token_ids)

    def to_dict(self) -> dict[str, Any]:
        """Return a value for JSON."""
        names = {"token_ids": self.token_ids, "perplexity": self.perplexity}
        readings = {"old": [asdict(r) for r in self.old], "new": [asdict(r) for r in self.new]}
        return {**names, "agreement": self.agreement, **readings}


def perplexity(surprises: Iterable[float]) -> float:
    """Return two to the power of the mean surprise, which is in bits."""
    values = list(surprises)
    return float(2.0 ** (sum(values) / len(values)))


def rescore(llm: LLM, trace: Trace, /, **changes: Any) -> Rescored:
    """Read the recorded tokens again, each after the ones before it.

    changes  options of LLM.generate that differ, such as temperature, top_p or seed;
             trace=PATH writes the new reading as a trace, with as many candidates as the old one

    No stop condition ends the text early. Raises InputError if the model has another vocabulary or
    too small a context, the trace has no steps, or a grammar forbids a token of it.
    """
    check_text("rescore", llm, trace)
    ids, head = trace.output_token_ids, trace.head
    observe = {"candidates": head.candidates, "track": head.tracked_ids}
    options: dict[str, Any] = settings_of(head) | observe | changes
    options |= {"forced": ids, "max_tokens": len(ids), **UNSTOPPED}
    options["ignore_eos"] = not any(
        options.get(kind) for kind in KINDS
    )  # a grammar's text has an end
    done = llm.stream(list(trace.head.prompt_token_ids), **options).finish()
    return Rescored(ids, tuple(map(_reading, trace.steps)), tuple(map(_reading, done.steps)), done)


def _reading(step: Step) -> Reading:
    if step.observed is None:  # neither candidates nor tracked tokens
        raise InputError("candidates", " must be 1 or more to rescore")
    final = final_logprob(step, chosen_candidate(step))
    surprise = None if final is None else bits(final)
    return Reading(bits(step.logprob), step.observed.rank, surprise, step.sampled_id)


# -- logits ------------------------------------------------------------------------------------
# Logits are computed again from the tokens, and proven by hashes.


def logits(llm: LLM, trace: Trace) -> Logits:
    """Return the logits of every step, bit for bit: float32 (steps, vocab), before the chain.

    Raises InputError if the trace has no steps, or the model has another vocabulary or too small a
    context; CutawayError if a row's hash is not the recorded one.
    """
    check_text("logits", llm, trace)
    prompt = trace.head.prompt_token_ids
    read = [*prompt, *(step.token_id for step in trace.steps[:-1])]
    length = len(prompt)
    rows = llm.logits(read, length - 1, bound(llm, trace.head), prompt_tokens=length)
    for step, row in zip(trace.steps, rows, strict=True):
        if row_hash(row) != step.logits_hash:
            raise CutawayError(
                f"the logits of step {count_from_1(step.index)} are not those on record: "
                "'cutaway trace replay' says what differs"
            )
    return rows
