"""What Ray Serve's view of the router keeps of calls. Without a cluster."""

import asyncio
from types import SimpleNamespace

import pytest

from cutaway.engine import Request
from cutaway.features.cluster.wire import Address, Job


@pytest.mark.parametrize("given_up", [True, False])
async def test_a_call_that_was_given_up_before_it_was_sent_is_forgotten(given_up):
    pytest.importorskip("ray.serve", reason="needs ray: pip install '.[test-ray]'")
    from cutaway.features.cluster.serving import PrefixRouter

    router = object.__new__(PrefixRouter)
    router.initialize_state()
    router._router.update(["one"])
    asked = ((Request(prompt_token_ids=tuple(range(100))), 1),)
    job = Job("1", asked, {}, Address("127.0.0.1", 1, b""))
    future = asyncio.get_running_loop().create_future()
    pending = SimpleNamespace(metadata=SimpleNamespace(internal_request_id="id"), future=future)
    [choice] = router._rank(job, pending)
    assert (choice.rows, len(router._calls)) == (0, 1)
    _ = future.cancel() if given_up else future.set_result("one")
    await asyncio.sleep(0)
    [choice] = router._router.rank([])
    assert (choice.rows, len(router._calls)) == ((0, 0) if given_up else (100, 1))
