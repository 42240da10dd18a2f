"""Which models are in memory: scene by scene, and in any order of uses, loads and failures."""

import asyncio
import logging
from contextlib import suppress

import httpx
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from cutaway import LLM, CutawayError, InputError
from cutaway.errors import QueueFullError
from cutaway.server.http.settings import ServerSettings
from cutaway.server.model_cache import ModelCache
from support.cached_models import LIMIT, Clock, Fake, asks, cache_of, goes_on, turns, used
from support.served import serve
from support.waiting import poll_until


def test_a_model_that_can_never_fit_is_refused():
    with pytest.raises(InputError, match=r"memory: 0 takes .* raise that, or lower context"):
        cache_of(LIMIT + 1)


async def test_two_at_once_load_it_once():
    _, [slot] = cache_of(4)
    tasks = [await asks(slot) for _ in range(2)]
    await goes_on(slot)
    await asyncio.gather(*tasks)
    assert (slot.model.loads, slot.users) == (1, 2)


async def test_who_leaves_stops_no_load():
    _, [slot] = cache_of(4)
    leaves, stays = [await asks(slot) for _ in range(2)]
    leaves.cancel()
    await turns()
    await goes_on(slot)
    await stays
    assert slot.users == 1
    with suppress(asyncio.CancelledError):
        await leaves


async def test_who_leaves_while_he_is_let_in_uses_nothing():
    _, [slot] = cache_of(4)
    task = await asks(slot)
    slot.model.doing.set_result(None)
    await poll_until(lambda: slot.users)
    assert not task.done()  # it is told in the loop's next turn
    task.cancel()
    await turns()
    assert task.cancelled()
    assert slot.users == 0


async def test_of_idle_models_the_one_goes_that_was_asked_for_longest_ago():
    _, slots = cache_of(3, 3, 3, 3)
    for i in (0, 1, 2, 0):
        await used(slots[i])
        slots[i].done()
    await turns()
    waiting = await asks(slots[3])
    assert [slot.state for slot in slots] == ["loaded", "unloading", "loaded", "absent"]
    waiting.cancel()


async def test_newcomers_do_not_overtake_who_waits_for_room():
    """Uses of one model that follow each other without a gap would keep another out for ever."""
    _, [busy, other] = cache_of(6, 6)
    await used(busy)
    waiting = await asks(other)
    late = await asks(busy)
    assert not late.done()
    busy.done()
    await turns()
    assert busy.state == "unloading"
    await goes_on(busy)
    other.model.doing.set_result(None)
    await waiting
    assert not late.done()
    other.done()
    await turns()
    await goes_on(other)
    busy.model.doing.set_result(None)
    await late


async def test_who_gives_up_waiting_for_room_keeps_nobody_out():
    _, [busy, other] = cache_of(6, 6)
    await used(busy)
    waiting = await asks(other)
    late = await asks(busy)
    waiting.cancel()
    await late
    assert busy.users == 2


def test_a_model_goes_when_its_time_is_over():
    loop = Clock()

    async def main():
        _, [slot] = cache_of(4, idle_s=5)
        await used(slot)
        assert slot.expires is None
        slot.done()
        assert slot.expires == 5
        loop.now = 4
        await used(slot)
        slot.done()
        assert slot.expires == 9
        loop.now = 8.9
        await turns()
        assert slot.state == "loaded"
        loop.now = 9
        await turns()
        assert slot.state == "unloading"
        await goes_on(slot)
        assert slot.state == "absent"

    loop.run_until_complete(main())
    loop.close()


async def test_what_is_said_of_one_that_is_not_there_is_forgotten():
    _, [slot] = cache_of(4)
    slot.keep(0)
    await used(slot)
    slot.done()
    assert slot.state == "loaded"
    slot.keep(0)
    assert slot.state == "unloading"
    await turns()
    await goes_on(slot)
    await used(slot)
    slot.done()
    assert slot.state == "loaded"


async def test_more_may_not_wait_than_there_is_room_for():
    cache, [slot] = cache_of(4, max_waiting=2)
    tasks = [asyncio.ensure_future(slot.use()) for _ in range(3)]
    await turns()
    with pytest.raises(QueueFullError, match="the queue is full with 2 waiting"):
        tasks[2].result()
    slot.model.doing.set_result(None)
    await asyncio.gather(*tasks[:2])
    assert slot.users == 2
    assert not cache.queue


