"""Which models are in memory: any order of uses, loads, failures and clients that leave."""

import asyncio

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from cutaway import CutawayError
from cutaway.server.model_cache import ModelCache
from support.cached_models import LIMIT, Clock, Fake

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
        taken = sum(fake.taken for fake in self.fakes)
        assert self.limit is None or taken <= self.limit
        assert taken == self.cache.taken

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
