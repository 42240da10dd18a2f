"""POST /v1/embeddings: the vectors of ``LLM.embed`` over HTTP, to OpenAI's own client too."""

import asyncio
import base64

import httpx
import numpy as np
import pytest
from openai import AsyncOpenAI, BadRequestError

from cutaway import LLM, AsyncLLM
from support.paced import leave_amid

EMBEDDED = ["ab ba", "a", "ab " * 40, "xyz"]


@pytest.fixture
def asked_for_vectors(client):
    return lambda **body: client.post("/v1/embeddings", json=body)


@pytest.mark.elsewhere
@pytest.mark.parametrize("form", ["float", "base64", None])
def test_openai_s_client_has_the_vectors_of_python(openai_client, tiny_alone, form):
    given = {} if form is None else {"encoding_format": form}
    answer = openai_client.embeddings.create(model=tiny_alone.name, input=EMBEDDED, **given)
    expected = tiny_alone.embed(EMBEDDED)
    found = [one.embedding for one in answer.data]
    if form == "base64":
        found = [np.frombuffer(base64.b64decode(one), "<f4") for one in found]
    assert np.array_equal(np.array(found, np.float32), expected.vectors)
    assert [one.index for one in answer.data] == [0, 1, 2, 3]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(expected.tokens)
    told = answer.model_extra
    assert (told["pooling"], told["pooling_from"], told["normalized"]) == ("last", "default", True)


def test_a_text_may_be_token_ids(openai_client, tiny_alone):
    ids = [tiny_alone.tokenize(text) for text in EMBEDDED[:2]]
    model = tiny_alone.name
    for sent in (EMBEDDED[0], EMBEDDED[:2], ids[0], ids, [EMBEDDED[0], ids[1]]):
        answer = openai_client.embeddings.create(model=model, input=sent, encoding_format="float")
        found = np.array([one.embedding for one in answer.data], np.float32)
        assert np.array_equal(found, tiny_alone.embed(EMBEDDED[:2]).vectors[: len(found)])


def test_dimensions_pooling_and_length_as_asked(asked_for_vectors, tiny_alone):
    how = {"pooling": "mean", "dimensions": 5, "normalize": False}
    answer = asked_for_vectors(input=EMBEDDED, **how).json()
    expected = tiny_alone.embed(EMBEDDED, **how)
    found = np.array([one["embedding"] for one in answer["data"]], np.float32)
    assert np.array_equal(found, expected.vectors)
    assert {name: answer[name] for name in expected.how()} == expected.how()
    unit = np.array(asked_for_vectors(input="ab", dimensions=5).json()["data"][0]["embedding"])
    assert abs(np.linalg.norm(unit) - 1) < 1e-6


@pytest.mark.parametrize(
    ("body", "sentence", "param"),
    [
        ({}, "input", "input"),
        ({"input": []}, "input must be a string, a list of token ids", "input"),
        ({"input": {"a": 1}}, "input must be a string, a list of token ids", "input"),
        ({"input": ["a", []]}, "input[1] has no tokens", "input[1]"),
        ({"input": "a" * 9000}, "maximum context length is 512", None),
        ({"input": [[1] * 513]}, "has 513 tokens, and the model reads 512: shorten", "input[0]"),
        ({"input": ["a"] * 2049}, "at most 2048", "input"),
        ({"input": "a", "dimensions": 33}, "dimensions must be between 1 and 32", "dimensions"),
        ({"input": "a", "pooling": "cls"}, "sees nothing else; take mean or last", "pooling"),
        ({"input": "a", "pooling": "max"}, "pooling", "pooling"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "encoding_format"),
        ({"input": [300]}, "input[0]: token id 300", "input[0]"),
        ({"input": "a", "model": "another"}, "another", "model"),
    ],
)
def test_what_cannot_be_embedded_is_refused_in_a_sentence(asked_for_vectors, body, sentence, param):
    answer = asked_for_vectors(**body)
    assert answer.status_code == (404 if "model" in body else 400)
    error = answer.json()["error"]
    assert sentence in error["message"]
    if param:
        assert error["param"] == param
    too_long = "512" in error["message"]
    assert (error["code"] == "context_length_exceeded") == too_long


def test_openai_s_client_raises_what_is_refused(openai_client):
    with pytest.raises(BadRequestError, match="dimensions"):
        openai_client.embeddings.create(model="tiny", input="a", dimensions=0)


def test_a_longer_text_is_cut_where_that_is_asked(asked_for_vectors, tiny_alone):
    answer = asked_for_vectors(input="a" * 600, truncate=True).json()
    assert (answer["truncated"], answer["usage"]["prompt_tokens"]) == ([0], 512)
    ids = tiny_alone.tokenize("a" * 600)[:512]
    found = np.array(answer["data"][0]["embedding"], np.float32)
    assert np.array_equal(found, tiny_alone.embed(ids).vectors[0])


async def test_many_at_once_beside_a_text_change_none(tiny, tiny_alone):
    many = [f"ab {'ba ' * (i % 30)}" for i in range(300)]
    body = {"prompt": "ab ba", "max_tokens": 40, "seed": 3, "ignore_eos": True}
    url = f"{tiny.url}/v1"
    async with (
        httpx.AsyncClient(base_url=url, timeout=60) as plain,
        AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client,
    ):
        ask = client.embeddings.create
        text, *answers = await asyncio.gather(
            plain.post("/completions", json=body),
            *(ask(model=tiny_alone.name, input=part) for part in (many, EMBEDDED, "a")),
        )
    alone = tiny_alone.generate("ab ba", max_tokens=40, seed=3, ignore_eos=True)
    assert text.json()["choices"][0]["text"] == alone.text
    for answer, texts in zip(answers, (many, EMBEDDED, "a"), strict=True):
        found = np.array([one.embedding for one in answer.data], np.float32)
        assert np.array_equal(found, tiny_alone.embed(texts).vectors)


def test_a_client_that_leaves_ends_its_texts(tiny, monkeypatch):
    body = {"input": ["ab" * 200] * 2000, "pooling": "mean"}  # nothing of it is in a cache
    assert leave_amid(tiny, "/v1/embeddings", body, monkeypatch).steps < 100
    tiny.wait_until_free()


def test_texts_are_counted(tiny, asked_for_vectors):
    asked_for_vectors(input=EMBEDDED)
    metrics = httpx.get(f"{tiny.url}/metrics").text
    assert 'reason="scored"' in metrics.replace("finish_reason", "reason")


async def test_an_async_llm_has_them_too(tiny_path, tiny_alone):
    async with AsyncLLM(LLM(tiny_path, threads=1, progress=False)) as llm:
        several, one = await asyncio.gather(llm.embed(EMBEDDED), llm.embed("a", "mean"))
    assert np.array_equal(several.vectors, tiny_alone.embed(EMBEDDED).vectors)
    assert np.array_equal(one.vectors, tiny_alone.embed("a", "mean").vectors)
