"""Where masks are wrong, no text that its schema refuses ends well."""

import json

import pytest

from cutaway.engine import ConstraintParams, FinishReason, RunParams, StopParams
from cutaway.errors import InputError
from cutaway.sampling import SamplingParams
from cutaway.text.grammar import llguidance_source
from support import mock_backend
from support.engine_mock import MockRequest

PATTERN = {"type": "string", "pattern": '^[^"]{1,3}$'}
BOUNDED = {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}


@pytest.fixture(autouse=True)
def wrong_masks(monkeypatch):
    monkeypatch.setattr(llguidance_source, "maskable", lambda schema: schema)
    monkeypatch.setattr(
        mock_backend, "COMPILER", mock_backend.GrammarCompiler(mock_backend.Words())
    )


def ended(schema, begun: bytes, seed: int = 1, **thought):
    constraint = ConstraintParams(json_schema=schema, json_compact=True, **thought)
    return MockRequest(
        (1, 2, 3), SamplingParams(seed=seed), StopParams(max_tokens=40),
        RunParams(forced=(*begun,)), constraint=constraint,
    ).finish()  # fmt: skip


@pytest.mark.parametrize("thought", ["", 'start: "t" answer'])
@pytest.mark.parametrize("text", [r'"a\"b"', r'"\""'])
def test_a_text_without_another_way_out_is_an_error(text, thought):
    done = ended(PATTERN, (thought and "t").encode() + text.encode(), thought=thought)
    assert done.end.reason == FinishReason.ERROR and isinstance(done.end.error, InputError)
    assert "whole, but does not keep to the schema" in str(done.end.error)


def test_a_text_that_keeps_to_it_ends():
    assert ended(PATTERN, b'"a\'b"').end.reason == FinishReason.CONSTRAINT


@pytest.mark.parametrize("seed", range(5))
def test_a_text_that_may_go_on_does_so(seed):
    done = ended(BOUNDED, b"0", seed)
    assert done.end.reason in (FinishReason.END_TOKEN, FinishReason.MAX_TOKENS)
    if done.end.reason == FinishReason.END_TOKEN:
        assert 0 < json.loads(done.text) <= 0.5