async def test_once_stopped_nothing_is_loaded_and_what_is_loaded_is_used_on():
    cache, [here, coming, absent] = cache_of(3, 3, 3)
    await used(here)
    tasks = [asyncio.ensure_future(slot.use()) for slot in (coming, absent)]
    await turns()
    cache.stop()
    await cache.wait_until_idle()
    for task in [*tasks, asyncio.ensure_future(absent.use())]:
        with pytest.raises(CutawayError, match="the engine is closed"):
            await task
    assert coming.model.gives_up
    assert [slot.state for slot in (here, coming, absent)] == ["loaded", "absent", "absent"]
    await here.use()
    assert here.users == 2


# -- any order of uses, loads, failures and clients that leave ---------------------------------


SIZES = (4, 6, 5, 10)


class Cache(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.loop = Clock()
        self.asking, self.using, self.failed = {}, [], 0  # task -> fake; fakes

    @initialize(idle_s=st.sampled_from([None, 0, 5]), limit=st.sampled_from([LIMIT, 15, None]))
    def begin(self, idle_s, limit):
        self.limit = limit
        self.cache = ModelCache(limit, idle_s=idle_s)
        self.fakes = [Fake(str(i), size) for i, size in enumerate(SIZES)]
        self.slots = [self.cache.add(fake) for fake in self.fakes]

    def settle(self):
        """Until nobody can go on by itself."""
        for _ in range(20):
            self.loop.run_until_complete(asyncio.sleep(0))
        for task in [task for task in self.asking if task.done()]:
            fake = self.asking.pop(task)
            if task.cancelled():
                continue
            if task.exception():
                assert isinstance(task.exception(), CutawayError)
                self.failed += 1
                continue
            assert fake.there
            fake.users += 1
            self.using.append(fake)

    # -- what may happen ---------------------------------------------------------------------

    @rule(which=st.integers(0, len(SIZES) - 1), times=st.integers(1, 3))
    def ask(self, which, times):
        for _ in range(times):
            self.asking[self.loop.create_task(self.slots[which].use())] = self.fakes[which]
        self.settle()

    @precondition(lambda self: self.asking)
    @rule(data=st.data())
    def leave(self, data):
        data.draw(st.sampled_from([*self.asking])).cancel()
        self.settle()

    @precondition(lambda self: any(fake.doing for fake in self.fakes))
    @rule(data=st.data(), leaver=st.booleans())
    def go_on(self, data, leaver):
        """A load or unload ends; maybe in the same turn somebody leaves."""
        fake = data.draw(st.sampled_from([fake for fake in self.fakes if fake.doing]))
        mine = [task for task, asked in self.asking.items() if asked is fake]
        if leaver and mine:
            mine[0].cancel()
        fake.doing.set_result(None)
        self.settle()

    @precondition(lambda self: any(fake.doing and not fake.there for fake in self.fakes))
    @rule(data=st.data())
    def fail(self, data):
        loading = [fake for fake in self.fakes if fake.doing and not fake.there]
        fake = data.draw(st.sampled_from(loading))
        waited = sum(asked is fake for asked in self.asking.values())
        failed = self.failed
        fake.doing.set_exception(CutawayError("it is broken"))
        self.settle()
        assert self.failed == failed + waited  # all who waited for it, and nobody else

    @precondition(lambda self: self.using)
    @rule(data=st.data())
    def end(self, data):
        fake = data.draw(st.sampled_from(self.using))
        self.using.remove(fake)
        fake.users -= 1
        self.loop.run_until_complete(self.ended(fake))
        self.settle()

    async def ended(self, fake):
        self.slots[self.fakes.index(fake)].done()

    @rule(seconds=st.sampled_from([1.0, 5.0]))
    def time_passes(self, seconds):
        self.loop.now += seconds
        self.settle()

    @rule(which=st.integers(0, len(SIZES) - 1), idle_s=st.sampled_from([None, 0, 2]))
    def keep(self, which, idle_s):
        async def keep():
            self.slots[which].keep(idle_s)

        self.loop.run_until_complete(keep())
        self.settle()

    # -- what must be ------------------------------------------------------------------------

    @invariant()
    def never_above_memory(self):
        taken = sum(fake.memory_in_use for fake in self.fakes)
        assert self.limit is None or taken <= self.limit
        assert taken == self.cache.memory_used

    @invariant()
    def the_cache_knows_who_uses_what(self):
        assert [slot.users for slot in self.slots] == [fake.users for fake in self.fakes]
        assert len(self.cache.queue) == len(self.asking)

    @invariant()
    def who_waits_waits_for_something(self):
        """For a load or an unload, or for uses that are there: nobody is just forgotten."""
        if self.asking:
            assert self.using or any(fake.doing for fake in self.fakes)

    @invariant()
    def a_loaded_model_is_kept_from_nobody_without_need(self):
        if self.limit is None:
            assert not any(fake.there and not fake.doing for fake in self.asking.values())

    def teardown(self):
        """When all uses end, and all loads, all who wait are served."""
        for _ in range(200):
            if not (self.asking or self.using):
                break
            for fake in self.fakes:
                if fake.doing:
                    fake.doing.set_result(None)
            for fake in [*self.using]:
                self.using.remove(fake)
                fake.users -= 1
                self.loop.run_until_complete(self.ended(fake))
            self.settle()
        assert not self.asking
        self.cache.stop()
        while tasks := asyncio.all_tasks(self.loop):
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(tasks))
        self.loop.close()


