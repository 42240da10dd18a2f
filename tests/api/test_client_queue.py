"""A queue of work: clients in turn, limits, hanging up, and the end."""

import asyncio
from threading import Event

import pytest

from cutaway.api.client_queue import CLIENT, ClientQueue
from cutaway.errors import CutawayError, QueueFullError


def a_queue(most=9, most_of_client=9):
    return ClientQueue("grammars wait", most=most, most_of_client=most_of_client)


class Busy:
    """A queue whose thread is busy until ``over`` is set; ``done`` has what ran since."""

    def __init__(self, **limits):
        self.queue, self.over, self.done = a_queue(**limits), Event(), []

    async def __aenter__(self):
        self._first = self.ask("first", lambda: self.over.wait(20))
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_):
        self.over.set()
        assert await self._first
        self.queue.close()

    def ask(self, client, function=None):
        async def asked():
            CLIENT.set(client)
            return await self.queue.run(function or (lambda: self.done.append(client)))

        return asyncio.create_task(asked())

    async def ask_each(self, clients):
        asked = [self.ask(client) for client in clients]
        await asyncio.sleep(0)
        return asked


def test_clients_have_their_turns():
    async def main():
        async with Busy() as busy:
            asked = await busy.ask_each("aaaabbc")
            busy.over.set()
            await asyncio.gather(*asked)
            assert busy.done == [*"abcabaa"]

    asyncio.run(main())


def test_as_many_as_may_have_their_turn_together():
    async def main():
        queue = ClientQueue("calls wait", most=9, most_of_client=9, at_once=lambda: 2)
        over, began = asyncio.Event(), []

        async def work(name):
            async with queue.turn():
                began.append(name)
                await over.wait()

        asked = [asyncio.create_task(work(name)) for name in "abc"]
        await asyncio.sleep(0)
        assert began == [*"ab"]
        over.set()
        await asyncio.gather(*asked)
        assert began == [*"abc"]
        queue.close()

    asyncio.run(main())


def test_who_hangs_up_waits_no_longer():
    async def main():
        async with Busy() as busy:
            asked = await busy.ask_each("abab")
            for left in asked[:3]:
                left.cancel()
            await asyncio.gather(*asked[:3], return_exceptions=True)
            busy.over.set()
            await asked[3]
            assert busy.done == ["b"]
            await busy.ask("later")
            assert busy.done == ["b", "later"]

    asyncio.run(main())


def test_a_turn_that_comes_to_one_who_hangs_up_goes_to_the_next():
    async def main():
        queue = a_queue()
        began, over = asyncio.Event(), Event()
        loop = asyncio.get_running_loop()
        first = asyncio.create_task(
            queue.run(lambda: (loop.call_soon_threadsafe(began.set), over.wait(20)))
        )
        await began.wait()
        second, third = (asyncio.create_task(queue.run(lambda: 3)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()  # gives the turn to the second, which leaves in the same moment
        await asyncio.sleep(0)
        second.cancel()
        over.set()
        assert await asyncio.wait_for(third, 20) == 3
        queue.close()

    asyncio.run(main())


def test_those_who_wait_are_limited():
    async def main():
        async with Busy(most=3, most_of_client=2) as busy:
            asked = await busy.ask_each("aaabb")
            done = asyncio.gather(*asked, return_exceptions=True)
            await asyncio.sleep(0)
            assert [one.done() for one in asked] == [False, False, True, False, True]
            for refused in asked[2], asked[4]:
                with pytest.raises(QueueFullError, match="too many grammars wait"):
                    await refused
            busy.over.set()
            await done
            assert busy.done == [*"aba"]

    asyncio.run(main())


def test_tasks_of_no_client_wait_without_limit():
    """As those of a host, which has no server."""

    async def main():
        async with Busy(most=1, most_of_client=1) as busy:
            asked = await busy.ask_each(["", "", ""])
            busy.over.set()
            await asyncio.gather(*asked)
            assert len(busy.done) == 3

    asyncio.run(main())


def test_the_end_refuses_those_who_wait():
    async def main():
        async with Busy() as busy:
            asked = await busy.ask_each("ab")
            busy.queue.close()
            busy.over.set()
            for one in asked:
                with pytest.raises(CutawayError, match="the engine is closed"):
                    await asyncio.wait_for(one, 20)

    asyncio.run(main())
