"""Requests whose replicas are lost at the worst moment, and what their clients are sent."""

import asyncio
import threading
import time
from math import inf

import httpx
import pytest

from cutaway import AsyncLLM
from cutaway.errors import CutawayError, InputError, ReplicaLostError
from cutaway.server.app import create_app
from cutaway.server.http.settings import ServerSettings
from support.replicas import cluster
from support.resumed import LONG, PROMPT, write
from support.waiting import until

# -- run_blocking ----------------------------------------------------------------------------------

BEGUN, GO_ON = threading.Event(), threading.Event()


def slow_once(llm, text):
    """What a replica is doing when it dies, the first time; quick after that."""
    if not BEGUN.is_set():
        BEGUN.set()
        GO_ON.wait(60)
    return llm.tokenize(text)


async def test_another_replica_runs_a_function_where_one_dies(models):
    async with cluster(models, 2) as (front, replicas):
        asked = asyncio.ensure_future(front.run_blocking(slow_once, "abc"))
        await asyncio.to_thread(BEGUN.wait)
        await replicas.each[0].kill()
        assert await asked == front.tokenize("abc")
        GO_ON.set()


async def test_a_function_fails_where_no_replica_is_left(models):
    async with cluster(models, 1) as (front, replicas):
        await replicas.each[0].kill()
        with pytest.raises(ReplicaLostError, match="no replica is left; 3 others were lost"):
            await front.run_blocking(slow_once, "abc")
        front.close()
        with pytest.raises(CutawayError, match="takes no more requests"):
            await front.run_blocking(slow_once, "abc")


# -- what a client is sent -------------------------------------------------------------------------


@pytest.mark.parametrize(("lives", "stream"), [(0, False), (5, False), (5, True)])
async def test_where_all_replicas_are_lost_the_client_is_asked_to_retry(
    models, lives, stream, monkeypatch
):
    monkeypatch.setattr("cutaway.features.cluster.front._PATIENCE_S", 0.2)
    async with cluster(models, 0, kills=[lives]) as (front, _):
        app = create_app(front, ServerSettings(names=["tiny"]))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            body = {"prompt": PROMPT, "stream": stream, **LONG, "temperature": 0}
            answer = await http.post("/v1/completions", json=body, timeout=inf)
        told = answer.text.splitlines()[-2][6:] if stream else answer.text
        error = httpx.Response(200, text=told).json()["error"]
        assert (error["type"], error["code"]) == ("server_error", "replica_lost")
        assert "3 others were lost, too: ask again" in error["message"]
        if not stream:
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


async def test_what_cannot_be_sent_is_refused_before_any_replica_is_asked(models):
    def own(logits, ids):
        return logits

    async with cluster(models, 1) as (front, replicas):
        with pytest.raises(InputError, match="processors: own cannot be sent"):
            await front.generate(PROMPT, processors=[own])
        assert not replicas.jobs


# -- moments ---------------------------------------------------------------------------------------


class SlowQueue:
    """A replica that queues nothing until ``go_on`` is set."""

    def __init__(self, killable, monkeypatch) -> None:
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()
        self._llm = killable.replica.llm
        monkeypatch.setattr(self._llm, "queue", self._queue)

    async def _queue(self, asked):
        self.asked.set()
        await self.go_on.wait()
        return await AsyncLLM.queue(self._llm, asked)


@pytest.mark.parametrize("closes", [False, True])
async def test_a_replica_leaves_while_it_queues_a_job(models, expected, monkeypatch, closes):
    async with cluster(models, 2, silent_s=inf) as (front, replicas):
        first, slow = replicas.each[0].replica, SlowQueue(replicas.each[0], monkeypatch)
        writing = asyncio.ensure_future(write(front, LONG))
        await slow.asked.wait()
        await first.leave(within=0)
        if closes:
            await first.close()
        slow.go_on.set()
        assert await writing == expected
        assert [job.replica for job in replicas.jobs] == [one.name for one in replicas.each]


