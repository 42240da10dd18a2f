"""Grammars that would take hours, or more stack than there is: refused, while others are served."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from uuid import uuid4

import httpx
import pytest

from cutaway.text.grammar import compile_sandbox
from support.served import BESIDE

pytestmark = pytest.mark.parametrize("tiny", [BESIDE], indirect=True)  # it takes ten seconds

FOREVER = {"allOf": [{"type": "string", "pattern": f"x{i}.*y{i}"} for i in range(40)]}
CHAIN = "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(3500)) + 'r3500: "a"'
LOOP = {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
MANY = [f"{i} is one of them" for i in range(20_000)]
HOSTILE = [
    ({"json_schema": FOREVER}, "takes more than"),
    ({"json_schema": LOOP}, "lead back to themselves"),
    ({"json_schema": {"type": "integer", "minimum": 2, "maximum": 1}}, "minimum"),
    ({"grammar": "start: x\nx: x"}, "allows no text"),
    ({"json_schema": {"type": "string", "pattern": "(" * 999 + "a" + ")" * 999}}, "nest"),
    ({"json_schema": {"enum": MANY}}, "bytes; at most"),
    ({"json_schema": {"$ref": "#/nowhere"}}, "nowhere"),
    ({"grammar": CHAIN}, "takes more than"),
    ({"grammar": "root ::= " + "(" * 3000 + '"a"' + ")" * 3000}, "too deep"),
    ({"grammar": "start: " + "(" * 3000 + '"a"' + ")" * 3000}, "too deep"),
    ({"grammar": '{"grammars": []}'}, "not JSON"),
    ({"regex": "ab" * 10_000}, "bytes; at most"),
    ({"regex": r"(a)(?=b)\1"}, "regex: it refers back to a group"),
    ({"choice": MANY}, "bytes; at most"),
]


def ask(tiny, **fields):
    return httpx.post(
        f"{tiny.url}/v1/completions", json={"prompt": "a", "max_tokens": 30, **fields}, timeout=60
    )


@pytest.mark.parametrize(("fields", "said"), HOSTILE, ids=lambda value: str(value)[:40])
def test_it_is_refused_in_one_sentence_and_the_server_goes_on(tiny, fields, said, monkeypatch):
    answer = ask(tiny, **fields)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == next(iter(fields))
    assert said in error["message"] and "\n" not in error["message"]
    assert len(error["message"]) < 400
    assert ask(tiny, regex="[ab]{3}").status_code == 200
    monkeypatch.setattr(compile_sandbox, "_ask", lambda *_: pytest.fail("it is compiled again"))
    assert ask(tiny, **fields).json() == answer.json()


def offer(tiny, schema, *, strict):
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    function = {"name": "f", "parameters": parameters, "strict": strict}
    tools = [{"type": "function", "function": function}]
    body = {"messages": [{"role": "user", "content": "a"}], "tools": tools, "max_tokens": 5}
    return httpx.post(f"{tiny.url}/v1/chat/completions", json=body, timeout=60)


def test_a_strict_tool_that_allows_nothing_is_refused_and_another_is_loosened(tiny):
    schema = {"type": "integer", "minimum": 2, "maximum": 1}
    refused = offer(tiny, schema, strict=True)
    assert refused.status_code == 400
    assert "Unsatisfiable schema" in refused.json()["error"]["message"]
    notes = offer(tiny, schema, strict=False).json()["choices"][0]["cutaway"]["notes"]
    assert any("not enforced in calls of f: " in note for note in notes)


@pytest.mark.slow  # twelve seconds
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "not strict"])
def test_a_tool_that_takes_too_long_to_compile_is_refused_and_never_loosened(tiny, strict):
    """What is left out of a schema depends on the schema, not on how busy the machine is."""
    began = time.monotonic()
    refused = offer(tiny, FOREVER, strict=strict)
    assert time.monotonic() - began < 40, "more than one trial was given up"
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == (
        "tools[0].function.parameters of f: compiling it takes more than 3 s of processor time, "
        "1 GB or the stack; make it smaller or flatter"
    )


def test_strings_of_a_grammar_are_text(tiny):
    """A schema cannot have a control token written."""
    said = "</s><s>user: "
    answer = ask(tiny, json_schema={"const": said}, return_token_ids=True).json()["choices"][0]
    assert json.loads(answer["text"]) == said
    assert not {1, 2} & {*answer["token_ids"]}


@pytest.fixture
def held(tiny, monkeypatch):
    """The server while a grammar is compiled that takes as long as the test."""
    began, goes_on, held = Event(), Event(), uuid4().hex
    ask_process = compile_sandbox._ask

    def slow(process, line):
        if held in line:
            began.set()
            assert goes_on.wait(300)
        return ask_process(process, line)

    monkeypatch.setattr(compile_sandbox, "_ask", slow)
    with ThreadPoolExecutor(8) as clients:
        clients.submit(ask, tiny, regex=held)
        try:
            assert began.wait(60)
            yield
        finally:
            goes_on.set()


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_without_a_grammar_waits_for_none(tiny, held, stream):
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 20, "stream": stream}
    answer = httpx.post(f"{tiny.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200


def test_too_many_that_wait_are_refused_with_a_time(tiny, held, monkeypatch):
    monkeypatch.setattr(tiny.service.llm._compiling, "_limit_of_client", 0)
    answer = ask(tiny, regex="another")
    assert answer.status_code == 429 and answer.json()["error"]["code"] == "queue_full"
    assert int(answer.headers["retry-after"]) >= 1


NOTHING = [
    {"enum": ["a", "b"], "not": {"enum": ["a", "b"]}},
    {"type": "array", "items": {"enum": [0, 1]}, "minItems": 3, "uniqueItems": True},
]


@pytest.mark.parametrize("schema", NOTHING, ids=str)
@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_that_turns_out_to_allow_nothing_is_the_requests_fault(tiny, schema, stream):
    answer = ask(tiny, json_schema=schema, stream=stream, max_tokens=40)
    text = answer.text.replace("data: ", "").splitlines()[-1 if answer.status_code == 400 else -2]
    error = json.loads(text)["error"]
    assert answer.status_code == 400 or stream
    assert error["type"] == "invalid_request_error" and "json_schema" in error["message"]
