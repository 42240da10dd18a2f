"""Requests whose replicas are lost at the worst moment, and what their clients are sent."""

import asyncio
import pickle
import threading
import time
from itertools import pairwise
from math import inf

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway import AsyncLLM
from cutaway.errors import CutawayError, InputError, ReplicaLostError
from cutaway.features.cluster.wire import (
    Address,
    Connection,
    ConnectionLostError,
    Listener,
    connect,
)
from cutaway.server.app import create_app
from cutaway.server.http.settings import ServerSettings
from cutaway.text.grammar.schema_checks import SchemaCheck
from support.lost_device import lose
from support.replicas import cluster
from support.resumed import LONG, PROMPT, strip_times, write
from support.waiting import poll_until

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
        await replicas.members[0].kill()
        assert await asked == front.tokenize("abc")
        GO_ON.set()


async def test_a_function_fails_where_no_replica_is_left(models):
    async with cluster(models, 1) as (front, replicas):
        await replicas.members[0].kill()
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
    monkeypatch.setattr("cutaway.features.cluster.resume._PATIENCE_S", 0.2)
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
        first, slow = replicas.members[0].replica, SlowQueue(replicas.members[0], monkeypatch)
        writing = asyncio.ensure_future(write(front, LONG))
        await slow.asked.wait()
        await first.leave(within=0)
        if closes:
            await first.close()
        slow.go_on.set()
        assert await writing == expected
        assert [job.replica for job in replicas.jobs] == [one.name for one in replicas.members]


async def test_another_replica_continues_where_a_gpu_is_lost(models, expected, monkeypatch):
    async with cluster(models, 2) as (front, replicas):
        lose(replicas.members[0].replica.llm.backend, 5, monkeypatch)
        assert await write(front, LONG) == expected
        assert [job.replica for job in replicas.jobs] == [one.name for one in replicas.members]
        assert [one.replica.llm.alive for one in replicas.members] == [False, True]


async def test_a_connection_is_lost_while_a_job_is_queued(models, expected, monkeypatch):
    """Nobody could be told of it, or end it."""
    async with cluster(models, 2, silent_s=inf) as (front, replicas):
        slow = SlowQueue(replicas.members[0], monkeypatch)
        writing = asyncio.ensure_future(write(front, LONG))
        await slow.asked.wait()
        await poll_until(lambda: front.exchange.remotes)
        front.exchange.remotes[0].connection.cut()
        await poll_until(lambda: not replicas.members[0].replica._fronts)
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
        slow = SlowQueue(replicas.members[0], monkeypatch)
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
        await replicas.members[0].replica.ended.wait()
        await asyncio.sleep(2 * every)
        time.sleep(20 * every)
        await asyncio.sleep(3 * every)
        texts.close()
        assert len(replicas.jobs) == 1


async def test_preemptions_of_a_lost_replica_are_still_counted(models, monkeypatch):
    monkeypatch.setattr("cutaway.features.cluster.replica.PULSE_S", 0.01)
    async with cluster(models, 2) as (front, replicas):
        first, second = replicas.members
        first.replica.llm.engine.engine.scheduler.preemptions = 7
        second.replica.llm.engine.engine.scheduler.preemptions = 2
        await front.generate(PROMPT, max_tokens=1)
        await poll_until(lambda: front.state().preemptions >= 7)
        await first.kill()
        await front.generate(PROMPT, max_tokens=1)
        await poll_until(lambda: [*front.replicas] == [second.name])
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
        await poll_until(lambda: not (front.exchange.owners or replicas.members[0].replica.jobs))


# -- neighbours ------------------------------------------------------------------------------------

# What one request's schema throws in a step of a replica is that request's error alone.


SCHEMA = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
BAD = {"json_schema": SCHEMA, "seed": 3, "max_tokens": 12}


class Panic(BaseException):
    """As a native library has it."""


@pytest.mark.parametrize(
    "error",
    [ValueError("guest"), MemoryError("guest"), SystemExit("guest"), Panic("guest")],
    ids=lambda error: type(error).__name__,
)
async def test_a_check_that_throws_in_a_replica(models, expected, monkeypatch, error):
    def allows(self, text, token):
        if len(text) > 2:
            raise error
        return True

    monkeypatch.setattr(SchemaCheck, "allows", allows)
    async with asyncio.timeout(120), cluster(models, 2) as (front, replicas):

        async def finish(options):
            texts = await front.submit([PROMPT], front.parse(options))
            await texts.finish()
            return [strip_times(text) for text in texts.generations]

        beside = [asyncio.create_task(finish(LONG)) for _ in range(20)]
        bad = [asyncio.create_task(finish(BAD)) for _ in range(3)]
        for task in bad:
            with pytest.raises(CutawayError, match=f"{type(error).__name__}: guest"):
                await task
        assert [await task for task in beside] == [expected] * 20
        assert len(replicas.jobs) == 23  # none was written twice


