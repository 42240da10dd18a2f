"""Tools that cannot be offered, in each protocol: the error names the tool, and no other field."""

import httpx
import pytest

from cutaway import LLM
from support.chat_templates import template
from support.random_llama import write_tiny_llama
from support.served import serve
from support.thoughts import ASK

PROTOCOLS = {
    "/v1/chat/completions": {"messages": ASK, "max_tokens": 1},
    "/v1/responses": {"input": "a", "max_output_tokens": 1},
    "/v1/messages": {"messages": ASK, "max_tokens": 1},
    "/api/chat": {"messages": ASK, "stream": False, "options": {"num_predict": 1}},
}
REFUSED = {
    '"uniqueItems" cannot be kept to': {"type": "array", "uniqueItems": True},
    '"not" cannot be kept to': {"not": {"type": "string"}},
    '"propertyNames" cannot be kept to': {"type": "object", "propertyNames": {"pattern": "^a"}},
    '"contains" cannot be kept to': {"type": "array", "contains": {"type": "integer"}},
    "properties.x.type is 'text', which JSON does not have": {"type": "text"},
    "$ref '#/nope' names nothing": {"$ref": "#/nope"},
    "refers back to a group": {"type": "string", "pattern": r"^(a)(?=b)\1"},
}


def offered(path, name, schema):
    """A tool of one parameter in a protocol's form."""
    parameters = {"type": "object", "properties": {"x": schema}}
    if path == "/v1/messages":
        return {"name": name, "input_schema": parameters}
    function = {"name": name, "parameters": parameters}
    if path == "/v1/responses":
        return {"type": "function", **function}
    return {"type": "function", "function": function}


@pytest.mark.parametrize("said", REFUSED)
@pytest.mark.parametrize("path", PROTOCOLS)
def test_the_tool_that_cannot_be_enforced_is_named(client, path, said):
    tools = [offered(path, "good", {}), offered(path, "bad", REFUSED[said])]
    answer = client.post(path, json={**PROTOCOLS[path], "tools": tools})
    assert answer.status_code == 400
    error = answer.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    assert message.startswith("tools[1]: parameters of bad: ")
    assert said in message
    assert "line" not in message
    if path.startswith(("/v1/chat", "/v1/responses")):
        assert error["param"] == "tools[1]"


@pytest.fixture(scope="module")
def roomy(tmp_path_factory):
    """A server of a model whose template shows one tool, so that many take no room."""
    shown = "{{ tool | tojson if loop.last else '' }}"
    source = template("qwen2.5").source.replace("{{ tool | tojson }}", shown)
    path = tmp_path_factory.mktemp("roomy") / "t.gguf"
    write_tiny_llama(path, context=4096, metadata={"tokenizer.chat_template": source})
    with serve(LLM(path, threads=1)) as served:
        yield served


@pytest.mark.parametrize("path", PROTOCOLS)
def test_there_may_be_many_with_long_names(roomy, path):
    """As Anthropic's clients send them."""
    names = [f"{'n' * 125}{i:03}" for i in range(130)]
    tools = [offered(path, name, {"type": "integer"}) for name in names]
    answer = httpx.post(roomy.url + path, json={**PROTOCOLS[path], "tools": tools}, timeout=60)
    assert answer.status_code == 200, answer.text
