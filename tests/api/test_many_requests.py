"""Many requests in one batch: each result in its own place, the same as alone."""

import asyncio
import gc
import os
import pty
from itertools import count, repeat
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway import LLM, Completion, CutawayError, InputError
from cutaway.api.client_queue import CLIENT, ClientQueue
from cutaway.engine import Policy
from cutaway.errors import QueueFullError

OPTIONS = {"max_tokens": 6, "seed": 3, "temperature": 1.0, "ignore_eos": True}
MOST = 2 * Policy().max_num_seqs


def idle(llm):
    blocks = llm.engine.blocks
    return not (llm.engine.running or llm.engine.waiting) and blocks.free == blocks.count


def same(a, b):
    return (a.token_ids, a.fingerprint, a.seed) == (b.token_ids, b.fingerprint, b.seed)


def test_every_request_is_answered_once_as_it_is_alone(tiny):
    prompts = ["ab" * (i % 7 + 1) for i in range(200)]
    results = dict(tiny.generate_each(iter(prompts), **OPTIONS))
    assert sorted(results) == list(range(200))
    for i in (0, 63, 64, 199):
        assert same(results[i], tiny.generate(prompts[i], **OPTIONS))


def test_they_come_as_they_end(tiny):
    requests = [("ab", {"max_tokens": n}) for n in (9, 3, 6)]
    assert [i for i, _ in tiny.generate_each(requests, **OPTIONS)] == [1, 2, 0]


def test_own_options_go_before_the_common_ones(tiny):
    requests = ["ab", ("ab", {"seed": 8}), ("ab", {"n": 2}), ((1, 9), {}), (1, 9)]
    results = dict(tiny.generate_each(requests, **OPTIONS))
    assert results[1].seed == 8
    assert results[3].prompt_token_ids == results[4].prompt_token_ids == (1, 9)
    both = tiny.generate("ab", n=2, **OPTIONS)
    assert all(map(same, results[2], both)) and len(results[2]) == 2
    assert same(results[0], both[0])


def test_without_a_seed_each_has_its_own(tiny):
    results = dict(tiny.generate_each(repeat("ab", 5), max_tokens=1))
    assert len({r.seed for r in results.values()}) == 5


def test_what_cannot_be_stands_in_its_place(tiny):
    def fail(tokens, logits):
        raise RuntimeError("mine")

    mine = InputError("not read")
    requests = [
        "ab", [1] * 600, ("ab", {"temperature": -1}), ("ab", {"tmperature": 1}), None, mine,
        ("ab", {"processors": (fail,)}), ("ab", {"speculate": "draft:x"}), "b",
    ]  # fmt: skip
    results = dict(tiny.generate_each(requests, **OPTIONS))
    said = {i: str(r) for i, r in results.items() if isinstance(r, CutawayError)}
    for i, sentence in {
        1: "prompt has 600 tokens", 2: "temperature must be 0", 3: "did you mean 'temperature'",
        4: "prompt must be a string", 5: "not read", 6: "RuntimeError: mine",
        7: "speculate: name the draft model among the common options",
    }.items():  # fmt: skip
        assert sentence in said.pop(i)
    assert results[5] is mine and isinstance(results[6].__cause__, RuntimeError)
    assert not said and len(results) == len(requests)
    assert same(results[8], tiny.generate("b", **OPTIONS))
    assert idle(tiny)


def test_a_sample_that_fails_is_the_failure_of_its_request(tiny):
    def at_odds(tokens, logits, calls=count()):  # noqa: B008  one counter for all calls
        if next(calls) == 4:
            raise RuntimeError("mine")
        return logits

    ((_, result),) = tiny.generate_each([("ab", {"n": 3, "processors": (at_odds,)})], **OPTIONS)
    assert "RuntimeError: mine" in str(result)


def test_logits_that_are_not_finite_are_the_failure_of_their_request(tiny, monkeypatch):
    run = tiny.backend.run

    def spoil(batch):
        logits = run(batch)
        logits[-1] = float("nan")
        return logits

    results = tiny.generate_each(["ab", "b"], **OPTIONS)
    monkeypatch.setattr(tiny.backend, "run", spoil)
    index, failed = next(results)
    monkeypatch.undo()
    assert index == 1 and "not finite" in str(failed)
    ((index, done),) = results
    assert index == 0 and same(done, tiny.generate("ab", **OPTIONS))


def test_requests_are_taken_as_there_is_room(tiny):
    taken = []
    endless = (taken.append(i) or "ab" for i in count())
    with tiny.generate_each(endless, **OPTIONS) as results:
        for done, _ in enumerate(results, 1):
            assert len(taken) <= MOST + done
            assert len(tiny.engine.running) + len(tiny.engine.waiting) <= MOST
            if done == 300:
                break
    assert idle(tiny)
    assert list(results) == []


def test_bad_requests_are_not_hoarded(tiny):
    taken = []
    endless = (taken.append(i) for i in count())  # None is no prompt
    for done, (index, _) in enumerate(tiny.generate_each(endless), 1):
        assert len(taken) == done == index + 1
        if done == 1000:
            break