TestCache = Cache.TestCase
TestCache.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


# -- cache salt ------------------------------------------------------------------------------------

# `cache_salt` over HTTP: the prefix cache answers no guesses about texts of another salt.


SECRET = "kestrel-of-one-client"
SAID = "a bé ab été, " * 8  # more than two blocks of the tiny model's tokens
TEXT = {"max_tokens": 1}
ASKED = {
    "/v1/completions": {**TEXT, "prompt": SAID},
    "/v1/chat/completions": {**TEXT, "messages": [{"role": "user", "content": SAID}]},
    "/v1/messages": {**TEXT, "messages": [{"role": "user", "content": SAID}]},
    "/v1/responses": {"max_output_tokens": 1, "input": SAID},
}
READ = {
    "/v1/score": {"text_1": SAID, "text_2": "ab"},
    "/v1/rerank": {"query": SAID, "documents": ["ab"]},
    "/v1/decisions": {
        "input": SAID,
        "questions": [
            {"type": "choice", "instructions": "?", "choices": [{"value": "a"}, {"value": "b"}]}
        ],
    },
    "/v1/embeddings": {"input": SAID},
}  # fmt: skip


@pytest.fixture
def client(tiny_path):
    with (
        serve(LLM(tiny_path, threads=1)) as served,
        httpx.Client(base_url=served.url, timeout=60) as client,
    ):
        yield client


def asked(client, path, salt=None):
    body = {**(ASKED | READ)[path], **({} if salt is None else {"cache_salt": salt})}
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert SECRET not in answer.text
    return answer.json()


def cached(client, path, salt=None):
    usage = asked(client, path, salt)["usage"]
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or usage
    return details.get("cached_tokens", details.get("cache_read_input_tokens"))


@pytest.mark.parametrize("path", ASKED)
def test_a_guess_finds_nothing_of_a_text_with_another_salt(client, path):
    before = cached(client, path, SECRET)
    assert [cached(client, path, salt) for salt in (None, "another")] == [before, before]
    assert cached(client, path, SECRET) >= before + 64


@pytest.mark.parametrize("path", READ)
def test_nor_of_a_text_that_was_only_read(client, path):
    with_salt, hits = asked(client, path, SECRET), hits_of(client)
    without = asked(client, path)
    assert hits_of(client) == hits
    asked(client, path, SECRET)
    assert path == "/v1/embeddings" or hits_of(client) > hits
    for answer in (with_salt, without):
        answer.pop("id", None), answer.pop("created", None), answer.pop("usage")
    assert with_salt == without


def hits_of(client):
    [line] = [
        line
        for line in client.get("/metrics").text.splitlines()
        if line.startswith("cutaway_prefix_cache_hit_tokens_total")
    ]
    return float(line.split()[-1])


@pytest.mark.parametrize("path", [*ASKED, *READ])
def test_a_bad_one_is_refused_by_name_and_not_shown(client, path):
    for bad in ("", SECRET * 20, 7):
        answer = client.post(path, json={**(ASKED | READ)[path], "cache_salt": bad})
        assert answer.status_code == 400 and "cache_salt" in answer.text
        assert SECRET not in answer.text


def test_no_trace_no_log_and_no_receipt_has_it(tiny_path, caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    settings = ServerSettings(log_prompts=True)
    with serve(LLM(tiny_path, threads=1), settings) as served:
        body = {**ASKED["/v1/completions"], "cache_salt": SECRET, "trace": True}
        answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=60)
    assert answer.json()["choices"][0]["cutaway"]["trace"]
    assert SECRET not in answer.text
    assert SAID.split(maxsplit=1)[0] in caplog.text and SECRET not in caplog.text
