"""POST /v1/fill: what ``LLM.fill`` finds, over HTTP, beside those who write."""

import asyncio

import httpx
import pytest

from cutaway import LLM
from support.served import serve


@pytest.fixture
def asked(client):
    return lambda **body: client.post("/v1/fill", json=body)


@pytest.mark.parametrize(
    "ask",
    [
        {"text": "ab ba [MASK] ab"},
        {"text": "ab[MASK]", "top": 2, "candidates": 9},
        {"text": "ab [MASK] ba [MASK]", "top": 2, "candidates": 9},
        {"text": "ab [MASK] ba", "targets": ["a", "xyz"]},
    ],
)
def test_the_answer_is_that_of_python(asked, tiny_alone, ask):
    options = {k: v for k, v in ask.items() if k != "text"}
    answer = asked(**ask)
    assert answer.status_code == 200, answer.text
    assert answer.json() == tiny_alone.fill(ask["text"], **options).to_dict()


def test_the_mark_need_not_be_of_the_model_s_characters():
    """The toy has no token for a bracket."""
    toy = LLM("toy-canvas", progress=False)
    with serve(toy) as served:
        answer = httpx.post(f"{served.url}/v1/fill", json={"text": "ackno[MASK]ledged"}, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["masks"][0][0]["text"] == "w"


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        ({"text": "ab"}, "the text has no mask"),
        ({"text": "a[MASK]", "top": 0}, "top"),
        ({"text": "a[MASK]", "targets": []}, "targets must be a list of texts"),
        ({"text": "a[MASK]", "targets": ["a"] * 257}, "targets"),
        ({"text": "a[MASK]", "model": "another"}, "another"),
        ({"text": "a" * 200 + "[MASK]", "candidates": 1000}, "ask for fewer candidates"),
        ({"text": "a" * 9000 + "[MASK]"}, "maximum context length is 512"),
        ({}, "text"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(asked, ask, sentence):
    answer = asked(**ask)
    assert answer.status_code == (404 if "model" in ask else 400)
    assert sentence in answer.json()["error"]["message"]


async def test_it_goes_on_beside_a_text_and_changes_none(tiny, tiny_alone):
    body = {"prompt": "ab ba", "max_tokens": 40, "seed": 3, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=tiny.url, timeout=60) as client:
        text, filled = await asyncio.gather(
            client.post("/v1/completions", json=body),
            client.post("/v1/fill", json={"text": "ab ba [MASK] ab"}),
        )
    alone = tiny_alone.generate("ab ba", max_tokens=40, seed=3, ignore_eos=True)
    assert text.json()["choices"][0]["text"] == alone.text
    assert filled.json() == tiny_alone.fill("ab ba [MASK] ab").to_dict()


def test_an_encoder_is_served_for_this_alone(tmp_path):
    pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
    pytest.importorskip(
        "transformers", reason="needs transformers: pip install '.[test-transformers]'"
    )
    from cutaway import LLM
    from support.random_models import edit, save
    from support.tiny_tokenizers import wordpiece

    save("bert", tmp_path, tokenizer=wordpiece)
    edit(tmp_path / "tokenizer_config.json", mask_token="[MASK]")
    alone = LLM(tmp_path, progress=False).fill("the [MASK] fox")
    with serve(LLM(tmp_path, threads=1, progress=False)) as served:
        filled = httpx.post(f"{served.url}/v1/fill", json={"text": "the [MASK] fox"}, timeout=60)
        assert filled.json() == alone.to_dict()
        refused = httpx.post(f"{served.url}/v1/completions", json={"prompt": "the"}, timeout=60)
        assert refused.status_code == 400
        assert (
            "is a masked model and cannot continue a text; use"
            in refused.json()["error"]["message"]
        )
