"""Ollama's endpoints: the same texts as of OpenAI's, in Ollama's form."""

import json

import httpx
import pytest

from cutaway.features.ollama.requests import OllamaChatRequest
from cutaway.requests.tools import ToolUse

ASK = [{"role": "user", "content": "What is the capital of France?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
        },
    },
}
DRAWN = {"seed": 5, "temperature": 0.8, "num_predict": 12}


@pytest.fixture
def post(smollm2):
    def ask(path, **body):
        return httpx.post(f"{smollm2.url}{path}", json={"model": "smollm2", **body}, timeout=60)

    return ask


def whole(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()


def lines(answer):
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def same(told):
    """What does not depend on the clock."""
    timed = {"created_at", "total_duration", "prompt_eval_duration", "eval_duration"}
    kept = {name: value for name, value in told.items() if name not in timed}
    kept["cutaway"] = {name: value for name, value in kept["cutaway"].items() if name != "timing"}
    return kept


# -- texts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_top_k_of_minus_one_is_none(client, path):
    """As in other engines, and at /v1."""
    asked = {"/api/chat": {"messages": ASK}, "/api/generate": {"prompt": "a", "raw": True}}[path]

    def answer(k):
        options = {**DRAWN, "top_k": k}
        return whole(client.post(path, json={**asked, "stream": False, "options": options}))

    assert same(answer(-1)) == same(answer(0))


@pytest.mark.model
@pytest.mark.parametrize("format", [None, "json", {"type": "object", "maxProperties": 1}], ids=str)
def test_a_chat_has_the_text_that_openais_has(post, format):
    options = {**DRAWN, "repeat_penalty": 1.1, "stop": ["zzz"], "top_k": 40, "min_p": 0.01}
    told = whole(post("/api/chat", messages=ASK, stream=False, options=options, format=format))
    asked = {"seed": 5, "temperature": 0.8, "max_tokens": 12, "repetition_penalty": 1.1,
             "stop": ["zzz"], "top_k": 40, "min_p": 0.01}  # fmt: skip
    if format == "json":
        asked["response_format"] = {"type": "json_object"}
        asked["schema_in_prompt"] = False
    elif format:
        schema = {"name": "a", "schema": format}
        asked["response_format"] = {"type": "json_schema", "json_schema": schema}
    other = whole(post("/v1/chat/completions", messages=ASK, **asked))
    [choice] = other["choices"]
    assert told["message"] == {"role": "assistant", "content": choice["message"]["content"]}
    assert told["done"] and told["done_reason"] == choice["finish_reason"]
    assert told["cutaway"]["fingerprint"] == choice["cutaway"]["fingerprint"]
    assert told["cutaway"]["seeds"] == [5]
    assert told["prompt_eval_count"] == other["usage"]["prompt_tokens"]
    assert told["eval_count"] == other["usage"]["completion_tokens"]
    assert told["load_duration"] == 0
    assert 0 < told["eval_duration"] < told["total_duration"]
    assert 0 < told["prompt_eval_duration"] < told["total_duration"]


@pytest.mark.model
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"logprobs": True, "top_logprobs": 2},
        {"tools": [TOOL]},
        {"format": {"type": "object", "maxProperties": 1}},
    ],
    ids=str,
)
def test_the_lines_of_a_chat_are_the_whole_answer(post, body):
    options = {**DRAWN, "num_predict": 40}
    told = whole(post("/api/chat", messages=ASK, stream=False, options=options, **body))
    *some, end = lines(post("/api/chat", messages=ASK, options=options, **body))
    assert not any(line["done"] for line in some)
    message = {"role": "assistant", "content": "".join(x["message"]["content"] for x in some)}
    if calls := [call for x in some for call in x["message"].get("tool_calls", ())]:
        message["tool_calls"] = calls
    joined = {**end, "message": message}
    if body.get("logprobs"):
        joined["logprobs"] = [one for x in some for one in x.get("logprobs", ())]
        assert all(len(one["top_logprobs"]) == 2 for one in joined["logprobs"])
        assert "".join(one["token"] for one in joined["logprobs"]) == message["content"]
    assert same(joined) == same(told)


