"""/v1/multi-vector, and /v1/rerank by models that have one way of their own to rank."""

import re

import httpx
import numpy as np
import pytest
from jsonschema import Draft202012Validator

from cutaway import LLM
from support.random_llama import write_tiny_late, write_tiny_ranker
from support.served import serve

QUERY, DOCUMENTS = "ab", ["ab ba", "b", "bb ab"]


@pytest.fixture(scope="module", params=["late", "head"])
def asked(request, tmp_path_factory):
    """Which it is, a client of its server, and the model by itself."""
    path = tmp_path_factory.mktemp("rankers") / "one.gguf"
    (write_tiny_late if request.param == "late" else write_tiny_ranker)(path)
    with (
        LLM(path, threads=1) as alone,
        serve(LLM(path, threads=1)) as served,
        httpx.Client(base_url=served.url, timeout=60) as client,
    ):
        yield request.param, client, alone


def test_the_order_is_python_s(asked):
    kind, client, alone = asked
    answer = client.post("/v1/rerank", json={"query": QUERY, "documents": DOCUMENTS}).json()
    expected = alone.rerank(QUERY, DOCUMENTS)
    assert answer["cutaway"] == {"method": "maxsim" if kind == "late" else "head"}
    assert answer["usage"]["total_tokens"] == expected.tokens
    found = [(one["index"], one["relevance_score"]) for one in answer["results"]]
    assert found == [(one.index, one.relevance) for one in expected.results]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"method": "cosine"}, "method: cosine is not what this model has"),
        ({"instruction": "x"}, "instruction: .* is asked nothing"),
        ({"trace": True}, "trace: .* is of no tokens"),
        ({"documents": ["ab " * 90]}, r"documents\[0\] (and the query have|has) \d+ tokens"),
    ],
)
def test_what_such_a_model_is_not_asked(asked, more, sentence):
    _, client, _ = asked
    answer = client.post("/v1/rerank", json={"query": QUERY, "documents": ["b"], **more})
    assert answer.status_code == 400
    assert re.search(sentence, answer.json()["error"]["message"])


@pytest.mark.parametrize("kind", ["query", "document"])
def test_matrices_are_python_s(asked, kind):
    which, client, alone = asked
    answer = client.post("/v1/multi-vector", json={"input": DOCUMENTS, "input_type": kind})
    if which == "head":
        assert answer.status_code == 400
        assert "was not made for late interaction" in answer.json()["error"]["message"]
        return
    expected, found = alone.embed_tokens(DOCUMENTS, kind), answer.json()
    document = client.get("/openapi.json").json()
    told = {"$ref": "#/components/schemas/MultiVectorList", "components": document["components"]}
    Draft202012Validator(told).validate(found)
    for one, vectors, ids in zip(found["data"], expected.vectors, expected.token_ids, strict=True):
        assert np.array_equal(np.array(one["embeddings"], np.float32), vectors)
        assert one["token_ids"] == [*ids]
    assert found["usage"]["prompt_tokens"] == sum(expected.tokens)
    small = client.post("/v1/multi-vector", json={"input": "ab", "dimensions": 2}).json()
    assert np.array(small["data"][0]["embeddings"]).shape[1] == 2


def test_a_text_that_is_too_long_is_named_or_cut(asked):
    which, client, _ = asked
    if which == "head":
        pytest.skip("of late interaction")
    long = {"input": ["b", "b" * 40]}
    answer = client.post("/v1/multi-vector", json=long)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("input[1] has 4")
    assert client.post("/v1/multi-vector", json=long | {"truncate": True}).json()["truncated"] == [
        1
    ]
