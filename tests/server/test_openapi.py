"""What /openapi.json says is so: everything is asked for, and every answer is as documented."""

import json
import re
from pathlib import Path
from unittest.mock import patch

import httpx
import pytest
import schemathesis
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from cutaway import LLM
from cutaway.features.anthropic import TextBlock
from cutaway.features.anthropic.requests import ClientTool, CountRequest, MessagesRequest
from cutaway.features.evidence.signing_keys import PrivateKey
from cutaway.features.inside.endpoints import AblateRequest, InsideRequest
from cutaway.features.ollama.requests import OllamaGenerateRequest, OllamaOptions
from cutaway.requests.keywords import KEYWORDS, NOT_THERE, Absent
from cutaway.server import answering
from cutaway.server.http.settings import ServerSettings
from cutaway.server.openai.chat import ChatRequest, Message, TextPart
from cutaway.server.openai.completions import CompletionRequest
from cutaway.server.openai.responses_request import ResponsesRequest
from cutaway.server.routes.fill import FillRequest
from cutaway.server.routes.tokens import DetokenizeRequest, TokenizeRequest
from cutaway.server.shared.fields import StreamOptions
from support.adapters import adapter_of
from support.documented import ask_for_everything
from support.keyword_table import keyword_table, read_table
from support.random_llama import write_tiny_llama
from support.served import TEMPLATE, serve

