"""Whatever an InputError says, a client is told of the same field, with the same status."""

import httpx
import pytest

from cutaway import LLM
from cutaway.server.http.settings import ServerSettings
from support.reworded import reword
from support.served import serve

SAID = {"messages": [{"role": "user", "content": "a"}]}
CALLED = {"role": "tool", "content": "b", "tool_call_id": "no"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
ANY = {"a": 1}
COSINE = {"method": "cosine"}


def tool_of(**parts):
    return [TOOL, {"type": "function", "function": TOOL["function"] | {"name": "g"} | parts}]


BAD = {
    "/v1/completions": [
        ({"top_p": 3}, "top_p"),
        ({"min_p": -1}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": {"5": 200}}, "logit_bias[5]"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"seed": -5}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"bad_words": [""]}, "bad_words"),
        ({"chain": ["no"]}, "chain"),
        ({"chain": ["top_k"], "preset": "vllm"}, "preset"),
        ({"preset": "no"}, "preset"),
        ({"dry_breakers": [""]}, "dry_breakers"),
        ({"regex": "("}, "regex"),
        ({"regex": "a", "choice": ["b"]}, "regex"),
        ({"grammar": "no such"}, "grammar"),
        ({"json_schema": {"type": "no"}}, "json_schema"),
        ({"json_compact": True}, "json_compact"),
        ({"align": True}, "align"),
        ({"heal": True, "suffix": "b"}, "heal"),
        ({"track": [99999], "trace": True}, "track"),
        ({"candidates": 5000, "trace": True}, "candidates"),
        ({"forced": [99999]}, "forced"),
        ({"replay": [1], "n": 2}, "replay"),
        ({"speculate": "draft"}, "speculate"),
        ({"interventions": ["L0"]}, "interventions[0]"),
        ({"interventions": ["L0 x 1", {"kind": "no"}]}, "interventions[1]"),
        ({"denoise": "no"}, "denoise"),
        ({"denoise": {"steps": 0}}, "denoise"),
        ({"denoise": True}, None),
        ({"echo": True, "suffix": "b"}, "echo"),
        ({"stream_options": {}}, "stream_options"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"prompt": "a" * 9999}, "prompt"),
        ({"prompt": [99999]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"top_pp": 5}, "top_pp"),
    ],
    "/v1/chat/completions": [
        ({"top_p": 3}, "top_p"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "a" * 9999}]}, "messages"),
        ({"messages": [*SAID["messages"], CALLED]}, "messages[1].tool_call_id"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": tool_of(), "tool_choice": ANY}, "tool_choice.type"),
        ({"tools": tool_of(name="f")}, "tools[1]"),
        ({"tools": tool_of(name="")}, "tools[1].function.name"),
        ({"tools": tool_of(strict=5)}, "tools[1].function.strict"),
        ({"chat_template_kwargs": 1}, "chat_template_kwargs"),
        ({"reasoning_effort": "low", "think": "none"}, "think"),
        ({"reasoning_effort": "no"}, "reasoning_effort"),
        ({"thinking_token_budget": -1}, "thinking_token_budget"),
    ],
    "/v1/responses": [
        ({"top_p": 3}, "top_p"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"input": "a" * 9999}, "input"),
        (
            {"input": [{"type": "function_call_output", "call_id": "no", "output": "b"}]},
            "input[0].call_id",
        ),
        ({"input": [{"type": "no"}]}, "input[0]"),
    ],
    "/v1/messages": [
        ({"top_p": 3}, None),
        ({"max_tokens": 0}, None),
        ({"tool_choice": {"type": "any"}}, None),
        ({"stop_sequences": [""]}, None),
    ],
    "/api/chat": [
        ({"options": {"top_p": 3}}, None),
        ({"options": {"num_predict": 0}}, None),
        ({"messages": [CALLED | {"tool_name": "f"}]}, None),
    ],
    "/v1/embeddings": [
        ({"input": ["a", "a" * 9999]}, "input[1]"),
        ({"input": ["a", [99999]]}, "input[1]"),
        ({"input": [[]]}, "input"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 99999}, "dimensions"),
    ],
    "/v1/score": [
        ({"text_1": ["a", "b"], "text_2": ["a"]}, "text_1"),
        ({"text_1": "a", "text_2": ["b", ""]}, "text_2[1]"),
        ({"text_1": "a", "text_2": ["b", "a" * 9999]} | COSINE, "text_2[1]"),
        ({"text_1": "a" * 9999, "text_2": ["b"]} | COSINE, "text_1[0]"),
        ({"text_1": "a", "text_2": "b", "method": "maxsim"}, "method"),
    ],
    "/v1/rerank": [
        ({"query": "a", "documents": ["b", "a" * 9999]} | COSINE, "documents[1]"),
        ({"query": "a" * 9999, "documents": ["b"]} | COSINE, "query"),
    ],
}  # fmt: skip
GOOD = {
    "/v1/completions": {"prompt": "a"},
    "/v1/chat/completions": SAID,
    "/v1/responses": {"input": "a"},
    "/v1/messages": SAID | {"max_tokens": 8},
    "/api/chat": SAID | {"model": "tiny"},
    "/v1/embeddings": {"input": "a"},
    "/v1/score": {},
    "/v1/rerank": {},
}


@pytest.fixture(scope="module")
def asked(tiny_path):
    settings = ServerSettings(allow_interventions=True)
    with (
        serve(LLM(tiny_path, threads=1), settings) as served,
        httpx.Client(base_url=served.url, timeout=60) as client,
    ):
        yield lambda path, fields: client.post(path, json=GOOD[path] | fields)


def told(answer):
    """The status, and all of the error but its sentence, which is apart."""
    error = answer.json()["error"]
    error = error if isinstance(error, dict) else {"message": error}  # Ollama's
    return (answer.status_code, {**error, "message": ""}), error["message"]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        pytest.param(path, *row, id=f"{path}-{i}")
        for path, rows in BAD.items()
        for i, row in enumerate(rows)
    ],
)
def test_a_client_is_told_the_same_field_whatever_is_said_of_it(asked, path, fields, param):
    facts, _ = told(asked(path, fields))
    with reword():
        again, _ = told(asked(path, fields))
    assert (facts[0], facts[1].get("param")) == (400, param)
    assert again == facts


def test_sentences_are_really_others(asked):
    path, fields = "/v1/chat/completions", {"max_completion_tokens": -1}
    assert told(asked(path, fields))[1] == (
        "max_completion_tokens: max_tokens must be 0 or more, not -1"
    )
    with reword():
        assert told(asked(path, fields))[1] == "max_completion_tokens 7 7 7"
