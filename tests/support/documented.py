"""All that an OpenAPI document offers, asked for by schemathesis."""

from collections.abc import Iterator
from typing import Any

import schemathesis
from schemathesis.engine import events, from_schema

LEFT_OUT = {
    # The shapes do not say what the rooms check: ranges, token ids of this vocabulary, prompts
    # that leave no room for an answer.
    "positive_data_acceptance": {"enabled": False},
}


def ask_for_everything(document, url: str, key: str, examples: int) -> Iterator[tuple[Any, Any]]:
    """The operation and the response, of all that were good; AssertionError where a check failed.

    examples: at most, of each operation
    """
    schema = schemathesis.openapi.from_dict(document, config=_config(url, key, examples))
    schema.hook.apply_to(method="POST")(map_case)  # type: ignore[attr-defined]  # it has this
    for event in from_schema(schema).execute():
        assert not isinstance(event, events.NonFatalError | events.FatalError), event
        if isinstance(event, events.ScenarioFinished):
            yield from _answers(event.recorder)


def _config(url: str, key: str, examples: int) -> schemathesis.Config:
    return schemathesis.Config.from_dict(
        {
            "base-url": url,
            "auth": {"openapi": {"key": {"bearer": key}}},
            "cache": {"enabled": False},
            "checks": {"enabled": True, **LEFT_OUT},
            "generation": {"max-examples": examples, "deterministic": True, "database": "none"},
            "output": {"truncation": {"max-recorded-payload-size": 1 << 28}},
            "max-stream-events": 1 << 20,
            "phases": {"stateful": {"enabled": False}},  # nothing made here is asked for later
        }
    )


def map_case(_, case):
    """Leave out what has no sense without another field, or nearly all would be refused."""
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
