"""A trace in other programs' forms: OpenAI's ``logprobs`` object, and CSV."""

import csv
import io
from dataclasses import fields
from typing import Any, Literal

from cutaway.engine.events import Phases, Step
from cutaway.sampling import Candidate, Observation
from cutaway.text.openai_token import REMOVED, openai_token
from cutaway.trace.endings import end_token_status, ended_by_token
from cutaway.trace.figures import bits, in_bits
from cutaway.trace.read import Trace
from cutaway.trace.record import Json
from cutaway.trace.steps import milliseconds, observed

When = Literal["before", "after"]


def to_openai(trace: Trace, when: When = "before") -> Json:
    """The ``logprobs`` object of a chat completion: ``content``, one entry per token.

    Logarithms are natural. before: of the model's own logits; after: of the survivors of the
    chain, of those on record. The token that ended the text is left out, as it is there.
    """
    steps = trace.steps[:-1] if ended_by_token(trace) else trace.steps
    return {"content": [_entry(trace, step, when) for step in steps], "refusal": None}


def _entry(trace: Trace, step: Step, when: When) -> Json:
    seen = observed(step)
    own = seen.logprob if when == "before" else seen.final_logprob
    shares = [(c, by) for c in seen.candidates if (by := _logprob(seen, c, when)) is not None]
    if when == "before":  # only the likeliest; a step also has the chosen and the watched
        shares = [(c, by) for c, by in shares if c.rank <= trace.head.candidates]
    best = sorted(shares, key=lambda share: -share[1])
    top = [_token(trace, c.id, by) for c, by in best]
    return _token(trace, step.token_id, REMOVED if own is None else own) | {"top_logprobs": top}


def _logprob(seen: Observation, c: Candidate, when: When) -> float | None:
    return c.logit - seen.log_sum_exp if when == "before" else c.final_logprob


def _token(trace: Trace, token_id: int, logprob: float) -> Json:
    return openai_token(trace.bytes_of(token_id), trace.name_of(token_id), logprob)


def to_csv(trace: Trace) -> str:
    """A header and a row per step (RFC 4180, but for lines that end with a line feed).

    Logarithms are natural, "bits" and "entropy_bits" to base 2. The columns of the end tokens
    are empty where none is on record, "final_" where a given token did not survive, and
    "draft_ms" where no draft model ran, "kv_tokens" and "passed" where a text was written the other
    way: on a canvas, and from left to right.
    """
    out = io.StringIO()
    rows = [_row(trace, step) for step in trace.steps]
    writer = csv.DictWriter(out, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


_PHASES = tuple(f.name for f in fields(Phases))
_COLUMNS = (
    "step", "position", "token_id", "token", "source", "own", "logprob", "bits", "rank",
    "entropy_bits", "final_logprob", "final_rank", "survivors", "end_probability", "end_rank",
    "end_outcome", "kv_tokens", "passed", *(f"{phase}_ms" for phase in _PHASES), "fingerprint",
)  # fmt: skip


def _row(trace: Trace, step: Step) -> dict[str, Any]:
    end, seen, ms = end_token_status(trace, step), observed(step), milliseconds(step.phases)
    return {
        "step": step.index,
        "position": step.position,
        "token_id": step.token_id,
        "token": trace.name_of(step.token_id),
        "source": step.source,
        "own": step.sampled_id,
        "logprob": step.logprob,
        "bits": bits(step.logprob),
        "rank": seen.rank,
        "entropy_bits": in_bits(seen.entropy),
        "final_logprob": seen.final_logprob,
        "final_rank": seen.final_rank,
        "survivors": step.survivors,
        "end_probability": end.probability if end else None,
        "end_rank": end.rank if end else None,
        "end_outcome": end.outcome if end else None,
        "kv_tokens": step.position if step.passed is None else None,
        "passed": step.passed,
        **{f"{phase}_ms": ms.get(phase) for phase in _PHASES},
        "fingerprint": f"{step.fingerprint:016x}",
    }
