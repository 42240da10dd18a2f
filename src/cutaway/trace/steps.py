"""A ``Step`` of the engine as a line of a trace, and back.

The line is flat. Logits and normalisers are stored, not
probabilities: at any stage p = exp(z - log_sum_exp). Not on record are the sequence's number, how
many bytes were released, and the likeliest after the chain: they are 0, 0 and () when read.
"""

from dataclasses import fields
from typing import Any

from cutaway.engine.events import Phases, Step
from cutaway.sampling import Candidate, Observation, Stage, StageReport
from cutaway.trace import check
from cutaway.trace.record import Head, Json, without

SOURCES = ("sampled", "greedy", "forced", "grammar", "draft")

_FIGURES = (
    "maximum", "log_sum_exp", "entropy", "rank", "logprob", "final_rank", "final_logprob",
    "final_log_sum_exp",
)  # fmt: skip
_MS_DIGITS = 4


def observed(step: Step) -> Observation:
    """What was observed of a step on record. ValueError where nothing was."""
    if step.observed is None:
        raise ValueError("a trace needs steps that were observed: ask for candidates")
    return step.observed


def step_to_json(step: Step) -> Json:
    """A line of columns: the candidates' fields side by side, to be short."""
    seen = observed(step)
    line = {
        "kind": "step",
        "index": step.index,
        "position": step.position,
        "token_id": step.token_id,
        "sampled_id": step.sampled_id,
        "source": step.source,
        "text": step.text,
        "candidates": _columns(seen.candidates),
        **{name: getattr(seen, name) for name in _FIGURES},
        "maximum": short(seen.maximum),
        "stages": [_stage_to_json(report) for report in seen.stages],
        "logit_histogram": seen.logit_histogram,
        "ms": milliseconds(step.phases),
        "logits_hash": f"{step.logits_hash:016x}",
        "fingerprint": f"{step.fingerprint:016x}",
    }
    may: Json = {
        "unconstrained_id": step.unconstrained_id,
        "refused_by": [*step.refused_by] or None,
        "pass_index": step.pass_index,
    }
    if step.pass_index is None:
        may["kv_tokens"] = step.position  # the row's own and all before it
    return line | {name: value for name, value in may.items() if value is not None}


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
    stages = tuple(map(_report, head.chain, known["stages"]))
    return Step(
        id=0,
        index=known["index"],
        position=known["position"],
        token_id=known["token_id"],
        sampled_id=known["sampled_id"],
        source=known["source"],
        text=known["text"],
        released_bytes=0,
        logprob=known["logprob"],
        survivors=stages[-1].survivors if stages else head.vocab_size,
        observed=Observation(
            **{name: known[name] for name in _FIGURES},
            candidates=known["candidates"],
            stages=stages,
            logit_histogram=known["logit_histogram"],
            after_chain=(),
        ),
        phases=known["ms"],
        logits_hash=known["logits_hash"],
        fingerprint=known["fingerprint"],
        unconstrained_id=known["unconstrained_id"],
        refused_by=tuple(known["refused_by"]),
        pass_index=known.get("pass_index"),
    )


def short(value: float) -> float:
    """A float64 with fewer digits that rounds to the same float32: nine are always enough."""
    return value and float(f"{value:.9g}")


def _columns(candidates: tuple[Candidate, ...]) -> Json:
    columns: Json = dict(zip(Candidate._fields, zip(*candidates, strict=True), strict=True))
    return columns | {name: tuple(map(short, columns[name])) for name in ("logit", "delta")}


def _stage_to_json(report: StageReport) -> Json:
    lowest = report.min_kept_logit
    return {
        "survivors": report.survivors,
        "removed_mass": report.removed_mass,
        "log_sum_exp": report.log_sum_exp,
        "min_kept_logit": None if lowest is None else short(lowest),
        "top_removed": report.top_removed,
    }


def _report(stage: Json, known: Json) -> StageReport:
    rule = {name: value for name, value in stage.items() if name != "stage"}
    return StageReport(
        stage=Stage(stage["stage"], rule),
        survivors=known["survivors"],
        removed_mass=known["removed_mass"],
        top_removed=known["top_removed"],
        log_sum_exp=known["log_sum_exp"],
        min_kept_logit=known["min_kept_logit"],
    )


def milliseconds(phases: Phases) -> dict[str, float]:
    """By phase; draft is left out where no draft model ran."""
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
