"""Texts whose replica shuts down, is silent, hangs or is full; and readers that leave."""

import asyncio
import threading

import pytest

from cutaway import AsyncLLM
from cutaway.errors import CutawayError, QueueFullError, ReplicaLostError
from support.paced import Paced
from support.replicas import cluster
from support.resumed import LONG, PROMPT, told
from support.waiting import until


async def test_a_text_that_has_begun_waits_for_replicas_that_are_starting(models, expected):
    """All have died at once, and the next one takes seconds to start."""
    async with cluster(models, 1, kills=[5]) as (front, replicas):
        last = replicas.each.pop()
        texts = await front.submit([PROMPT], front.parse(LONG))
        await replicas.each[0].dead.wait()
        asyncio.get_running_loop().call_later(0.6, replicas.each.append, last)
        await texts.finish()
        assert [told(text) for text in texts.each] == expected
        assert texts.route.resumed == 1


async def test_a_text_fails_where_no_replica_is_left(models, monkeypatch):
    monkeypatch.setattr("cutaway.features.cluster.front._PATIENCE_S", 0.2)
    async with cluster(models, 0, kills=[5]) as (front, _):
        with pytest.raises(CutawayError, match="no replica is left; 3 others were lost"):
            await front.generate(PROMPT, **LONG)


async def test_a_replica_that_shuts_down_hands_its_texts_over(models, expected):
    async with cluster(models, 1, kills=[5], ends="stalls") as (front, replicas):
        texts = await front.submit([PROMPT], front.parse(LONG))
        leaving = replicas.each[0].replica
        await leaving.ended.wait()
        await leaving.leave(within=10)
        assert leaving.jobs == 0
        with pytest.raises(ReplicaLostError, match="is leaving"):
            await leaving.write(replicas.jobs[0])
        await texts.finish()
        assert [told(text) for text in texts.each] == expected
        assert len(replicas.jobs) == 2


async def test_a_silent_replica_is_lost(models, expected):
    """One that is stopped, or behind a network that was cut: its connection stays open."""
    how = {"kills": [5], "ends": "is silent", "silent_s": 0.5}
    async with cluster(models, 1, tells_deaths=False, **how) as (front, replicas):
        texts = await front.submit([PROMPT], front.parse(LONG))
        await texts.finish()
        assert [told(text) for text in texts.each] == expected
        assert len(replicas.jobs) == 2


async def test_a_full_queue_is_an_error_at_first_and_waited_for_later(
    models, expected, monkeypatch
):
    async with cluster(models, 1, kills=[5]) as (front, replicas):
        second, full = replicas.each[1], [0]

        async def queue(asked):
            if full[0]:
                full[0] -= 1
                raise QueueFullError("the queue is full")
            return await AsyncLLM.queue(second.replica.llm, asked)

        monkeypatch.setattr(second.replica.llm, "queue", queue)
        texts, full[0] = await front.submit([PROMPT], front.parse(LONG)), 3
        await texts.finish()
        assert full == [0]
        assert texts.route[1:] == (1, 5)  # what was only tried was not written
        assert [told(text) for text in texts.each] == expected
        full[0] = 1
        with pytest.raises(QueueFullError):
            await front.generate(PROMPT, **LONG)
        await front.generate(PROMPT, **LONG)


@pytest.mark.parametrize("forgets", [False, True])
async def test_whoever_leaves_or_forgets_ends_what_runs(models, forgets, monkeypatch):
    async with cluster(models, 1) as (front, replicas):
        replica = replicas.each[0].replica
        paced = Paced(replica.llm.engine.engine, 6, monkeypatch)
        texts = await front.submit([PROMPT], front.parse({**LONG, "n": 3}))
        await texts.read()
        assert replica.jobs == 1
        if not forgets:
            texts.close()
        del texts
        await until(lambda: not (replica.jobs or front.exchange.owners))
        paced.allowed.release(1000)
        await until(lambda: paced.engine.is_idle)
        assert paced.steps < LONG["max_tokens"]


async def test_what_a_front_asked_for_ends_with_it(models):
    async with cluster(models, 0, kills=[5], ends="is silent") as (front, replicas):
        [replica] = replicas.each
        texts = await front.submit([PROMPT], front.parse(LONG))
        await texts.read()
        front.close()
        with pytest.raises(CutawayError, match="closed before this text"):
            while await texts.read():
                pass
        with pytest.raises(CutawayError, match="takes no more requests"):
            await front.generate(PROMPT)
        await until(lambda: not replica.replica.jobs)


async def test_an_engine_that_does_not_answer_is_lost(models, expected, monkeypatch):
    monkeypatch.setattr("cutaway.features.cluster.replica.PULSE_S", 0.05)
    async with cluster(models, 1, kills=[5], ends="stalls", hung_s=0.3) as (front, replicas):
        texts = await front.submit([PROMPT], front.parse(LONG))
        hung, go_on = replicas.each[0].replica.llm.engine, threading.Event()
        hung.ask(go_on.wait)
        await texts.finish()
        go_on.set()
        assert [told(text) for text in texts.each] == expected
        assert len(replicas.jobs) == 2


async def test_a_function_is_called_where_the_weights_are(models):
    async with cluster(models, 1) as (front, _):
        assert await front.run_blocking(tokens_of, "abc") == front.tokenize("abc")
        with pytest.raises(TypeError):
            await front.run_blocking(tokens_of)


def tokens_of(llm, text):
    return llm.tokenize(text)