def test_samples_count_as_sequences(tiny):
    taken = []
    requests = (taken.append(i) or "ab" for i in range(9))
    next(tiny.generate_each(requests, n=MOST, **OPTIONS))
    assert taken == [0]


@pytest.mark.parametrize("how", ["close", "drop", "stop"])
def test_an_early_end_aborts_what_runs(tiny, how):
    results = tiny.generate_each([("ab", {"max_tokens": 1}), "ab", "b"], **OPTIONS)
    assert next(results)[0] == 0
    assert not idle(tiny)
    if how == "drop":
        del results
        gc.collect()
        tiny.generate("a", max_tokens=1)
    else:
        getattr(results, how)()
        assert list(results) == []
    assert idle(tiny)


def test_what_ends_in_the_last_turn_is_told(tiny):
    results = tiny.generate_each(
        ["ab", "b", ("a", {"max_tokens": 2})], **OPTIONS | {"max_tokens": 1}
    )
    results.on_step = results.stop
    assert [i for i, _ in results] == [0, 1]
    assert idle(tiny)


def test_an_error_of_the_caller_s_own_iterator_is_raised_and_frees_all(tiny):
    def broken():
        yield "ab"
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(tiny.generate_each(broken(), **OPTIONS))
    assert idle(tiny)


def test_other_calls_may_come_between(tiny):
    results = tiny.generate_each([("ab", {"max_tokens": n}) for n in (1, 5)], **OPTIONS)
    next(results)
    alone = tiny.generate("ab", **OPTIONS)
    ((_, last),) = results
    assert alone.token_ids[:5] == last.token_ids


def test_tokens_so_far(tiny):
    results, seen = tiny.generate_each(["ab", "b"], **OPTIONS), []
    results.on_step = lambda: seen.append(results.tokens)
    assert len(list(results)) == 2
    assert seen == [2, 4, 6, 8, 10, 12]


@pytest.mark.parametrize(
    ("requests", "options", "sentence"),
    [
        ("ab", {}, "requests must be an iterable"),
        (b"ab", {}, "requests must be an iterable"),
        (5, {}, "requests must be an iterable"),
        (["ab"], {"temperature": -1}, "temperature must be"),
        (["ab"], {"tmperature": 1}, "did you mean"),
    ],
)
def test_bad_common_options_are_refused_at_once(tiny, requests, options, sentence):
    with pytest.raises(InputError, match=sentence):
        tiny.generate_each(requests, **options)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
NAMES = st.sampled_from(
    ["temperature", "top_k", "top_p", "min_p", "seed", "stop", "stop_token_ids", "logit_bias",
     "preset", "processors", "n", "special", "ignore_eos", "kv_cache", "ledger", "logprobs",
     "prompt_logprobs", "priority", "speculate", "repetition_penalty", "x"],
)  # fmt: skip


@given(st.lists(st.tuples(st.just("ab") | ANYTHING, st.dictionaries(NAMES, ANYTHING, max_size=3))))
def test_nothing_that_json_can_hold_stops_the_others(tiny, requests):
    results = dict(tiny.generate_each([*requests, "ab"], max_tokens=2, seed=1))
    assert sorted(results) == list(range(len(requests) + 1))
    assert all(isinstance(r, (Completion, CutawayError, list)) for r in results.values())
    assert same(results[len(requests)], tiny.generate("ab", max_tokens=2, seed=1))
    assert idle(tiny)


def test_a_list_of_prompts_shows_a_bar_on_a_terminal_alone(tiny_path, capfd, monkeypatch):
    llm = LLM(tiny_path)
    llm.generate(["ab", "b"], max_tokens=2)
    assert capfd.readouterr() == ("", "")
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb") as seen, os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        llm.generate(["ab", "b"], max_tokens=2)
        assert b"2 of 2 texts" in seen.readline()
        llm.generate("ab", max_tokens=2)
        print("nothing more", file=terminal, flush=True)
        assert seen.readline() == b"nothing more\r\n"


# -- client queue ----------------------------------------------------------------------------------

# A queue of work: clients in turn, limits, hanging up, and the end.


def a_queue(most=9, most_of_client=9):
    return ClientQueue("grammars wait", limit=most, limit_of_client=most_of_client)


class Busy:
    """A queue whose thread is busy until ``over`` is set; ``done`` has what ran since."""

    def __init__(self, **limits):
        self.queue, self.over, self.done = a_queue(**limits), Event(), []

    async def __aenter__(self):
        self._first = self.ask("first", lambda: self.over.wait(300))
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
        queue = ClientQueue("calls wait", limit=9, limit_of_client=9, at_once=lambda: 2)
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
        began, over, let_go = asyncio.Event(), Event(), []
        loop = asyncio.get_running_loop()

        def hold():
            loop.call_soon_threadsafe(began.set)
            let_go.append(over.wait(300))

        first = asyncio.create_task(queue.run(hold))
        await began.wait()
        second, third = (asyncio.create_task(queue.run(lambda: 3)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()  # gives the turn to the second, which leaves in the same moment
        await asyncio.sleep(0)
        second.cancel()
        over.set()
        assert await asyncio.wait_for(third, 300) == 3
        assert let_go == [True]
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
                    await asyncio.wait_for(one, 300)

    asyncio.run(main())
