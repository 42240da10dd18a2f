"""Write and read lines of a trace: a ``Step`` of the engine, or a ``Pass`` over a canvas.

The line is flat. It has logits and normalisers instead of probabilities: at any stage
p = exp(z - log_sum_exp). It lacks the sequence's number, the number of released bytes, and the
likeliest tokens after the chain: reading gives 0, 0 and ().
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from cutaway.engine.events import Pass, PassCell, Phases, Step
from cutaway.sampling import Candidate, Observation, Stage, StageReport
from cutaway.trace import check
from cutaway.trace.record import Head, Json, drop_fields

SOURCES = ("sampled", "greedy", "forced", "grammar", "draft")

_PLAIN = "index", "position", "token_id", "sampled_id", "source", "text"
"""Fields with the same name and value in the step and in its line."""


_FIGURES = (
    "maximum", "log_sum_exp", "entropy", "rank", "logprob", "final_rank", "final_logprob",
    "final_log_sum_exp",
)  # fmt: skip
_MS_DIGITS = 4


def observation_of(step: Step) -> Observation:
    """Return a step's observation; ValueError if it has none."""
    if step.observed is None:
        raise ValueError("a trace needs steps that were observed: ask for candidates")
    return step.observed


def tokens_of(step: Step) -> set[int]:
    """Return the token ids in a step's line."""
    seen = observation_of(step)
    ids = {step.sampled_id, *(c.id for c in seen.candidates)}
    ids.update(*(report.top_removed for report in seen.stages))
    return ids if step.unconstrained_id is None else {*ids, step.unconstrained_id}


def step_to_json(step: Step) -> Json:
    """Return a step's line. The candidates are columns, which keeps the line short."""
    seen = observation_of(step)
    line = {
        "kind": "step",
        **{name: getattr(step, name) for name in _PLAIN},
        "candidates": _columns(seen.candidates),
        **{name: getattr(seen, name) for name in _FIGURES},
        "maximum": short(seen.maximum),
        "stages": [_stage_to_json(report) for report in seen.stages],
        "logit_histogram": seen.logit_histogram,
        "ms": milliseconds(step.phases),
        "logits_hash": f"{step.logits_hash:016x}",
        "fingerprint": f"{step.fingerprint:016x}",
    }
    optional: Json = {
        "unconstrained_id": step.unconstrained_id,
        "refused_by": [*step.refused_by] or None,
        "pass_index": step.pass_index,
    }
    if step.pass_index is None:
        optional["kv_tokens"] = step.position  # the row's own token and all before it
    return line | {name: value for name, value in optional.items() if value is not None}


def step_from_json(line: Json, head: Head) -> Step:
    """Read a step; ValueError, with a sentence, if the line is not a step of such a run."""
    checks = drop_fields(_STEP, "kv_tokens" if head.decoder else "pass_index")
    fields = check.fields(
        {"unconstrained_id": None, "refused_by": []} | drop_fields(line, "kind"), checks
    )
    if len(fields["stages"]) != len(head.chain):
        raise ValueError("the stages are not those of the chain")
    if fields.get("kv_tokens", fields["position"]) != fields["position"]:
        raise ValueError(
            f"kv_tokens is {fields['kv_tokens']}, not the position, {fields['position']}"
        )
    stages = tuple(
        StageReport(Stage(rule["stage"], drop_fields(rule, "stage")), **report)
        for rule, report in zip(head.chain, fields["stages"], strict=True)
    )
    same = (*_PLAIN, "logprob", "logits_hash", "fingerprint", "unconstrained_id", "refused_by")
    return Step(
        **{name: fields[name] for name in same},
        id=0,
        released_bytes=0,
        survivors=stages[-1].survivors if stages else head.vocab_size,
        observed=Observation(
            **{name: fields[name] for name in _FIGURES},
            candidates=fields["candidates"],
            stages=stages,
            logit_histogram=fields["logit_histogram"],
            after_chain=(),
        ),
        phases=fields["ms"],
        pass_index=fields.get("pass_index"),
    )


def short(value: float) -> float:
    """Round to nine digits, which always give the same float32 again."""
    return value and float(f"{value:.9g}")


def _columns(candidates: Sequence[Candidate]) -> Json:
    columns: Json = dict(zip(Candidate._fields, zip(*candidates, strict=True), strict=True))
    return columns | {name: tuple(map(short, columns[name])) for name in ("logit", "delta")}


def _stage_to_json(report: StageReport) -> Json:
    line = {name: getattr(report, name) for name in _STAGE}
    lowest = report.min_kept_logit
    return line | {"min_kept_logit": None if lowest is None else short(lowest)}


def milliseconds(phases: Phases) -> dict[str, float]:
    """Return milliseconds by phase; "draft" is left out if no draft model ran."""
    ms = {f.name: round(getattr(phases, f.name) * 1e3, _MS_DIGITS) for f in fields(phases)}
    return {name: value for name, value in ms.items() if value or name != "draft"}


# -- what each field may hold --------------------------------------------------------------------


def phases(value: Any) -> Phases:
    """Read milliseconds by phase; ValueError for an unknown phase."""
    ms = check.table(check.number)(value)
    if more := ms.keys() - {f.name for f in fields(Phases)}:
        raise ValueError(f"has no phase {min(more)!r:.40}")
    return Phases(**{name: by / 1e3 for name, by in ms.items()})


def _candidates(value: Any) -> tuple[Candidate, ...]:
    columns = check.fields(value, _CANDIDATE).values()
    if len({*map(len, columns)}) > 1:
        raise ValueError("must be columns of one length")
    return tuple(map(Candidate._make, zip(*columns, strict=True)))


