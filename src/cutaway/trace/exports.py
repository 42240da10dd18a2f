"""Export a trace as OpenAI's ``logprobs`` object, or as CSV of steps or passes."""

import csv
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, Literal

from cutaway.base.arithmetic import plainly
from cutaway.engine.events import Pass, PassCell, Phases, Step
from cutaway.trace.canvas import check_canvas
from cutaway.trace.endings import end_token_status, ended_by_token
from cutaway.trace.figures import bits, chosen_candidate, final_logprob, probability, to_bits
from cutaway.trace.read import Trace
from cutaway.trace.record import Json
from cutaway.trace.steps import milliseconds, observation_of

REMOVED = -9999.0
"""OpenAI's log-probability of a token whose probability may be zero."""


def openai_token(data: bytes, name: str, logprob: float | None) -> dict[str, Any]:
    """Return a token with its exact bytes; a token that adds no text has its name instead."""
    text = data.decode("utf-8", "replace") if data else name
    return {"token": text, "logprob": logprob, "bytes": list(data) or None}


When = Literal["before", "after"]


@plainly
def to_openai(trace: Trace, when: When = "before") -> Json:
    """Return the ``logprobs`` object of a chat completion: ``content``, one entry per token.

    Logarithms are natural. when: "before" takes the model's own logits, "after" the recorded
    survivors of the chain, of which temperature 0 leaves one. The token that ended the text is left
    out, as OpenAI does.
    """
    steps = trace.steps[:-1] if ended_by_token(trace) else trace.steps
    return {"content": [_entry(trace, step, when) for step in steps], "refusal": None}


def _entry(trace: Trace, step: Step, when: When) -> Json:
    seen = observation_of(step)
    logprob = seen.logprob if when == "before" else final_logprob(step, chosen_candidate(step))
    shares = [(c.id, final_logprob(step, c)) for c in seen.candidates]
    if when == "before":  # leave out a chosen or tracked token of a lower rank
        likeliest = (c for c in seen.candidates if c.rank <= trace.head.candidates)
        shares = [(c.id, c.logit - seen.log_sum_exp) for c in likeliest]
    finite_shares = [(token_id, by) for token_id, by in shares if by is not None]
    top = [_token(trace, *share) for share in sorted(finite_shares, key=lambda share: -share[1])]
    return _token(trace, step.token_id, REMOVED if logprob is None else logprob) | {
        "top_logprobs": top
    }


def _token(trace: Trace, token_id: int, logprob: float) -> Json:
    return openai_token(trace.bytes_of(token_id), trace.name_of(token_id), logprob)


@plainly
def to_csv(trace: Trace) -> str:
    """Return CSV: a header and a row per step (RFC 4180, but lines end with a line feed).

    Logarithms are natural, "bits" and "entropy_bits" to base 2. The columns of the end tokens
    are empty if the step recorded none, "final_" columns if the token did not survive,
    "final_logprob" also if temperature 0 took another, and "draft_ms" if no draft model ran. A
    canvas has "pass_index" instead of "kv_tokens".
    """
    column = "pass_index" if trace.head.decoder else "kv_tokens"
    columns = tuple(column if name == "kv_tokens" else name for name in _COLUMNS)
    return _table(columns, [_row(trace, step) for step in trace.steps])


@plainly
def to_passes_csv(trace: Trace) -> str:
    """Return CSV as ``to_csv`` does, with a row for each cell that a pass looked at.

    "was" and "now" are empty if the cell is masked. InputError if the trace records no canvas.
    """
    check_canvas(trace)
    cells = [
        _cell(trace, canvas_pass, cell)
        for canvas_pass in trace.passes
        for cell in canvas_pass.cells
    ]
    return _table(_CELL_COLUMNS, cells)


def _table(columns: tuple[str, ...], rows: list[dict[str, Any]]) -> str:
    lines: list[str] = []
    into = SimpleNamespace(write=lines.append)
    writer = csv.DictWriter(into, columns, lineterminator="\r\n")  # so that both are quoted
    writer.writeheader()
    writer.writerows({name: _inert(cell) for name, cell in row.items()} for row in rows)
    return "".join(line.removesuffix("\r\n") + "\n" for line in lines)


def _inert(cell: Any) -> Any:
    """Put an apostrophe before a text that a spreadsheet would run as a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_CELL_COLUMNS = (
    "pass", "cell", "position", "token_id", "token", "logprob", "entropy_bits", "figure", "was",
    "now", "masked_again", "best", "best_probability", "second", "second_probability", "redraw",
    "logits_hash",
)  # fmt: skip


def _cell(trace: Trace, canvas_pass: Pass, cell: PassCell) -> dict[str, Any]:
    row = {
        "pass": canvas_pass.index,
        "cell": cell.position - len(trace.head.prompt_token_ids),
        "position": cell.position,
        "token_id": cell.token_id,
        "token": trace.name_of(cell.token_id),
        "logprob": cell.logprob,
        "entropy_bits": to_bits(cell.entropy),
        "figure": cell.figure,
        "was": None if cell.was is None else trace.name_of(cell.was),
        "now": None if cell.now is None else trace.name_of(cell.now),
        "masked_again": int(cell.position in canvas_pass.masked_again),
        "redraw": canvas_pass.redraw,
        "logits_hash": f"{cell.logits_hash:016x}",
    }
    for name, (token_id, logprob) in zip(("best", "second"), cell.likely, strict=False):
        row |= {name: trace.name_of(token_id), f"{name}_probability": probability(logprob)}
    return row


_PHASES = tuple(f.name for f in fields(Phases))
_COLUMNS = (
    "step", "position", "token_id", "token", "source", "sampled_id", "logprob", "bits", "rank",
    "entropy_bits", "final_logprob", "final_rank", "survivors", "end_probability", "end_rank",
    "end_outcome", "kv_tokens", *(f"{phase}_ms" for phase in _PHASES), "fingerprint",
)  # fmt: skip


def _row(trace: Trace, step: Step) -> dict[str, Any]:
    end, seen, ms = end_token_status(trace, step), observation_of(step), milliseconds(step.phases)
    return {
        "step": step.index,
        "position": step.position,
        "token_id": step.token_id,
        "token": trace.name_of(step.token_id),
        "source": step.source,
        "sampled_id": step.sampled_id,
        "logprob": step.logprob,
        "bits": bits(step.logprob),
        "rank": seen.rank,
        "entropy_bits": to_bits(seen.entropy),
        "final_logprob": final_logprob(step, chosen_candidate(step)),
        "final_rank": seen.final_rank,
        "survivors": step.survivors,
        "end_probability": end.probability if end else None,
        "end_rank": end.rank if end else None,
        "end_outcome": end.outcome if end else None,
        **(
            {"kv_tokens": step.position}
            if step.pass_index is None
            else {"pass_index": step.pass_index}
        ),
        **{f"{phase}_ms": ms.get(phase) for phase in _PHASES},
        "fingerprint": f"{step.fingerprint:016x}",
    }
