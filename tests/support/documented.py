"""Requests for every operation of an OpenAPI document, by schemathesis."""

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import schemathesis
from schemathesis.engine import events, from_schema

LEFT_OUT = {
    # The shapes do not say what the rooms check: ranges, token ids of this vocabulary, prompts
    # that leave no room for an answer.
    "positive_data_acceptance": {"enabled": False},
}


PHASES = ("examples", "coverage", "fuzzing", "stateful")


def ask_for_everything(
    document, url: str, key: str, examples: int, *, each_at: str
) -> Iterator[tuple[Any, Any]]:
    """Yield (operation, response) of each good request; AssertionError if a check fails.

    examples  the most random examples of each operation; values at their limits and of other types
              are tried in addition
    each_at   where to try these for a field of several requests: in "all" requests, or in "one",
              and then for every sixteenth field only
    """
    phases = ["examples", "fuzzing"]  # not stateful: no request refers to an earlier one
    if each_at == "all":
        yield from _send_examples(document, url, key, examples, [*phases, "coverage"])
    else:
        yield from _send_examples(document, url, key, examples, phases)
        yield from _send_examples(
            _every_sixteenth_field(document), url, key, examples, ["coverage"]
        )


def _every_sixteenth_field(document):
    """Return the document with a sixteenth of its fields, each in one request only."""
    smaller, seen = deepcopy(document), set[str]()

    def was_seen(*parts) -> bool:
        schema = json.dumps(parts, sort_keys=True)
        again = schema in seen
        seen.add(schema)
        return again

    for path, methods in document["paths"].items():
        body = methods.get("post", {}).get("requestBody")
        if body is None:
            continue
        if "application/json" not in body["content"]:  # a form
            continue
        name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        if was_seen(body, methods["post"]["responses"]):
            del smaller["paths"][path]
        elif not was_seen(name):
            fields = smaller["components"]["schemas"][name]["properties"]
            always = {"stream", *smaller["components"]["schemas"][name].get("required", ())}
            again = [
                f for f, schema in fields.items() if was_seen(f, {**schema, "description": ""})
            ]
            if len(again) == len(fields):
                del smaller["paths"][path]
            new = [field for field in fields if field not in {*again, *always}]
            for field in {*fields} - {*new[::16]} - always:
                del fields[field]
    return smaller


def _send_examples(
    document, url: str, key: str, examples: int, phases
) -> Iterator[tuple[Any, Any]]:
    config = _config(url, key, examples, phases)
    schema = schemathesis.openapi.from_dict(document, config=config)
    schema.hook.apply_to(method="POST")(map_case)  # type: ignore[attr-defined]  # it has this
    for event in from_schema(schema).execute():
        assert not isinstance(event, events.NonFatalError | events.FatalError), event
        if isinstance(event, events.ScenarioFinished):
            yield from _answers(event.recorder)


def _config(url: str, key: str, examples: int, phases) -> schemathesis.Config:
    return schemathesis.Config.from_dict(
        {
            "base-url": url,
            "auth": {"openapi": {"key": {"bearer": key}}},
            "cache": {"enabled": False},
            "checks": {"enabled": True, **LEFT_OUT},
            "generation": {"max-examples": examples, "deterministic": True, "database": "none"},
            "output": {"truncation": {"max-recorded-payload-size": 1 << 28}},
            "max-stream-events": 1 << 20,
            "phases": {name: {"enabled": name in phases} for name in PHASES},
        }
    )


def map_case(_, case):
    """Leave out fields that need an absent field; otherwise nearly all requests are refused."""
    body = case.body
    if case.meta.generation.mode.is_positive and isinstance(body, dict):
        pairs = {"candidates": "trace", "track": "trace", "stream_options": "stream"}
        pairs["top_logprobs"] = "logprobs"
        for name, other in pairs.items():
            if not body.get(other):
                body.pop(name, None)
    return case


def _answers(recorder) -> Iterator[tuple[Any, Any]]:
    for id, checks in recorder.checks.items():
        for check in checks:
            failure = check.failure_info
            assert failure is None, (
                f"{recorder.label}: {check.name}: {failure.failure.title}: "
                f"{failure.failure.message}\n{failure.code_sample}\n"
                f"{recorder.interactions[id].response.content!r:.1000}"
            )
    for id, exchange in recorder.interactions.items():
        assert exchange.response is not None, recorder.cases[id].value
        if exchange.response.status_code == 200:
            yield recorder.cases[id].value.operation.definition.raw, exchange.response
