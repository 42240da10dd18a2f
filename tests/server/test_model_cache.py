"""Which models are in memory: who is waited for, who goes, and what is told, scene by scene."""

import asyncio
from contextlib import suppress

import pytest

from cutaway import CutawayError, InputError
from cutaway.errors import QueueFullError
from support.cached_models import LIMIT, Clock, asks, cache_of, goes_on, turns, used
from support.waiting import until


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
    await until(lambda: slot.users)
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
    await cache.settled()
    for task in [*tasks, asyncio.ensure_future(absent.use())]:
        with pytest.raises(CutawayError, match="the engine is closed"):
            await task
    assert coming.model.gives_up
    assert [slot.state for slot in (here, coming, absent)] == ["loaded", "absent", "absent"]
    await here.use()
    assert here.users == 2
