"""Many requests in one batch: each result in its own place, the same as alone."""

import gc
import os
import pty
from itertools import count, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway import LLM, Completion, CutawayError, InputError
from cutaway.engine import Policy

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
