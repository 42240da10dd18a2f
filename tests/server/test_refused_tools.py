"""Tools whose schemas no grammar can hold: loosened with a note, or refused where they are strict.

The error names the schema's own field and the keyword, in each protocol's form.
"""

import httpx
import pytest

from cutaway import LLM
from support.chat_templates import template
from support.mcp_tools import TOOLS
from support.random_llama import write_tiny_llama
from support.served import serve
from support.thoughts import ASK

PROTOCOLS = {
    "/v1/chat/completions": {"messages": ASK, "max_tokens": 1},
    "/v1/responses": {"input": "a", "max_output_tokens": 1},
    "/v1/messages": {"messages": ASK, "max_tokens": 1},
    "/api/chat": {"messages": ASK, "stream": False, "options": {"num_predict": 1}},
}
FIELDS = {
    "/v1/chat/completions": "tools[1].function.parameters",
    "/v1/responses": "tools[1].parameters",
    "/v1/messages": "tools[1].input_schema",
    "/api/chat": "tools[1].function.parameters",
}
LOOSENED = {
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "not": {"not": {"minItems": 2, "uniqueItems": True}},
    "propertyNames": {"type": "object", "propertyNames": {"not": {"format": "email"}}},
    "contains": {"type": "array", "contains": {"type": "integer"}},
    "$ref": {"$ref": "#/nope"},
    "pattern": {"type": "string", "pattern": r"^(a)(?=b)\1"},
}
"""Keyword that is left out -> the schema of a parameter with it."""


def offered(path, name, schema, **more):
    """A tool in a protocol's form."""
    if path == "/v1/messages":
        return {"name": name, "input_schema": schema, **more}
    function = {"name": name, "parameters": schema, **more}
    if path == "/v1/responses":
        return {"type": "function", **function}
    return {"type": "function", "function": function}


def of_one(path, name, schema, **more):
    """A tool of one parameter."""
    return offered(path, name, {"type": "object", "properties": {"x": schema}}, **more)


def ask(server, path, tools):
    body = {**PROTOCOLS[path], "tools": tools}
    return httpx.post(server.url + path, json=body, timeout=120)


def notes_of(answer):
    said = answer.json()
    return said.get("choices", [said])[0]["cutaway"]["notes"]


@pytest.fixture(scope="module", params=["qwen2.5", "qwen3-coder"], ids=["json", "tags"])
def roomy(request, tmp_path_factory):
    """A server of a model whose template shows no tool, so that many take no room."""
    source = template(request.param).source
    shown = "{{ tool | tojson if loop.last else '' }}"
    source = source.replace("{{ tool | tojson }}", shown)
    path = tmp_path_factory.mktemp("roomy") / "t.gguf"
    write_tiny_llama(path, context=1 << 16, metadata={"tokenizer.chat_template": source})
    with serve(LLM(path, threads=1)) as served:
        yield served


@pytest.mark.parametrize("keyword", LOOSENED)
@pytest.mark.parametrize("path", PROTOCOLS)
def test_a_schema_is_loosened_where_nobody_asks_for_strict(roomy, path, keyword):
    tools = [of_one(path, "good", {}), of_one(path, "odd", LOOSENED[keyword])]
    answer = ask(roomy, path, tools)
    assert answer.status_code == 200, answer.text
    assert f"tools: not enforced in calls of odd: properties.x.{keyword}" in notes_of(answer)


@pytest.mark.parametrize("keyword", LOOSENED)
@pytest.mark.parametrize("path", PROTOCOLS)
def test_a_strict_tool_is_refused_by_its_field_and_the_keyword(roomy, path, keyword):
    tools = [of_one(path, "good", {}), of_one(path, "odd", LOOSENED[keyword], strict=True)]
    ask(roomy, path, [tools[0], of_one(path, "odd", LOOSENED[keyword])])  # what is kept is no way
    answer = ask(roomy, path, tools)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    assert message.startswith(f"{FIELDS[path]}: properties.x.{keyword} cannot be enforced in calls")
    assert "line" not in message
    if path.startswith(("/v1/chat", "/v1/responses")):
        assert error["param"] == FIELDS[path]


@pytest.mark.parametrize("path", PROTOCOLS)
def test_what_is_no_schema_is_refused_by_its_field(roomy, path):
    tools = [of_one(path, "good", {}), of_one(path, "bad", {"type": "text"})]
    answer = ask(roomy, path, tools)
    assert answer.status_code == 400
    error = answer.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    assert message.startswith(f"{FIELDS[path]} of bad: properties.x.type is 'text', which")


@pytest.mark.parametrize("path", PROTOCOLS)
def test_the_tools_of_ten_servers_are_taken(roomy, path):
    tools = [offered(path, name, schema) for name, schema in TOOLS.items()]
    answer = ask(roomy, path, tools)
    assert answer.status_code == 200, answer.text
    loose = {note.partition(":")[2].split()[-2] for note in notes_of(answer)}
    assert loose


@pytest.mark.parametrize("path", PROTOCOLS)
def test_there_may_be_many_with_long_names(roomy, path):
    """As Anthropic's clients send them."""
    names = [f"{'n' * 125}{i:03}" for i in range(140)]
    tools = [of_one(path, name, {"type": "integer"}) for name in names]
    answer = ask(roomy, path, tools)
    assert answer.status_code == 200, answer.text
