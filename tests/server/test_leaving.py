"""Clients that hang up, a queue that is full, silence, and a server that ends.

The engine's steps are let through one at a time, so that it is known where a text is.
"""

import asyncio
import json
from contextlib import asynccontextmanager

import httpx
import openai
import pytest
from openai import OpenAI

from cutaway import LLM
from cutaway.server.http.settings import ServerSettings
from support.async_mock import Lockstep
from support.served import serve

LONG = {"max_tokens": 400, "temperature": 0, "ignore_eos": True}
PROMPT = {"/v1/completions": {"prompt": "ab"},
          "/v1/chat/completions": {"messages": [{"role": "user", "content": "ab"}]}}  # fmt: skip


@pytest.fixture
def held(tiny_path):
    """A server whose steps are held back; one text runs at a time, and two may wait."""
    llm = LLM(tiny_path, threads=1, progress=False, max_num_seqs=1, max_waiting=2)
    with serve(llm, ServerSettings(keep_alive=0.05)) as served:
        served.lockstep = Lockstep(served.service.llm.engine)
        yield served
        served.lockstep.open()


class Client:
    """A connection of its own: it can ask, read events, and hang up."""

    def __init__(self, served, path="/v1/completions", **fields):
        self._served, self._path = served, path
        self._body = json.dumps({**PROMPT[path], **LONG, **fields}).encode()

    async def __aenter__(self):
        port = int(self._served.url.rsplit(":", 1)[1])
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        head = f"POST {self._path} HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(self._body)}\r\n\r\n"
        self.writer.write(head.encode() + self._body)
        await self.writer.drain()
        return self

    async def __aexit__(self, *_):
        self.writer.close()
        await self.writer.wait_closed()

    async def until(self, found: bytes) -> bytes:
        """Read until this comes."""
        return await asyncio.wait_for(self.reader.readuntil(found), 300)


async def until(served, condition, step=None):
    """Ask the server for its health until a condition holds, which its own loop brings about."""
    async with httpx.AsyncClient(base_url=served.url) as client, asyncio.timeout(300):
        while not condition():
            assert (await client.get("/health")).status_code == 200
            if step:
                await step()


def cancelled(served):
    """Texts that were cancelled, by how far they had come."""
    name, told = "cutaway_requests_cancelled_total", {}
    for family in served.service.metrics.registry.collect():
        for sample in family.samples:
            if sample.name == name:
                told[sample.labels["phase"]] = int(sample.value)
    return told


def none_but(**phases):
    return {"queue": 0, "prefill": 0, "decode": 0, **phases}


def jobs(served, count):
    return lambda: len(served.service.jobs) == count


@asynccontextmanager
async def running(served, *path):
    """A client whose text runs before another can ask: who comes next waits."""
    async with Client(served, *path) as client:
        await until(served, lambda: served.engine.running and served.service.jobs)
        yield client


# -- hanging up ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PROMPT)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
async def test_who_hangs_up_frees_all_with_the_next_step(held, path, stream, n, phase):
    lockstep = held.lockstep
    async with Client(held, path, stream=stream, n=n):
        await until(held, lambda: held.service.jobs and held.engine.running)  # not in the queue
        job = next(iter(held.service.jobs))
        if phase == "decode":
            await until(held, lambda: job.texts[0].steps, step=lockstep.step)
        assert not held.free()
    await until(held, jobs(held, 0))
    others = {"queue": n - 1} if n > 1 else {}  # one runs at a time
    assert cancelled(held) == none_but(**{phase: 1}, **others)
    await lockstep.step()
    assert held.free()


async def test_who_hangs_up_is_counted_before_the_job_is_gone(held, monkeypatch):
    metrics, counts = held.service.metrics, []
    count = metrics.count_sequence

    def noted(stats):
        counts.append(len(held.service.jobs))
        count(stats)

    monkeypatch.setattr(metrics, "count_sequence", noted)
    async with running(held):
        pass
    await until(held, jobs(held, 0))
    assert counts == [1]


async def test_draft_tokens_of_who_hangs_up_are_counted(tiny_path, free_drafts):
    llm = LLM(tiny_path, threads=1, progress=False)
    with serve(llm, speculate=f"draft:{tiny_path}") as served:
        lockstep = Lockstep(served.service.llm.engine)
        async with Client(served, stream=True):
            await until(served, jobs(served, 1))
            text = next(iter(served.service.jobs)).texts[0]
            await until(served, lambda: any(s.source == "draft" for s in text.steps), lockstep.step)
        await until(served, jobs(served, 0))
        lockstep.open()
        accepted = sum(step.source == "draft" for step in text.steps)
        count = served.service.metrics.registry.get_sample_value
        assert count("cutaway_speculation_accepted_tokens_total") == accepted


@pytest.mark.parametrize("stream", [False, True])
async def test_who_hangs_up_in_the_queue_was_never_there(held, stream):
    lockstep = held.lockstep
    async with running(held) as first:
        async with Client(held, stream=stream):
            await until(held, jobs(held, 2), step=lockstep.step)
            assert len(held.engine.waiting) == 1
        await until(held, jobs(held, 1))
        assert cancelled(held) == none_but(queue=1)
        await lockstep.step()
        assert len(held.engine.running) == 1 and not held.engine.waiting
        lockstep.open()
        await first.until(b'"finish_reason":"length"')
    await until(held, jobs(held, 0))
    assert cancelled(held) == none_but(queue=1)