KEY = "sesame"
GAP = (248, 249, 250)  # ids of bytes that no text has
REFS = "#/components/schemas/"
OF_OTHER_MODELS = {"MultiVectorList"}  # of late interaction: test_encoders.py


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server with a key, whose texts end soon, as there is no room; it can fill a gap."""
    marks = {
        f"tokenizer.ggml.fim_{n}_token_id": i
        for n, i in zip(("pre", "suf", "mid"), GAP, strict=True)
    }
    metadata = {"tokenizer.chat_template": TEMPLATE, **marks}
    path = tmp_path_factory.mktemp("documented") / "tiny.gguf"
    llm = LLM(write_tiny_llama(path, context=512, metadata=metadata), threads=1, context=64)
    folder = tmp_path_factory.mktemp("batches")
    _write_what_the_examples_name(folder)
    adapter_of(path, folder / "poet.gguf")
    PrivateKey.create(folder / "key.pem")
    signed = {"receipts": folder / "log", "receipt_key": folder / "key.pem"}
    settings = ServerSettings(
        api_key=KEY, allow_hosts=(), batches=folder, allow_adapters=True, **signed
    )
    with pytest.MonkeyPatch.context() as patch, serve(llm, settings) as served:
        patch.chdir(folder)
        _make_what_the_examples_name(served.url)
        yield served


def _write_what_the_examples_name(folder):
    """A file and a batch, as a server left them."""
    file = {
        "id": "file-example", "object": "file", "bytes": 1, "created_at": 1, "filename": "a",
        "purpose": "batch", "status": "processed",
    }  # fmt: skip
    batch = {
        "id": "batch_example", "object": "batch", "endpoint": "/v1/completions",
        "input_file_id": "file-example", "completion_window": "24h", "status": "completed",
        "created_at": 1, "metadata": None, "errors": None, "output_file_id": None,
        "request_counts": {"total": 0, "completed": 0, "failed": 0}, "error_file_id": None,
    }  # fmt: skip
    for kind, document in (("files", file), ("batches", batch)):
        (folder / kind).mkdir()
        (folder / kind / f"{document['id']}.json").write_text(json.dumps(document))
    (folder / "files" / "file-example.content").write_bytes(b"x")


def _make_what_the_examples_name(url):
    """An answer of the id that the document has as example."""
    headers = {"authorization": f"Bearer {KEY}"}
    asked = {"input": "a", "max_output_tokens": 1}
    with patch.object(answering, "answer_id", lambda _: "example"):
        httpx.post(f"{url}/v1/responses", json=asked, headers=headers).raise_for_status()


@pytest.fixture(scope="module")
def client(served):
    headers = {"authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=served.url, headers=headers, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def document(client):
    return client.get("/openapi.json").json()


@pytest.fixture(scope="module")
def strict(document):
    """Validates answers, in which nothing may stand that is not documented."""
    schemas = document["components"]["schemas"]
    closed = {
        name: {**schema, "additionalProperties": False} if "properties" in schema else schema
        for name, schema in schemas.items()
    }

    def check(shape, answer):
        told = {"$ref": REFS + shape, "components": {"schemas": closed}}
        Draft202012Validator(told).validate(answer)

    return check


# -- everything is asked for -----------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # hypothesis, of what it drew
@pytest.mark.parametrize(
    ("examples", "each_at"), [(2, "one"), pytest.param(1500, "all", marks=pytest.mark.slow)]
)
def test_every_answer_is_as_documented(served, document, strict, examples, each_at):
    asked_for = ask_for_everything(document, served.url, KEY, examples, each_at=each_at)
    answers = [(_shapes(operation), answer) for operation, answer in asked_for]
    for shapes, answer in answers:
        _check(strict, shapes, answer)
    asked = {json.dumps(shapes) for shapes, _ in answers}
    others = {json.dumps({"application/json": name}) for name in OF_OTHER_MODELS}
    assert asked == {json.dumps(_shapes(op)) for op in _operations(document)} - others
    streamed = [a for _, a in answers if "text/event-stream" in a.headers["content-type"][0]]
    assert streamed
    _assert_well(served)


def _operations(document):
    return [op for methods in document["paths"].values() for op in methods.values()]


def _shapes(operation):
    """Media type -> the name of its shape, in a list for several; None for text."""
    content = operation["responses"]["200"]["content"]
    shapes = {}
    for media, told in content.items():
        schema = told["schema"]
        if media == "text/event-stream":
            schema = schema["properties"]["data"]["anyOf"][0]["contentSchema"]
        schema = schema.get("anyOf", [schema])[0]
        if schema.get("type") == "array":
            shapes[media] = [schema["items"]["$ref"].removeprefix(REFS)]
            continue
        shapes[media] = schema.get("$ref", "").removeprefix(REFS) or None
    return shapes


def _check(strict, shapes, answer):
    media = answer.headers["content-type"][0].partition(";")[0]
    shape = shapes[media]
    if media == "text/event-stream":
        _check_events(strict, shape, answer.content.decode())
    elif media == "application/x-ndjson":
        for line in answer.content.decode().removesuffix("\n").split("\n"):
            strict(shape, json.loads(line))
    elif isinstance(shape, list):
        for one in json.loads(answer.content):
            strict(*shape, one)
    elif shape:
        strict(shape, json.loads(answer.content))


def _check_events(strict, shape, stream):
    *blocks, end = stream.split("\n\n")
    assert end == ""
    if shape not in ("ResponseEvent", "MessageEvent", "Infilling"):
        assert blocks.pop() == "data: [DONE]"
    assert blocks
    for block in blocks:
        *name, data = block.split("\n")  # not at U+0085 or U+2028, which may be in a text
        told = json.loads(data.removeprefix("data: "))
        assert name == ([f"event: {told['type']}"] if "type" in told else [])
        strict(shape, told)


def _assert_well(served):
    """Nothing is left of what was asked."""
    assert httpx.get(served.url + "/health").json() == {"status": "ok"}
    served.wait_until_free()


# -- texts with all that can be told ----------------------------------------------------------

PROMPTS = st.one_of(
    st.text(max_size=8),
    st.lists(st.integers(0, 255), min_size=1, max_size=8),
    st.lists(st.text(max_size=4), min_size=1, max_size=3),
)
SHARED = {
    "stream": st.booleans(),
    "n": st.integers(1, 3),
    "seed": st.integers(0, 2**64 - 1),
    "temperature": st.sampled_from([0, 0.7, 100]),
    "trace": st.booleans(),
    "return_token_ids": st.booleans(),
    "stop": st.sampled_from(["e", ["a", "ab"], []]),
    "ignore_eos": st.booleans(),
    "logprobs_when": st.sampled_from(["before", "after"]),
    "speculate": st.sampled_from(["off", "ngram", "jacobi"]),
}
COMPLETIONS = st.fixed_dictionaries(
    {"prompt": PROMPTS},
    optional={
        **SHARED,
        "max_tokens": st.integers(1, 8),
        "echo": st.booleans(),
        "logprobs": st.integers(0, 3),
    },
)
ASKED = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
MESSAGES = st.fixed_dictionaries(
    {name: st.just(value) for name, value in ASKED.items()},
    optional={
        **{name: SHARED[name] for name in ("stream", "seed", "temperature", "trace", "speculate")},
        "return_token_ids": st.booleans(),
        "stop_sequences": st.sampled_from([["e"], ["a", "ab"], []]),
        "thinking": st.sampled_from([{"type": "adaptive"}, {"type": "disabled"}]),
    },
)
CHATS = st.fixed_dictionaries(
    {"messages": st.just([{"role": "user", "content": "Hello"}])},
    optional={
        **SHARED,
        "max_completion_tokens": st.integers(1, 8),
        "logprobs": st.booleans(),
    },
)


@pytest.mark.parametrize(
    ("path", "bodies"),
    [
        ("/v1/completions", COMPLETIONS),
        ("/v1/chat/completions", CHATS),
        ("/v1/messages", MESSAGES),
    ],
)
def test_texts_have_the_documented_shape(served, client, document, strict, path, bodies):
    shapes = _shapes(document["paths"][path]["post"])

    @settings(max_examples=30)
    @given(bodies)
    def check(body):
        answer = client.post(path, json=body)
        if answer.status_code == 400:  # nothing else can be wrong with these
            assert "prompt is empty" in answer.text, answer.text
        elif body.get("stream"):
            _check_events(strict, shapes["text/event-stream"], answer.text)
        else:
            strict(shapes["application/json"], answer.json())

    check()
    _assert_well(served)


# -- the document itself -----------------------------------------------------------------------


def test_the_document_is_valid(document):
    schemathesis.openapi.from_dict(document).validate()
    assert document["openapi"].startswith("3.1")
    refs = set(_refs(document))
    assert refs == {REFS + name for name in document["components"]["schemas"]}
    ids = [op["operationId"] for op in _operations(document)]
    assert len(ids) == len(set(ids)) and "chat_completions" in ids
    assert all(op["description"] and op["tags"] for op in _operations(document))


def _refs(value):
    if isinstance(value, dict):
        yield from (v for k, v in value.items() if k == "$ref")
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        yield from _refs(one)


@pytest.mark.parametrize(
    "model",
    [
        ChatRequest, ClientTool, CompletionRequest, CountRequest, DetokenizeRequest, FillRequest,
        InsideRequest, Message, MessagesRequest, StreamOptions, TextBlock, TextPart,
        TokenizeRequest, AblateRequest,
    ],
)  # fmt: skip
def test_fields_documented_are_fields_accepted(document, model):
    schema = document["components"]["schemas"][model.__name__]
    assert set(schema["properties"]) == {*model.model_fields, *model.unsupported}
    assert schema["additionalProperties"] == {"type": "null"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/inside", {"prompt": [79, 110], "generated": [32], "step": 0}),
        ("/v1/inside/ablate", {"prompt": [79, 110], "generated": [32], "step": 0}),
        ("/v1/fill", {"text": "a[MASK]"}),
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/score", {"text_1": "a", "text_2": "b"}),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "method": "cosine"}),
        (
            "/v1/decisions",
            {"input": "a", "questions": [{"type": "predicate", "instructions": "b"}]},
        ),
        ("/tokenize", {"prompt": "a"}),
        ("/detokenize", {"tokens": [97]}),
    ],
)
def test_a_documented_field_may_be_null_and_no_other_may_be(client, document, path, body):
    content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    name = content["schema"]["$ref"].removeprefix(REFS)
    fields = document["components"]["schemas"][name]["properties"]
    for field in fields:
        assert client.post(path, json={field: None, **body}).status_code == 200, field
    assert client.post(path, json={"no_such": None, **body}).status_code == 200
    answer = client.post(path, json={"no_such": 1, **body})
    assert answer.status_code == 400
    assert "unknown field 'no_such'" in answer.json()["error"]["message"]


def test_the_key_and_the_hosts_are_documented_where_they_are_set(document, tiny):
    open_paths = {"/health", "/ready"}
    for path, methods in document["paths"].items():
        for operation in methods.values():
            statuses = set(operation["responses"])
            assert ("401" in statuses) == ("security" in operation) == (path not in open_paths)
            assert "403" in statuses and "422" not in statuses
    open_document = tiny.app.openapi()
    assert "securitySchemes" not in open_document["components"]
    assert not any({"401", "403"} & {*op["responses"]} for op in _operations(open_document))


# -- each keyword is a field of each form of requests, or the table says why not ---------------


FACES = {
    "chat": ChatRequest.model_fields,
    "completions": CompletionRequest.model_fields,
    "responses": ResponsesRequest.model_fields,
    "messages": MessagesRequest.model_fields,
    "ollama": {**OllamaGenerateRequest.model_fields, **OllamaOptions.model_fields},
}
PARAMETERS = Path(__file__).parents[2] / "src/cutaway/trace/web/js/compose/parameters.js"


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("name", KEYWORDS)
def test_a_keyword_is_there_or_it_is_said_why_not(name, face):
    row = KEYWORDS[name]
    if field := row.field(name, face):
        assert field in FACES[face]
        return
    why = row.fields.reason if isinstance(row.fields, Absent) else NOT_THERE[face]
    assert len(why) > 10 and name not in FACES[face]


def test_the_page_has_the_controls_that_the_table_says():
    script = PARAMETERS.read_text()
    named = set(re.findall(r'"(\w+)"', script[script.index("export const LENGTH") :]))
    numbers = {name for name, row in KEYWORDS.items() if row.kind == "number"}
    controls = {name for name, row in KEYWORDS.items() if row.page}
    assert controls - numbers - {"denoise"} == named & KEYWORDS.keys() - numbers
    assert numbers <= controls and NOT_THERE["page"]


def test_the_docs_have_the_table():
    assert read_table() == keyword_table(), "PYTHONPATH=tests python -m support.keyword_table"
