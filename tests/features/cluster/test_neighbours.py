"""What one request's schema throws in a step of a replica is that request's error alone."""

import asyncio

import pytest

from cutaway.errors import CutawayError
from cutaway.text.grammar.schema_checks import SchemaCheck
from support.replicas import cluster
from support.resumed import LONG, PROMPT, told

SCHEMA = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
BAD = {"json_schema": SCHEMA, "seed": 3, "max_tokens": 12}


class Panic(BaseException):
    """As a native library has it."""


@pytest.mark.parametrize(
    "error",
    [ValueError("guest"), MemoryError("guest"), SystemExit("guest"), Panic("guest")],
    ids=lambda error: type(error).__name__,
)
async def test_a_check_that_throws_in_a_replica(models, expected, monkeypatch, error):
    def allows(self, text, token):
        if len(text) > 2:
            raise error
        return True

    monkeypatch.setattr(SchemaCheck, "allows", allows)
    async with asyncio.timeout(120), cluster(models, 2) as (front, replicas):

        async def finish(options):
            texts = await front.submit([PROMPT], front.parse(options))
            await texts.finish()
            return [told(text) for text in texts.each]

        beside = [asyncio.create_task(finish(LONG)) for _ in range(20)]
        bad = [asyncio.create_task(finish(BAD)) for _ in range(3)]
        for task in bad:
            with pytest.raises(CutawayError, match=f"{type(error).__name__}: guest"):
                await task
        assert [await task for task in beside] == [expected] * 20
        assert len(replicas.jobs) == 23  # none was written twice
