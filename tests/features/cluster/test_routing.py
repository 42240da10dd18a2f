"""Where prompts go: the keys of their blocks, the choice, and its definition."""

import asyncio
import pickle
import subprocess
import sys
from collections import Counter
from hashlib import blake2b
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.compute.backends import KV_BLOCK
from cutaway.engine import Request, RunParams
from cutaway.engine.interventions import BoundInterventions
from cutaway.engine.memory.block_manager import BlockManager
from cutaway.errors import InputError
from cutaway.features.cluster.prompt_blocks import block_keys, read_prompt
from cutaway.features.cluster.routing import READ, TEXT_ROWS, Load, Router
from cutaway.features.cluster.wire import Address, Job
from cutaway.sampling import Observe

TEXTS = st.tuples(
    st.lists(st.integers(0, 1), max_size=5).map(lambda blocks: np.repeat(blocks, KV_BLOCK)),
    st.integers(0, KV_BLOCK - 1),
).map(lambda made: [*made[0].tolist(), *[7] * made[1]])
SALTS = st.none() | st.tuples(st.integers(0, 5 * KV_BLOCK), st.sampled_from("ab"))


@given(first=TEXTS, second=TEXTS, salt=SALTS, other=SALTS)
def test_keys_are_equal_where_the_prefix_cache_shares(first, second, salt, other):
    blocks = BlockManager(16, KV_BLOCK)
    held = blocks.allocate(len(first) // KV_BLOCK)
    blocks.publish(held, first, salt=salt)
    equal = [
        a == b for a, b in zip(block_keys(first, salt), block_keys(second, other), strict=False)
    ]
    shared = len(blocks.match(second, other))
    assert equal == [True] * shared + [False] * (len(equal) - shared)


def test_keys_are_the_same_in_every_process():
    ids = [*range(70)]
    key = b""
    expected = []
    for block in (ids[:32], ids[32:64]):
        data = key + b"".join(token.to_bytes(8, "little") for token in block)
        key = blake2b(data, digest_size=8).digest()
        expected.append(int.from_bytes(key, "little"))
    assert block_keys(ids) == tuple(expected)


def test_what_need_not_be_read():
    def read(tokens, attention="causal", **fields):
        return read_prompt(Request(prompt_token_ids=tuple(range(tokens)), **fields), 3, attention)

    keys = block_keys([*range(64)])
    assert read(64) == (keys, 1, 64, 3)  # the last token's logits are wanted
    assert read(65) == (keys, 2, 65, 3)
    assert read(65, observe=Observe(prompt_top=1)) == (keys, 0, 65, 3)
    assert read(65, run=RunParams(kv_cache=False)) == ((), 0, 65, 3)
    assert read(65, "all") == read(65, 64) == ((), 0, 65, 3)  # a block depends on what is behind
    assert read(65, 16) == (keys, 2, 65, 3)
    assert read(0) == ((), 0, 0, 3)
    changed = BoundInterventions(
        (), ((0, 3, 40),)
    )  # from position 40 on rows do not see the first tokens
    assert read(64, interventions=changed).keys[0] == keys[0]
    assert read(64, interventions=changed).keys[1] != keys[1]


def test_ids_that_are_no_tokens_have_no_keys():
    assert block_keys([2**70] * 32) == ()


# -- the router: where prompts go, and the pains that others had with it ---------------------------


def prompt(*blocks, tail=1, texts=1):
    """A prompt of these blocks, and some tokens after them."""
    ids = [token for block in blocks for token in [block] * KV_BLOCK]
    return read_prompt(Request(prompt_token_ids=(*ids, *range(tail))), texts)


def router(count=8, **settings):
    made = Router(**settings)
    made.update(map(str, range(count)))
    return made


def route(made, job, *prompts, avoid=()):
    choice = made.choose(prompts, avoid)
    made.note_sent(job, prompts, choice)
    return choice


def test_a_text_goes_where_its_beginning_is():
    made = router()
    first = route(made, "a", prompt(1, 2, 3))
    assert (first.cached_tokens, first.tokens, first.rows, first.texts) == (0, 97, 0, 0)
    second = route(made, "b", prompt(1, 2, 3, 4, tail=20))
    assert second.replica == first.replica
    assert (second.cached_tokens, second.tokens, second.rows, second.texts) == (96, 148, 97, 1)
    assert str(second) == f"replica {first.replica}: 96 of 148 tokens cached, 97 rows wait"
    assert pickle.loads(pickle.dumps(second)) == second
    assert second.candidates[0].cost == 97 + 2 * 52 + TEXT_ROWS
    assert second.candidates[1].cost == 2 * 148


def test_an_overloaded_replica_leaves_the_others_their_prompts():
    made = router()
    places = {i: route(made, str(i), prompt(i, i + 100)).replica for i in range(40)}
    for name in map(str, range(8)):
        made.report(name, Load(received=40))
    busy = places[0]
    made.report(busy, Load(rows=10**6, texts=64, received=40))
    for i, place in places.items():
        found = made.choose([prompt(i, i + 100, tail=9)])
        assert (found.replica == place and found.cached_tokens == 64) == (place != busy)


def test_a_burst_of_equal_prompts_neither_scatters_nor_piles_up():
    made, asked = router(), prompt(*range(10))
    places = [route(made, str(i), asked).replica for i in range(400)]
    # Nobody has told anything since, and the first was known as soon as it was sent: others wait
    # for it until that costs more than reading it again.
    wait = (READ - 1) * 321 // (TEXT_ROWS + 1)
    assert wait > 3 and len(set(places[: wait + 1])) == 1
    counts = Counter(places)
    assert len(counts) == 8
    # No more wait at one that knows it than it costs to read it elsewhere.
    assert max(counts.values()) - min(counts.values()) <= READ * 321 / TEXT_ROWS + 1
    reads = Counter(place for i, place in enumerate(places) if place not in places[:i])
    assert set(reads.values()) == {1}


def test_a_shared_beginning_is_found_under_different_ends():
    made = router()
    system = range(5)
    first = route(made, "a", prompt(*system, 77, 78))
    made.report(first.replica, Load(received=1))
    for i in range(100, 150):
        found = made.choose([prompt(*system, i, i + 1)])
        assert (found.replica, found.cached_tokens) == (first.replica, 5 * KV_BLOCK)


def test_a_beginning_that_everybody_has_spreads_over_all():
    made, system = router(50), range(4)
    places = Counter(route(made, str(i), prompt(*system, i + 100)).replica for i in range(5000))
    assert len(places) == 50
    assert max(places.values()) <= 2 * 5000 / 50


def test_routers_that_do_not_talk_agree_on_what_nobody_knows():
    one, other = router(20), Router()
    other.update(map(str, range(30)))
    other.update(map(str, reversed(range(20))))
    for i in range(30):  # they have routed other prompts, and their load is the same
        route(other, f"x{i}", prompt(1000 + i))
        other.note_ended(f"x{i}")
    asked = [[prompt(i, i + 1)] for i in range(200)]
    assert [one.choose(p).replica for p in asked] == [other.choose(p).replica for p in asked]
    assert len({one.choose(p).replica for p in asked}) == 20


def test_routers_hear_of_each_others_prompts_from_the_replicas():
    one, other = router(20), router(20)
    asked = prompt(1, 2, 3)
    place = route(one, "a", asked).replica
    other.report(place, Load(rows=97, texts=1, prompts=[asked.keys]))
    found = other.choose([prompt(1, 2, 3, 4)])
    assert (found.replica, found.cached_tokens, found.rows, found.texts) == (place, 96, 97, 1)


def test_removing_a_replica_moves_only_its_own():
    made = router(20)
    asked = [[prompt(i, i + 1)] for i in range(300)]
    known = [[prompt(1000 + i)] for i in range(100)]
    for i, prompts in enumerate(known):
        route(made, str(i), *prompts)
        made.note_ended(str(i))
    before = [made.choose(p).replica for p in asked + known]
    made.update(str(i) for i in range(20) if i != 7)
    after = [made.choose(p).replica for p in asked + known]
    moved = {a for a, b in zip(before, after, strict=True) if a != b}
    assert moved == {"7"}
    assert all(
        made.choose(p).cached_tokens == 32
        for p, a in zip(known, before[300:], strict=True)
        if a != "7"
    )


def test_what_a_replica_knew_is_forgotten_with_it():
    made = router(2)
    place = route(made, "a", prompt(1, 2)).replica
    made.update({"0", "1"} - {place})
    assert made.choose([prompt(1, 2)]).cached_tokens == 0
    made.update(["0", "1"])  # one that comes back under its name has an empty cache
    assert {c.cached_tokens for c in made.choose([prompt(1, 2)]).candidates} == {0}
    assert {c.rows for c in made.choose([prompt(1, 2)]).candidates} == {0}
    made.note_ended("a")  # and knows nothing of that job


def test_what_must_be_avoided_is_not_taken():
    made = router(3)
    place = route(made, "a", prompt(1, 2)).replica
    other = made.choose([prompt(1, 2)], avoid=[place, "stranger"])
    assert other.replica != place
    assert place not in {c.replica for c in other.candidates}
    assert made.choose([prompt(1, 2)], avoid=["0", "1", "2"]) is None
    assert Router().choose([prompt(1)]) is None
    assert Router().rank([prompt(1)]) == []


def test_what_was_sent_counts_until_the_replica_counts_it():
    made = router(1)
    for job in "abc":
        route(made, job, prompt(1, tail=8, texts=2))

    def there():
        choice = made.choose([prompt(5)])
        return choice.rows, choice.texts

    assert there() == (40 + 8 + 8, 6)
    made.report("0", Load(rows=48, texts=4, received=2))  # the third was on its way
    assert there() == (48 + 8, 6)
    made.note_ended("c")  # it never came there
    made.note_ended("c")
    made.note_ended("a")  # the replica counts this one
    assert there() == (48, 4)
    made.report("0", Load(rows=0, texts=1, received=2))
    assert there() == (0, 1)
    made.report("stranger", Load())


def test_a_job_that_is_sent_again_is_there_and_no_longer_here():
    made = router(2)
    asked = [prompt(1)]
    first, second = made.rank(asked)
    made.note_sent("a", asked, first)
    made.note_sent("a", asked, second)
    rows = {c.replica: c.rows for c in made.choose([prompt(2)]).candidates}
    assert rows == {first.replica: 0, second.replica: 33}
    made.update([second.replica])
    made.note_sent("a", asked, first)  # it went away in the meantime
    assert made.choose([prompt(2)]).rows == 0


def test_several_prompts_are_read_together():
    made = router()
    route(made, "a", prompt(1, 2))
    made.note_ended("a")
    both = made.choose([prompt(9), prompt(1, 2, 3)])
    assert (both.cached_tokens, both.tokens) == (64, 33 + 97)


def test_settings_that_cannot_be():
    with pytest.raises(InputError, match="most_keys must be 1 or more"):
        Router(most_keys=0)
    with pytest.raises(InputError, match="text_rows must be 0 or more"):
        Router(text_rows=-1)


def test_it_needs_no_ray():
    code = "import sys, cutaway.features.cluster.routing; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- prefix router ---------------------------------------------------------------------------------

# What Ray Serve's view of the router keeps of calls. Without a cluster.


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
