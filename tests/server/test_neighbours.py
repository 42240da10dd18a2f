"""What one request's schema throws in a step is that request's answer, and no other client's."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from cutaway.text.grammar.schema_checks import SchemaCheck

TEXT = "/v1/completions"
SCHEMA = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
BAD = {"prompt": "[1, 2,", "json_schema": SCHEMA, "seed": 3, "max_tokens": 12}
NUMBERS = range(10)
"""Of the texts beside it, of which each is written whole and streamed."""


class Panic(BaseException):
    """As a native library has it."""


THROWN = [
    ValueError("guest"), KeyError("guest"), MemoryError("guest"), RecursionError("guest"),
    OSError(24, "Too many open files"), StopIteration("guest"), SystemExit(1),
    KeyboardInterrupt("guest"), asyncio.CancelledError("guest"), Panic("guest"),
]  # fmt: skip


def request(number):
    return {
        "prompt": f"neighbour {number}", "seed": number, "max_tokens": 30, "ignore_eos": True,
        "temperature": 1.0,
    }  # fmt: skip


def whole(client, number):
    answer = client.post(TEXT, json=request(number))
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["cutaway"]["fingerprint"]


def streamed(client, number):
    with client.stream("POST", TEXT, json=request(number) | {"stream": True}) as answer:
        assert answer.status_code == 200
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return json.loads(lines[-2].removeprefix("data: "))["choices"][0]["cutaway"]["fingerprint"]


@pytest.mark.parametrize("error", THROWN, ids=lambda error: type(error).__name__)
def test_a_check_that_throws_in_a_step(client, monkeypatch, error):
    assert client.post(TEXT, json=BAD).status_code == 200  # nothing is wrong with it
    expected = [whole(client, number) for number in NUMBERS]

    def allows(self, text, token):
        if len(text) > 2:
            raise error
        return True

    monkeypatch.setattr(SchemaCheck, "allows", allows)
    with ThreadPoolExecutor(25) as pool:
        beside = [pool.submit(ask, client, i) for i in NUMBERS for ask in (whole, streamed)]
        bad = [pool.submit(client.post, TEXT, json=BAD) for _ in range(3)]
        assert [answer.result().status_code for answer in bad] == [500] * 3
        fingerprints = [answer.result() for answer in beside]
    assert fingerprints[::2] == fingerprints[1::2] == expected
    message = bad[0].result().json()["error"]["message"]
    assert message == f"{type(error).__name__}: {error}"
    assert client.get("/health").status_code == 200
