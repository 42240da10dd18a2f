"""Fill over HTTP: Python's answers, refusals, and clients that wait in turn for the model."""

import asyncio
from threading import Event

import httpx
import pytest

from cutaway import LLM
from cutaway.server.routes import fill
from support.served import serve


@pytest.fixture
def asked(client):
    return lambda **body: client.post("/v1/fill", json=body)


@pytest.mark.elsewhere
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
    with serve(toy) as filling:
        answer = httpx.post(
            f"{filling.url}/v1/fill", json={"text": "ackno[MASK]ledged"}, timeout=60
        )
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
    with serve(LLM(tmp_path, threads=1, progress=False)) as filling:
        filled = httpx.post(f"{filling.url}/v1/fill", json={"text": "the [MASK] fox"}, timeout=60)
        assert filled.json() == alone.to_dict()
        refused = httpx.post(f"{filling.url}/v1/completions", json={"prompt": "the"}, timeout=60)
        assert refused.status_code == 400
        assert (
            "is a masked model and cannot continue a text; use"
            in refused.json()["error"]["message"]
        )


# -- who waits for the model is counted, and leaves by hanging up ------------------------------


@pytest.fixture
def filling(tiny_path):
    with serve(LLM(tiny_path, threads=1, progress=False), piped=False) as filling:
        yield filling


@pytest.fixture
def held(filling, monkeypatch):
    """Whether the first is at its work, which ends with ``over``; and the texts of all that ran."""
    began, over, ran = Event(), Event(), []

    def answer(_, body):
        ran.append(body.text)
        began.set()
        assert over.wait(300)
        return b"{}"

    monkeypatch.setattr(fill, "_answer", answer)
    yield began, over, ran
    over.set()


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def waiting(filling):
    return sum(map(len, filling.service.llm._calling._waiting.values()))


async def test_too_many_of_a_client_are_refused(filling, held):
    filling.service.llm._calling._limit_of_client = 1
    began, over, ran = held
    async with httpx.AsyncClient(base_url=filling.url, timeout=30) as client:

        def ask(text):
            return asyncio.create_task(client.post("/v1/fill", json={"text": text}))

        first = ask("first[MASK]")
        await asyncio.to_thread(began.wait, 20)
        second = ask("second[MASK]")
        await until(lambda: waiting(filling) == 1)
        refused = await ask("third[MASK]")
        assert refused.status_code == 429 and "retry-after" in refused.headers
        assert "too many calls wait for the model: try again later" in refused.text
        over.set()
        assert [(await one).status_code for one in (first, second)] == [200, 200]
        assert ran == ["first[MASK]", "second[MASK]"]


async def test_who_hangs_up_leaves_the_queue(filling, held):
    began, over, ran = held
    async with httpx.AsyncClient(base_url=filling.url, timeout=30) as client:
        asked = []
        for number, text in enumerate(["first[MASK]", "second[MASK]", "third[MASK]"]):
            asked.append(asyncio.create_task(client.post("/v1/fill", json={"text": text})))
            await asyncio.to_thread(began.wait, 20)
            await until(lambda number=number: waiting(filling) == number)
        asked[1].cancel()
        await until(lambda: waiting(filling) == 1)
        over.set()
        assert [(await asked[i]).status_code for i in (0, 2)] == [200, 200]
        assert ran == ["first[MASK]", "third[MASK]"]


def test_a_target_or_a_rival_that_cannot_be_a_token_is_not_read(client, monkeypatch):
    """4 MB of digits took the tokenizer over a second."""
    long = "7" * 1_000_000
    for path, field, body in (
        ("/v1/fill", "tokens", {"text": "a [MASK] c", "targets": [long]}),
        ("/v1/inside", "rival", {"prompt": "ab", "generated": [97], "step": 0, "rival": long}),
    ):
        answer = client.post(path, json=body)
        assert answer.status_code == 400, answer.text
        message = answer.json()["error"]["message"]
        assert field in message
        assert len(message) < 300
