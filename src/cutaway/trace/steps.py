"""A ``Step`` of the engine, or a ``Pass`` over a canvas, as a line of a trace, and back.

The line is flat. Logits and normalisers are stored instead of probabilities: at any stage
p = exp(z - log_sum_exp). The sequence's number, how many bytes were released, and the likeliest
after the chain are not recorded: they are 0, 0 and () when read.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from cutaway.engine.events import Pass, PassCell, Phases, Step
from cutaway.sampling import Candidate, Observation, Stage, StageReport
from cutaway.trace import check
from cutaway.trace.record import Head, Json, without

SOURCES = ("sampled", "greedy", "forced", "grammar", "draft")

_PLAIN = "index", "position", "token_id", "sampled_id", "source", "text"
"""Fields that are the same in the step and in its line."""
_FIGURES = (
    "maximum", "log_sum_exp", "entropy", "rank", "logprob", "final_rank", "final_logprob",
    "final_log_sum_exp",
)  # fmt: skip
_MS_DIGITS = 4


def observed(step: Step) -> Observation:
    """A step's observation. ValueError where it has none."""
    if step.observed is None:
        raise ValueError("a trace needs steps that were observed: ask for candidates")
    return step.observed


def tokens_of(step: Step) -> set[int]:
    """The ids that the line names."""
    seen = observed(step)
    ids = {step.sampled_id, *(c.id for c in seen.candidates)}
    ids.update(*(report.top_removed for report in seen.stages))
    return ids if step.unconstrained_id is None else {*ids, step.unconstrained_id}


def step_to_json(step: Step) -> Json:
    """A line, short because the candidates are columns."""
    seen = observed(step)
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
        optional["kv_tokens"] = step.position  # the row's own and all before it
    return line | {name: value for name, value in optional.items() if value is not None}


def step_from_json(line: Json, head: Head) -> Step:
    """The inverse. ValueError, with a sentence, where the line is no step of such a run."""
    checks = without(_STEP, "kv_tokens" if head.decoder else "pass_index")
    known = check.fields(
        {"unconstrained_id": None, "refused_by": []} | without(line, "kind"), checks
    )
    if len(known["stages"]) != len(head.chain):
        raise ValueError("the stages are not those of the chain")
    if known.get("kv_tokens", known["position"]) != known["position"]:
        raise ValueError(
            f"kv_tokens is {known['kv_tokens']}, not the position, {known['position']}"
        )
    stages = tuple(
        StageReport(Stage(rule["stage"], without(rule, "stage")), **report)
        for rule, report in zip(head.chain, known["stages"], strict=True)
    )
    same = (*_PLAIN, "logprob", "logits_hash", "fingerprint", "unconstrained_id", "refused_by")
    return Step(
        **{name: known[name] for name in same},
        id=0,
        released_bytes=0,
        survivors=stages[-1].survivors if stages else head.vocab_size,
        observed=Observation(
            **{name: known[name] for name in _FIGURES},
            candidates=known["candidates"],
            stages=stages,
            logit_histogram=known["logit_histogram"],
            after_chain=(),
        ),
        phases=known["ms"],
        pass_index=known.get("pass_index"),
    )


def short(value: float) -> float:
    """The value with nine digits, which always round to the same float32."""
    return value and float(f"{value:.9g}")


def _columns(candidates: Sequence[Candidate]) -> Json:
    columns: Json = dict(zip(Candidate._fields, zip(*candidates, strict=True), strict=True))
    return columns | {name: tuple(map(short, columns[name])) for name in ("logit", "delta")}


def _stage_to_json(report: StageReport) -> Json:
    line = {name: getattr(report, name) for name in _STAGE}
    lowest = report.min_kept_logit
    return line | {"min_kept_logit": None if lowest is None else short(lowest)}


def milliseconds(phases: Phases) -> dict[str, float]:
    """Milliseconds by phase; draft is left out where no draft model ran."""
    ms = {f.name: round(getattr(phases, f.name) * 1e3, _MS_DIGITS) for f in fields(phases)}
    return {name: value for name, value in ms.items() if value or name != "draft"}


# -- what each field may hold --------------------------------------------------------------------


def phases(value: Any) -> Phases:
    """Milliseconds by phase."""
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
    """The 64 bits of a hash."""
    return int(check.hexadecimal(16)(value), 16)


_CANDIDATE = {
    name: check.items(of_one)
    for name, of_one in check.of(Candidate, logit=check.single, delta=check.single).items()
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
# The cells are columns. What the request observed of each cell is not recorded here, but in the
# steps of the draws that stayed.


def pass_to_json(made: Pass) -> Json:
    """A line, short because the cells are columns."""
    columns: Json = dict(zip(PassCell._fields, zip(*made.cells, strict=True), strict=True))
    likely = columns.pop("likely")
    return {
        "kind": "pass",
        "index": made.index,
        "block": made.block,
        "rows": made.rows,
        "cells": without(columns, "observed", "logits_hash")
        | {
            "likely": [[token_id for token_id, _ in of_cell] for of_cell in likely],
            "likely_logprob": [[logprob for _, logprob in of_cell] for of_cell in likely],
            "logits_hash": [f"{one:016x}" for one in columns["logits_hash"]],
        },
        "masked_again": made.masked_again,
        "bound": made.bound,
        "redraw": made.redraw,
        "ms": milliseconds(made.phases),
        "fingerprint": f"{made.fingerprint:016x}",
    }


def pass_from_json(line: Json) -> Pass:
    """The inverse. ValueError, with a sentence, where the line is no pass."""
    known = check.fields(without(line, "kind"), _PASS)
    known["phases"] = known.pop("ms")
    return Pass(id=0, **known)


def tokens_of_pass(made: Pass) -> set[int]:
    """The ids that the line names."""
    ids = {token_id for cell in made.cells for token_id, _ in cell.likely}
    for cell in made.cells:
        ids.update(one for one in (cell.token_id, cell.was, cell.now) if one is not None)
    return ids


# -- what each field may hold --------------------------------------------------------------------


def _cells(value: Any) -> tuple[PassCell, ...]:
    columns = check.fields(value, _CELL)
    if len({*map(len, columns.values())}) > 1 or not columns["position"]:
        raise ValueError("must be columns of one length, for one cell or more")
    columns["likely"] = tuple(map(_pairs, columns["likely"], columns.pop("likely_logprob")))
    columns["observed"] = (None,) * len(columns["position"])
    return tuple(map(PassCell._make, zip(*(columns[f] for f in PassCell._fields), strict=True)))


def _pairs(ids: tuple[int, ...], logprobs: tuple[float, ...]) -> tuple[tuple[int, float], ...]:
    if len(ids) != len(logprobs):
        raise ValueError("likely_logprob must say as much of each cell as likely")
    return tuple(zip(ids, logprobs, strict=True))


def _span(value: Any) -> tuple[int, ...]:
    found: tuple[int, ...] = check.items(check.integer)(value)
    if len(found) != 2 or found[0] >= found[1]:
        raise ValueError("must be two positions: the first, and the one behind the last")
    return found


_CELL = {
    "position": check.items(check.integer),
    "token_id": check.items(check.integer),
    "logprob": check.items(check.number),
    "entropy": check.items(check.number),
    "figure": check.items(check.number),
    "was": check.items(check.optional(check.integer)),
    "now": check.items(check.optional(check.integer)),
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
