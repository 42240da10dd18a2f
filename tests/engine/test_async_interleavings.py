"""Tasks that come, read and leave in any order, while the engine runs as it likes.

What is read to its end is what the definition of the loop writes for it alone; what is left
early is a beginning of that; and all blocks come back.
"""

import asyncio
from contextlib import closing
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from support.async_mock import enter, serve
from support.engine_definition import write_by_definition
from support.engine_mock import MockRequest, check, forget_cached, make_engine, steps_of, written
from support.engine_requests import CONTEXT, REQUESTS, often_wrong
from support.mock_backend import narrow


@dataclass(frozen=True)
class Visit:
    """A task that comes after so many calls, and leaves after so many steps, if not before.

    cancelled  after how many calls its task is cancelled
    """

    request: MockRequest
    comes: int
    leaves: int | None
    cancelled: int | None


VISITS = st.builds(
    Visit,
    REQUESTS,
    st.integers(0, 12),
    st.none() | st.integers(1, 6),
    st.sampled_from([None, None, 0, 1, 3, 8]),
)


async def visit(running, visit: Visit, seen: list) -> None:
    """Note in ``seen`` the sequence, once there is one, then its events."""
    for _ in range(visit.comes):
        await running.call(int)
    stream = await enter(running, visit.request)
    [seen[0]] = stream.sequences
    with closing(stream):
        while news := await stream.read():
            for one in news:
                seen.append(one.event)
                if len(steps_of(seen[1:])) == visit.leaves:
                    return


async def cancel_after(running, task, calls: int | None) -> None:
    if calls is not None:
        for _ in range(calls):
            await running.call(int)
        task.cancel()


@given(
    visits=st.lists(VISITS, min_size=1, max_size=6), rows=st.integers(1, 7),
    block=st.integers(1, 5), texts=st.integers(1, 3), running=st.integers(1, 6),
    forget=st.booleans(),
)  # fmt: skip
@settings(max_examples=20)
def test_whatever_the_order_everybody_reads_their_own_text(
    visits, rows, block, texts, running, forget
):
    engine = make_engine(
        narrow, context=CONTEXT, kv_blocks=texts * -(-CONTEXT // block), block=block,
        draft=often_wrong, rows=rows, max_num_seqs=running,
    )  # fmt: skip
    serve(engine, lambda running: all_visit(running, visits, forget))


async def all_visit(running, visits: list[Visit], forget: bool) -> None:
    seen: list[list] = [[None] for _ in visits]
    tasks = [asyncio.create_task(visit(running, *v)) for v in zip(visits, seen, strict=True)]
    cancelling = [cancel_after(running, t, v.cancelled) for t, v in zip(tasks, visits, strict=True)]
    await asyncio.gather(*cancelling)
    if forget:
        await running.call(forget_cached, running.engine.blocks)
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    await running.call(check, running.engine)
    assert not running.engine.running
    assert not running.engine.waiting
    for one, (sequence, *events), end in zip(visits, seen, ends, strict=True):
        if sequence:
            compare(one, written(sequence, events), to_the_end=end is None and not one.leaves)


def compare(one: Visit, wrote, *, to_the_end: bool) -> None:
    alone, count = write_by_definition(one.request, narrow, context=CONTEXT), len(wrote.token_ids)
    assert wrote.token_ids == alone.token_ids[:count]
    assert wrote.fingerprints == alone.fingerprints[:count]
    assert alone.text.startswith(wrote.text)
    assert wrote == alone or not to_the_end
    assert one.leaves is None or count <= one.leaves