async def test_who_hangs_up_before_being_queued_is_not(held):
    """While the engine's thread is busy and has not heard of the request."""
    lockstep = held.lockstep
    async with running(held) as first:
        async with Client(held):
            await until(held, held.service.llm.engine._commands.qsize)
        name, labels = "cutaway_http_requests_total", ("/v1/completions", "POST", "499")
        labels = dict(zip(("path", "method", "status"), labels, strict=True))
        count = held.service.metrics.registry.get_sample_value
        await until(held, lambda: count(name, labels))
        await lockstep.step(2)
        assert len(held.engine.running) == 1 and not held.engine.waiting
        lockstep.open()
        await first.until(b'"finish_reason":"length"')
    assert cancelled(held) == none_but(), "it never was a text"


async def test_closing_a_stream_of_openais_client_ends_the_text(held):
    held.lockstep.open()
    with OpenAI(base_url=f"{held.url}/v1", api_key="any") as client:
        asked = {"model": "tiny", "prompt": "ab", "max_tokens": 400, "extra_body": LONG}
        with client.completions.create(**asked, stream=True) as stream:
            next(iter(stream))
        await until(held, jobs(held, 0))
        await until(held, held.free)


# -- the queue -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_queue_is_told_with_when_to_come_again(held, stream):
    async with running(held), Client(held, n=2):
        await until(held, jobs(held, 2), step=held.lockstep.step)
        asking = asyncio.create_task(asyncio.to_thread(refused, held, stream=stream))
        commands = held.service.llm.engine._commands
        while not asking.done():  # a step for what is asked, or the texts end before it comes
            await (asyncio.sleep(0.001) if commands.empty() else held.lockstep.step())
        error = await asking
    assert int(error.response.headers["retry-after"]) >= 1
    assert (error.code, error.type) == ("queue_full", "rate_limit_error")
    await until(held, jobs(held, 0))
    await held.lockstep.step()
    assert held.free()


def refused(held, **fields):
    with OpenAI(base_url=f"{held.url}/v1", api_key="any", max_retries=0) as client:
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(model="tiny", prompt="ab", **fields)
        return caught.value


async def test_who_waits_hears_that_the_server_is_there(held):
    async with running(held), Client(held, stream=True) as waits:
        await until(held, jobs(held, 2), step=held.lockstep.step)
        for _ in range(2):
            await waits.until(b"\r\n: keep-alive\n\n\r\n")  # a chunk of its own
        held.lockstep.open()
        await waits.until(b"data: [DONE]\n\n")


@pytest.mark.parametrize("path", PROMPT)
async def test_a_stream_begins_with_its_first_token(held, path):
    async with Client(held, path, stream=True, return_token_ids=True) as client:
        said = await client.until(b": keep-alive\n\n") + await client.until(b": keep-alive\n\n")
        assert b"data:" not in said
        await held.lockstep.step()
        await client.until(b'"token_ids":[')
        held.lockstep.open()
        await client.until(b"data: [DONE]\n\n")


@pytest.mark.parametrize("path", PROMPT)
async def test_what_fails_before_a_stream_begins_has_a_status(tiny_path, path):
    llm = LLM(tiny_path, threads=1, progress=False, max_num_seqs=1)
    with serve(llm) as served:
        lockstep = Lockstep(served.service.llm.engine)
        async with running(served, path), Client(served, path, stream=True) as waits:
            await until(served, jobs(served, 2), step=lockstep.step)
            served.service.llm.close()
            lockstep.open()
            said = await waits.until(b"}}")
            assert said.startswith(b"HTTP/1.1 503 ") and b'"code": "shutting_down"' in said


# -- the end -------------------------------------------------------------------------------------


async def test_a_server_that_stops_takes_no_more_and_finishes_what_it_has(held):
    async with Client(held, stream=True) as client:
        await client.until(b"\n\n")
        held.service.stop()
        async with httpx.AsyncClient(base_url=held.url) as other:
            ready = await other.get("/ready")
            assert (ready.status_code, ready.json()["error"]["code"]) == (503, "stopping")
            assert (await other.get("/health")).status_code == 200
            for path, body in PROMPT.items():
                answer = await other.post(path, json=body)
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "stopping")
        held.lockstep.open()
        await client.until(b"data: [DONE]\n\n")


async def test_a_stream_whose_engine_is_closed_says_so(held):
    async with Client(held, stream=True) as client:
        await client.until(b"\n\n")
        held.service.llm.close()
        held.lockstep.open()
        await client.until(b'{"error":')
        told = await client.until(b"\n\n")
        assert b"closed before this text was finished" in told
        await client.until(b"0\r\n\r\n")


def test_openais_client_raises_what_a_stream_fails_with(held):
    with OpenAI(base_url=f"{held.url}/v1", api_key="any", max_retries=0) as client:
        stream = client.completions.create(model="tiny", prompt="ab", stream=True, extra_body=LONG)
        chunks = iter(stream)
        held.lockstep.open(1)
        next(chunks)
        held.service.llm.close()
        held.lockstep.open()
        with pytest.raises(openai.APIError, match="closed before this text was finished") as caught:
            list(chunks)
        assert caught.value.code == "text_failed"
