"""Functions that have the model to themselves: who waits is counted, and leaves by hanging up."""

import asyncio
from threading import Event

import httpx
import pytest

from cutaway import LLM
from cutaway.server.routes import fill
from support.served import serve


@pytest.fixture
def served(tiny_path):
    with serve(LLM(tiny_path, threads=1, progress=False), piped=False) as served:
        yield served


@pytest.fixture
def held(served, monkeypatch):
    """Whether the first is at its work, which ends with ``over``; and the texts of all that ran."""
    began, over, ran = Event(), Event(), []

    def answer(_, body):
        ran.append(body.text)
        began.set()
        assert over.wait(20)
        return b"{}"

    monkeypatch.setattr(fill, "_answer", answer)
    yield began, over, ran
    over.set()


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def waiting(served):
    return sum(map(len, served.service.llm._calling._waiting.values()))


async def test_too_many_of_a_client_are_refused(served, held):
    served.service.llm._calling._most_of_client = 1
    began, over, ran = held
    async with httpx.AsyncClient(base_url=served.url, timeout=30) as client:

        def ask(text):
            return asyncio.create_task(client.post("/v1/fill", json={"text": text}))

        first = ask("first[MASK]")
        await asyncio.to_thread(began.wait, 20)
        second = ask("second[MASK]")
        await until(lambda: waiting(served) == 1)
        refused = await ask("third[MASK]")
        assert refused.status_code == 429 and "retry-after" in refused.headers
        assert "too many calls wait for the model: try again later" in refused.text
        over.set()
        assert [(await one).status_code for one in (first, second)] == [200, 200]
        assert ran == ["first[MASK]", "second[MASK]"]


async def test_who_hangs_up_leaves_the_queue(served, held):
    began, over, ran = held
    async with httpx.AsyncClient(base_url=served.url, timeout=30) as client:
        asked = []
        for number, text in enumerate(["first[MASK]", "second[MASK]", "third[MASK]"]):
            asked.append(asyncio.create_task(client.post("/v1/fill", json={"text": text})))
            await asyncio.to_thread(began.wait, 20)
            await until(lambda number=number: waiting(served) == number)
        asked[1].cancel()
        await until(lambda: waiting(served) == 1)
        over.set()
        assert [(await asked[i]).status_code for i in (0, 2)] == [200, 200]
        assert ran == ["first[MASK]", "third[MASK]"]
