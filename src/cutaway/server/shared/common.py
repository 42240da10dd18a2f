"""What every answer has: finish reasons, usage, and our own object ``cutaway``."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from cutaway.engine import Ended
from cutaway.engine.events import neg_log_z
from cutaway.methods.importance import constraint_estimate
from cutaway.requests.generation import Generation
from cutaway.requests.keywords import fields_at
from cutaway.server.job import TextJob
from cutaway.server.shared.schemas import (
    CompletionUsage,
    Ending,
    InForce,
    OwnReason,
    Reason,
    SamplesEstimate,
    Source,
)

_REASONS: Mapping[OwnReason, Reason] = {
    "end_token": "stop",
    "stop_string": "stop",
    "stop_token": "stop",
    "max_tokens": "length",
    "context_full": "length",
    "constraint": "stop",
    "scored": "length",
}

_WHOLE = ("constraint", "end_token")
"""Reasons for which a text of a grammar ends when it is whole."""


def finish_reason(ended: Ended) -> Reason:
    """OpenAI's word for how a text ended."""
    return _REASONS[_own_reason(ended)]


def _own_reason(ended: Ended) -> OwnReason:
    """Our word; a text in an answer was neither aborted nor did it fail."""
    return cast(OwnReason, str(ended.reason))


def usage(texts: Sequence[Generation], samples: int) -> CompletionUsage:
    """Of all texts; each prompt counts once, with what was found of it for its first sample."""
    each = [text.usage() for text in texts]
    firsts = each[::samples]
    prompt = sum(one.prompt_tokens for one in firsts)
    completion = sum(one.completion_tokens for one in each)
    accepted = sum(text.speculation.accepted for text in texts)
    proposed = sum(text.speculation.proposed for text in texts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in firsts)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": proposed - accepted,
        },
    }


def settings(job: TextJob, body: Any) -> InForce:
    """The settings in force that requests of this form can have, and where each came from."""
    texts, first = job.texts, job.texts[0]
    params = first.options.in_force(first.seed)
    params["speculate"] = params["speculate"].partition(":")[0]  # a draft's path is private
    if params["json_schema"] is not None:
        params["json_schema"] = json.loads(params["json_schema"])
    names = [name for name in params if name in fields_at(body.FACE) and name != "trace"]
    sources = first.options.sources
    found: InForce = {
        "params": {name: params[name] for name in names},
        "params_source": {name: _source(sources[name], name in job.given) for name in names},
        "chain": list(first.chain),
        "seeds": [text.seed for text in texts],
        "schema_in_prompt": body.schema_shown,
    }
    if job.route:
        found["replica"] = job.route.why[-1]
    return found


def _source(source: str, by_client: bool) -> Source:
    """Where a setting came from, as a client sees it."""
    if source == "given" and not by_client:  # the endpoint has chosen what was left open
        return "default"
    return cast(Source, "server" if source == "common" else source)


def estimates(texts: Sequence[Generation], samples: int) -> list[SamplesEstimate | None]:
    """What the samples of each prompt say of the model under their constraint."""
    done = [text.completion() for text in texts]
    each = [constraint_estimate(done[i : i + samples]) for i in range(0, len(done), samples)]
    return [cast(SamplesEstimate, one.to_dict()) if one else None for one in each]


def ending(job: TextJob, index: int, readings: Sequence[str]) -> Ending:
    """How a text ended, in our own words. readings: notes on how the request was read."""
    text = job.texts[index]
    ended, timing = text.ended, text.timing()
    assert ended is not None
    found: Ending = {
        "finish_reason": _own_reason(ended),
        "matched": ended.matched,
        "fingerprint": f"{ended.fingerprint:016x}",
        "notes": [*readings, *text.notes],
        "timing": {
            "queue_s": job.waited(index),
            "ttft_s": timing.ttft_s,
            "decode_tokens_per_s": timing.decode_tokens_per_s,
        },
    }
    if (grammar := text.request.constraint.source) is not None:
        found["grammar"] = {
            "kind": cast(Any, grammar.kind),
            "sha256": grammar.sha256,
            "forced": sum(step.source == "grammar" for step in text.steps),
            "complete": ended.reason in _WHOLE,
            "neg_log_z": neg_log_z(text.steps),
        }
    if text.options.denoise:
        rows = sum(made.rows for made in text.passes)
        found["canvas"] = {"passes": len(text.passes), "rows": rows}
    if job.route:
        found["replicas"], found["resumed"] = list(job.route.why), job.route.resumed
    return found