@pytest.mark.model
def test_a_call_is_told_whole(post, monkeypatch):
    """Ollama has no word for a call that must be: here it must, so that there is one."""

    def must(self, service):
        return ToolUse(service.llm.model, self.offered_tools(), "required", parallel=False)

    monkeypatch.setattr(OllamaChatRequest, "use", must)
    body = {"messages": ASK, "tools": [TOOL]}
    told = whole(post("/api/chat", stream=False, options={**DRAWN, "num_predict": 80}, **body))
    [call] = told["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather" and call["function"]["index"] == 0
    assert type(call["function"]["arguments"]["city"]) is str
    *some, end = lines(post("/api/chat", options={**DRAWN, "num_predict": 80}, **body))
    assert [c["function"] for x in some for c in x["message"].get("tool_calls", ())] == [
        call["function"]
    ]
    assert end["done_reason"] == "stop" and end["cutaway"]["notes"] == told["cutaway"]["notes"]
    cut = whole(post("/api/chat", stream=False, options={**DRAWN, "num_predict": 22}, **body))
    assert "tool_calls" not in cut["message"]
    assert any(note.startswith("tool_calls: ") for note in cut["cutaway"]["notes"])


@pytest.mark.model
def test_a_call_is_answered_by_the_name_of_its_tool(post):
    call = {"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
    told = [*ASK, {"role": "assistant", "content": "", "tool_calls": [call]}]
    told.append({"role": "tool", "tool_name": "get_weather", "content": "rain"})
    body = {"stream": False, "options": DRAWN, "tools": [TOOL]}
    answer = whole(post("/api/chat", messages=told, **body))
    plain = [*told]
    plain[1] = {"role": "assistant", "tool_calls": [
        {"id": "a", "type": "function", "function": {
            "name": "get_weather", "arguments": json.dumps({"city": "Paris"})}}]}  # fmt: skip
    plain[2] = {"role": "tool", "tool_call_id": "a", "content": "rain"}
    asked = {"seed": 5, "temperature": 0.8, "max_tokens": 12}
    other = whole(post("/v1/chat/completions", messages=plain, tools=[TOOL], **asked))
    assert answer["prompt_eval_count"] == other["usage"]["prompt_tokens"]
    assert answer["cutaway"]["fingerprint"] == other["choices"][0]["cutaway"]["fingerprint"]
    lost = post("/api/chat", messages=[*ASK, told[-1]], **body)
    assert lost.status_code == 400 and "messages[1]" in lost.json()["error"]


@pytest.mark.model
def test_a_prompt_is_a_chat_of_one_message(post):
    options = {"options": DRAWN, "stream": False}
    system = "Answer in one word."
    said = [{"role": "system", "content": system}, *ASK]
    chat = whole(post("/api/chat", messages=said, **options))
    answer = whole(post("/api/generate", prompt=ASK[0]["content"], system=system, **options))
    assert answer["response"] == chat["message"]["content"]
    assert answer["cutaway"]["fingerprint"] == chat["cutaway"]["fingerprint"]
    count = answer["prompt_eval_count"] + answer["eval_count"]
    assert len(answer["context"]) == count
    more = whole(post("/api/generate", prompt="And?", context=answer["context"], **options))
    assert more["context"][:count] == answer["context"]
    assert more["prompt_eval_count"] > count


@pytest.mark.model
def test_a_raw_prompt_is_read_as_it_is(post):
    """With its special tokens, as the template writes them."""
    text = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    answer = whole(post("/api/generate", prompt=text, raw=True, stream=False, options=DRAWN))
    asked = {"seed": 5, "temperature": 0.8, "max_tokens": 12, "special": True}
    other = whole(post("/v1/completions", prompt=text, **asked))
    assert answer["response"] == other["choices"][0]["text"]
    assert "context" not in answer
    *some, end = lines(post("/api/generate", prompt=text, raw=True, options=DRAWN))
    assert "".join(line["response"] for line in some) == answer["response"]
    assert same({**end, "response": answer["response"]}) == same(answer)


# -- what is not a text --------------------------------------------------------------------------


@pytest.mark.model
def test_the_model_by_all_that_clients_ask_of_it(smollm2, post):
    def get(path):
        return whole(httpx.get(smollm2.url + path))

    model, *_ = get("/api/tags")["models"]
    assert model["name"] == model["model"] == "smollm2:latest"
    weights = smollm2.llm.model.identity.weights
    assert model["digest"] == weights
    assert model["size"] == smollm2.llm.model.parts.nbytes > 9 * 10**7
    assert model["details"]["parameter_size"] == "134.5M"
    assert model["details"]["quantization_level"] == "Q4_1"
    [running] = get("/api/ps")["models"]
    assert running["name"] == model["name"] and running["digest"] == weights
    assert running["context_length"] == smollm2.service.room
    assert [int(part) for part in get("/api/version")["version"].split(".")] >= [0, 6, 4]
    for name in ("smollm2", "smollm2:latest"):
        shown = whole(post("/api/show", model=name))
        assert shown["details"] == model["details"]
        assert {"completion", "tools", "embedding"} <= {*shown["capabilities"]}
        kind = shown["model_info"]["general.architecture"]
        assert shown["model_info"][f"{kind}.context_length"] == smollm2.service.room
        assert shown["template"] == smollm2.llm.template.source
    there = whole(post("/api/generate", model="smollm2:latest"))
    assert (there["response"], there["done"], there["done_reason"]) == ("", True, "load")


def test_vectors_are_those_of_openais_form(tiny):
    def post(path, **body):
        return httpx.post(tiny.url + path, json=body, timeout=60)

    texts = ["one", "two"]
    other = [one["embedding"] for one in whole(post("/v1/embeddings", input=texts))["data"]]
    told = whole(post("/api/embed", input=texts))
    assert told["embeddings"] == other
    assert told["prompt_eval_count"] > 0 and told["total_duration"] > 0
    assert whole(post("/api/embeddings", prompt="one"))["embedding"] == other[0]
    short = whole(post("/api/embed", input=texts, dimensions=3))["embeddings"]
    assert [len(one) for one in short] == [3, 3]
    cut = "word " * 20_000
    assert len(whole(post("/api/embed", input=cut))["embeddings"]) == 1
    refused = post("/api/embed", input=cut, truncate=False)
    assert refused.status_code == 400 and refused.json().keys() == {"error"}


def test_who_asks_for_the_page_gets_it_and_ollamas_clients_their_word(tiny):
    asked = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    assert httpx.get(tiny.url, headers=asked).text.startswith("<!doctype html>")
    assert httpx.get(tiny.url).text == "Ollama is running"
    assert httpx.head(tiny.url).status_code == 200


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        ("/api/chat", {"messages": ASK, "model": "other"}, "'other' is not here"),
        ("/api/chat", {"messages": [{"role": "user", "images": ["aa"]}]}, "images: only text"),
        ("/api/chat", {"messages": ASK, "think": True}, "think: "),
        ("/api/chat", {"messages": ASK, "think": "none"}, "think must be true or false or 'low',"),
        ("/api/chat", {"messages": ASK, "options": {"mirostat": 1}}, "mirostat: "),
        ("/api/chat", {"messages": ASK, "options": {"repeat_last_n": 64}}, "repeat_last_n: "),
        ("/api/chat", {"messages": ASK, "options": {"temperature": -1}}, "temperature must be"),
        ("/api/chat", {"messages": ASK, "options": {"repeat_penalty": 0}}, "repeat_penalty: "),
        ("/api/chat", {"messages": ASK, "options": {"num_predict": 0}}, "num_predict: "),
        ("/api/chat", {"messages": ASK, "truncate": True}, "truncate: nothing is cut"),
        ("/api/chat", {"messages": ASK, "top_logprobs": 2}, "top_logprobs needs logprobs"),
        ("/api/chat", {"messages": ASK, "format": "xml"}, "format"),
        ("/api/chat", {"messages": ASK, "unknown": 1}, "unknown"),
        ("/api/chat", {"messages": ASK, "options": {"unknown": 1}}, "unknown"),
        ("/api/generate", {"prompt": "a", "template": "{{ .Prompt }}"}, "template: the model"),
        ("/api/generate", {"prompt": "a", "images": ["aa"]}, "images: only text"),
        ("/api/generate", {"prompt": "a", "suffix": "b"}, "suffix: this model has no fill-in"),
        ("/api/generate", {"prompt": "a", "raw": True, "system": "b"}, "system: raw is"),
        ("/api/generate", {"prompt": "a", "context": [10**9]}, "prompt"),
        ("/api/embed", {"input": []}, "input must be"),
        ("/api/nothing", {}, "there is no path"),
        ("/api/pull", {"model": "a"}, "there is no path '/api/pull'; models are named to cutaway"),
        ("/api/create", {}, "there is no path '/api/create'; models are named to cutaway serve"),
    ],
    ids=str,
)  # fmt: skip
def test_a_refusal_is_one_sentence_in_ollamas_form(client, path, body, word):
    answer = client.post(path, json=body)
    assert answer.status_code == (404 if "there is no" in word or "not here" in word else 400)
    told = answer.json()
    assert told.keys() == {"error"}
    assert word in told["error"] and "\n" not in told["error"]