async def test_a_connection_is_lost_while_a_job_is_queued(models, expected, monkeypatch):
    """Nobody could be told of it, or end it."""
    async with cluster(models, 2, silent_s=inf) as (front, replicas):
        slow = SlowQueue(replicas.each[0], monkeypatch)
        writing = asyncio.ensure_future(write(front, LONG))
        await slow.asked.wait()
        await until(lambda: front.exchange.remotes)
        front.exchange.remotes[0].connection.cut()
        await until(lambda: not replicas.each[0].replica._fronts)
        slow.go_on.set()
        assert await writing == expected
        assert len(replicas.jobs) == 2


def often(monkeypatch) -> float:
    """A pulse, and a look for silence, every so many seconds."""
    monkeypatch.setattr("cutaway.features.cluster.replica.PULSE_S", 0.02)
    monkeypatch.setattr("cutaway.features.cluster.exchange._EVERY_S", 0.02)
    return 0.02


async def test_a_replica_that_queues_for_long_is_not_lost(models, expected, monkeypatch):
    """As one does that compiles a large grammar, and lives."""
    every = often(monkeypatch)
    async with cluster(models, 2, silent_s=8 * every) as (front, replicas):
        slow = SlowQueue(replicas.each[0], monkeypatch)
        writing = asyncio.ensure_future(write(front, LONG))
        await slow.asked.wait()
        await asyncio.sleep(25 * every)
        slow.go_on.set()
        assert await writing == expected
        assert len(replicas.jobs) == 1


async def test_a_front_that_was_stopped_itself_takes_no_replica_for_silent(models, monkeypatch):
    every = often(monkeypatch)
    how = {"kills": [5], "ends": "stalls", "silent_s": 8 * every}
    async with cluster(models, 1, **how) as (front, replicas):
        texts = await front.submit([PROMPT], front.parse(LONG))
        await replicas.each[0].replica.ended.wait()
        await asyncio.sleep(2 * every)
        time.sleep(20 * every)
        await asyncio.sleep(3 * every)
        texts.close()
        assert len(replicas.jobs) == 1


async def test_preemptions_of_a_lost_replica_are_still_counted(models, monkeypatch):
    monkeypatch.setattr("cutaway.features.cluster.replica.PULSE_S", 0.01)
    async with cluster(models, 2) as (front, replicas):
        first, second = replicas.each
        first.replica.llm.engine.engine.scheduler.preemptions = 7
        second.replica.llm.engine.engine.scheduler.preemptions = 2
        await front.generate(PROMPT, max_tokens=1)
        await until(lambda: front.state().preemptions >= 7)
        await first.kill()
        await front.generate(PROMPT, max_tokens=1)
        await until(lambda: [*front.replicas] == [second.name])
        assert front.state().preemptions == 9


# -- what is asked again ---------------------------------------------------------------------------


async def test_samples_share_their_prompt(models):
    """Or 128 of 100,000 tokens would be 100 MB, and seconds of the event loop's."""
    async with cluster(models, 1, kills=[5]) as (front, replicas):
        texts = await front.submit([PROMPT], front.parse({**LONG, "n": 3}))
        await texts.finish()
        prompts = {id(request.prompt_token_ids) for request, _ in replicas.jobs[-1].requests}
        assert (len(replicas.jobs[-1].requests), len(prompts)) == (3, 1)
        assert len({request.sampling.seed for request, _ in replicas.jobs[-1].requests}) == 3


# -- readers that are dropped ----------------------------------------------------------------------


async def test_garbage_may_be_collected_by_any_thread(models):
    asyncio.get_running_loop().set_debug(True)  # calls from other threads raise
    async with cluster(models, 1) as (front, replicas):
        held = [await front.submit([PROMPT], front.parse(LONG))]
        await asyncio.to_thread(held.clear)
        await until(lambda: not (front.exchange.owners or replicas.each[0].replica.jobs))