def word(value: Any) -> int:
    """Read a hash of 64 bits from 16 hexadecimal digits."""
    return int(check.hexadecimal(16)(value), 16)


_CANDIDATE = {
    name: check.items(of_one)
    for name, of_one in check.checks_of(Candidate, logit=check.single, delta=check.single).items()
}
_STAGE = {
    "survivors": check.integer,
    "removed_mass": check.number,
    "log_sum_exp": check.number,
    "min_kept_logit": check.optional(check.single),
    "top_removed": check.items(check.integer),
}
_STEP: Json = {
    "index": check.integer,
    "position": check.integer,
    "token_id": check.integer,
    "sampled_id": check.integer,
    "source": check.one_of(*SOURCES),
    "text": check.text,
    "candidates": _candidates,
    "maximum": check.single,
    "log_sum_exp": check.number,
    "entropy": check.number,
    "rank": check.integer,
    "logprob": check.number,
    "final_rank": check.optional(check.integer),
    "final_logprob": check.optional(check.number),
    "final_log_sum_exp": check.number,
    "stages": check.items(lambda value: check.fields(value, _STAGE)),
    "logit_histogram": check.items(check.integer),
    "kv_tokens": check.integer,
    "pass_index": check.integer,
    "ms": phases,
    "logits_hash": word,
    "fingerprint": word,
    "unconstrained_id": check.optional(check.integer),
    "refused_by": check.items(check.text),
}


# -- passes ------------------------------------------------------------------------------------
# The cells are columns. The step of a cell's final draw records the cell's observation; passes do
# not.


def pass_to_json(canvas_pass: Pass) -> Json:
    """Return a pass's line. The cells are columns, which keeps the line short."""
    columns: Json = dict(zip(PassCell._fields, zip(*canvas_pass.cells, strict=True), strict=True))
    likely, read = columns.pop("likely"), columns.pop("read")
    if any(token_id is not None for token_id in read):
        columns["read"] = read
    return {
        "kind": "pass",
        "index": canvas_pass.index,
        "block": canvas_pass.block,
        "rows": canvas_pass.rows,
        "cells": drop_fields(columns, "observed", "logits_hash")
        | {
            "likely": [[token_id for token_id, _ in of_cell] for of_cell in likely],
            "likely_logprob": [[logprob for _, logprob in of_cell] for of_cell in likely],
            "logits_hash": [f"{value:016x}" for value in columns["logits_hash"]],
        },
        "masked_again": canvas_pass.masked_again,
        "bound": canvas_pass.bound,
        "redraw": canvas_pass.redraw,
        "ms": milliseconds(canvas_pass.phases),
        "fingerprint": f"{canvas_pass.fingerprint:016x}",
    }


def pass_from_json(line: Json) -> Pass:
    """Read a pass; ValueError, with a sentence, if the line is not a pass."""
    fields = check.fields(drop_fields(line, "kind"), _PASS)
    fields["phases"] = fields.pop("ms")
    return Pass(id=0, **fields)


def tokens_of_pass(canvas_pass: Pass) -> set[int]:
    """Return the token ids in a pass's line."""
    ids = {token_id for cell in canvas_pass.cells for token_id, _ in cell.likely}
    for cell in canvas_pass.cells:
        tokens = (cell.token_id, cell.was, cell.now, cell.read)
        ids.update(token for token in tokens if token is not None)
    return ids


# -- what each field may hold --------------------------------------------------------------------


def _cells(value: Any) -> tuple[PassCell, ...]:
    is_noise = isinstance(value, Mapping) and "read" in value
    columns = check.fields(value, _CELL if is_noise else drop_fields(_CELL, "read"))
    if len({*map(len, columns.values())}) > 1 or not columns["position"]:
        raise ValueError("must be columns of one length, for one cell or more")
    columns["likely"] = tuple(map(_pairs, columns["likely"], columns.pop("likely_logprob")))
    nothing = (None,) * len(columns["position"])
    columns |= {"observed": nothing, "read": columns.get("read", nothing)}
    return tuple(map(PassCell._make, zip(*(columns[f] for f in PassCell._fields), strict=True)))


def _pairs(ids: tuple[int, ...], logprobs: tuple[float, ...]) -> tuple[tuple[int, float], ...]:
    if len(ids) != len(logprobs):
        raise ValueError("likely_logprob must say as much of each cell as likely")
    return tuple(zip(ids, logprobs, strict=True))


def _span(value: Any) -> tuple[int, ...]:
    span: tuple[int, ...] = check.items(check.integer)(value)
    if len(span) != 2 or span[0] >= span[1]:
        raise ValueError("must be two positions: the first, and the one behind the last")
    return span


_CELL = {
    "position": check.items(check.integer),
    "token_id": check.items(check.integer),
    "logprob": check.items(check.number),
    "entropy": check.items(check.number),
    "figure": check.items(check.number),
    "was": check.items(check.optional(check.integer)),
    "now": check.items(check.optional(check.integer)),
    "read": check.items(check.integer),
    "likely": check.items(check.items(check.integer)),
    "likely_logprob": check.items(check.items(check.number)),
    "logits_hash": check.items(word),
}
_PASS = {
    "index": check.integer,
    "block": _span,
    "rows": check.integer,
    "cells": _cells,
    "masked_again": check.items(check.integer),
    "bound": check.number,
    "redraw": check.integer,
    "ms": phases,
    "fingerprint": word,
}
