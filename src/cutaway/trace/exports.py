"""A trace in other programs' forms: OpenAI's ``logprobs`` object, and CSV of steps or passes."""

import csv
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, Literal

from cutaway.base.arithmetic import plainly
from cutaway.engine.events import Pass, PassCell, Phases, Step
from cutaway.trace.canvas import check_canvas
from cutaway.trace.endings import end_token_status, ended_by_token
from cutaway.trace.figures import bits, in_bits, probability
from cutaway.trace.read import Trace
from cutaway.trace.record import Json
from cutaway.trace.steps import milliseconds, observed

REMOVED = -9999.0
"""What OpenAI writes where a token's probability is not known to be above zero."""


def openai_token(data: bytes, name: str, logprob: float | None) -> dict[str, Any]:
    """A token with its true bytes; one that adds nothing to the text has its name."""
    text = data.decode("utf-8", "replace") if data else name
    return {"token": text, "logprob": logprob, "bytes": list(data) or None}


When = Literal["before", "after"]


@plainly
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
    shares = [(c.id, c.final_logprob) for c in seen.candidates]
    if when == "before":  # only the likeliest; a step also has the chosen and the watched
        likeliest = (c for c in seen.candidates if c.rank <= trace.head.candidates)
        shares = [(c.id, c.logit - seen.log_sum_exp) for c in likeliest]
    known = [(token_id, by) for token_id, by in shares if by is not None]
    top = [_token(trace, *share) for share in sorted(known, key=lambda share: -share[1])]
    return _token(trace, step.token_id, REMOVED if own is None else own) | {"top_logprobs": top}


def _token(trace: Trace, token_id: int, logprob: float) -> Json:
    return openai_token(trace.bytes_of(token_id), trace.name_of(token_id), logprob)


@plainly
def to_csv(trace: Trace) -> str:
    """A header and a row per step (RFC 4180, but for lines that end with a line feed).

    Logarithms are natural, "bits" and "entropy_bits" to base 2. The columns of the end tokens
    are empty where none is on record, "final_" where a given token did not survive, and
    "draft_ms" where no draft model ran. Of a canvas "pass_index" is in the place of "kv_tokens".
    """
    own = "pass_index" if trace.head.decoder else "kv_tokens"
    columns = tuple(own if name == "kv_tokens" else name for name in _COLUMNS)
    return _table(columns, [_row(trace, step) for step in trace.steps])


@plainly
def to_passes_csv(trace: Trace) -> str:
    """As ``to_csv``, with a row for each cell that a pass over a canvas looked at.

    "was" and "now" are empty where the cell is masked. InputError where the trace is of no canvas.
    """
    check_canvas(trace)
    cells = [_cell(trace, made, cell) for made in trace.passes for cell in made.cells]
    return _table(_CELL_COLUMNS, cells)


def _table(columns: tuple[str, ...], rows: list[dict[str, Any]]) -> str:
    lines: list[str] = []
    into = SimpleNamespace(write=lines.append)
    writer = csv.DictWriter(into, columns, lineterminator="\r\n")  # so that both are quoted
    writer.writeheader()
    writer.writerows({name: _inert(cell) for name, cell in row.items()} for row in rows)
    return "".join(line.removesuffix("\r\n") + "\n" for line in lines)


def _inert(cell: Any) -> Any:
    """A text that a spreadsheet would run as a formula has an apostrophe in front."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_CELL_COLUMNS = (
    "pass", "cell", "position", "token_id", "token", "logprob", "entropy_bits", "figure", "was",
    "now", "masked_again", "best", "best_probability", "second", "second_probability", "redraw",
    "logits_hash",
)  # fmt: skip


def _cell(trace: Trace, made: Pass, cell: PassCell) -> dict[str, Any]:
    row = {
        "pass": made.index,
        "cell": cell.position - len(trace.head.prompt_token_ids),
        "position": cell.position,
        "token_id": cell.token_id,
        "token": trace.name_of(cell.token_id),
        "logprob": cell.logprob,
        "entropy_bits": in_bits(cell.entropy),
        "figure": cell.figure,
        "was": None if cell.was is None else trace.name_of(cell.was),
        "now": None if cell.now is None else trace.name_of(cell.now),
        "masked_again": int(cell.position in made.masked_again),
        "redraw": made.redraw,
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
    end, seen, ms = end_token_status(trace, step), observed(step), milliseconds(step.phases)
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
        "entropy_bits": in_bits(seen.entropy),
        "final_logprob": seen.final_logprob,
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