# -- wire ------------------------------------------------------------------------------------------

# Messages arrive whole and in order, and only from peers that have the secret.


class Bomb:
    """What must never be unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("a stranger's bytes were unpickled",))


async def listening(serve) -> Listener:
    return await Listener(serve).open("127.0.0.1")


MESSAGES = st.lists(st.one_of(st.binary(max_size=5000), st.text(), st.integers()), max_size=20)


@settings(max_examples=20, deadline=None)
@given(MESSAGES)
def test_messages_arrive_whole_and_in_order(messages):
    async def main():
        heard = []

        async def serve(connection: Connection) -> None:
            for _ in messages:
                heard.append(await connection.receive())
            connection.send("done")

        listener = await listening(serve)
        connection = await connect(listener.address)
        for message in messages:
            connection.send(message)
        assert await connection.receive() == "done"
        assert heard == messages
        with pytest.raises(ConnectionLostError):
            await connection.receive()
        await listener.close()

    asyncio.run(main())


@pytest.mark.parametrize("proof", [b"", b"x" * 31, b"x" * 32, pickle.dumps(Bomb()) * 2])
async def test_a_peer_without_the_secret_is_neither_served_nor_unpickled(proof):
    served = []

    async def serve(connection: Connection) -> None:
        served.append(connection)

    listener = await listening(serve)
    host, port, _ = listener.address
    reader, writer = await asyncio.open_connection(host, port)
    await reader.readexactly(32)
    bomb = pickle.dumps(Bomb())
    writer.write(proof + len(bomb).to_bytes(4, "big") + bomb)
    writer.write_eof()
    assert await reader.read() == b""  # cut
    assert not served
    writer.transport.abort()
    wrong = listener.address._replace(secret=b"another secret")
    with pytest.raises(ConnectionLostError):
        await connect(wrong)
    assert not served
    await listener.close()


@pytest.mark.parametrize("answer", ["a pickle", "what it was sent"])
async def test_a_process_on_the_port_of_another_is_not_unpickled(answer):
    """It does not have the secret, and sends back what it has, or a pickle at once."""

    async def serve(reader, writer) -> None:
        nonce = bytes(32)
        writer.write(nonce)
        proof, ours = await reader.readexactly(32), await reader.readexactly(32)
        bomb = pickle.dumps(Bomb())
        bomb = len(bomb).to_bytes(4, "big") + bomb
        sent = b"" if answer == "a pickle" else proof + ours
        writer.write(sent + bomb * 9)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(ConnectionLostError, match="nobody listens"):
        await connect(Address("127.0.0.1", port, b"secret"))
    server.close()


async def test_every_connection_has_a_proof_of_its_own():
    listener = await listening(lambda _: asyncio.sleep(0))
    host, port, _ = listener.address
    nonces = []
    for _ in range(3):
        reader, writer = await asyncio.open_connection(host, port)
        nonces.append(await reader.readexactly(32))
        writer.close()
    assert all(a != b for a, b in pairwise(nonces))
    await listener.close()


async def test_nobody_there_is_an_error_of_its_own():
    listener = await listening(lambda _: asyncio.sleep(0))
    await listener.close()
    with pytest.raises(ConnectionLostError, match="nobody listens at"):
        await connect(listener.address)


async def test_a_peer_that_does_not_read_is_cut_off(monkeypatch):
    """Otherwise unsent messages would fill the sender's memory."""
    monkeypatch.setattr("cutaway.features.cluster.wire._MOST_UNSENT", 1 << 16)
    stuck = asyncio.Event()
    listener = await listening(lambda _: stuck.wait())
    connection = await connect(listener.address)
    for _ in range(1000):
        connection.send(b"x" * (1 << 16))
        if connection._writer.is_closing():
            break
    else:
        pytest.fail("it was never cut off")
    with pytest.raises(ConnectionLostError):
        await connection.receive()
    await listener.close()


async def test_a_length_that_no_message_has_ends_the_connection():
    lost = asyncio.get_running_loop().create_future()

    async def serve(connection: Connection) -> None:
        try:
            await connection.receive()
        except ConnectionLostError as error:
            lost.set_result(error)

    listener = await listening(serve)
    connection = await connect(listener.address)
    connection._writer.write(b"\xff\xff\xff\xff")
    assert "is no message" in str(await lost)
    connection.cut()
    await listener.close()
