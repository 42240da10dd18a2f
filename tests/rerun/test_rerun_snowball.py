"""How a mistake grows, against brute force from full logits."""

import numpy as np
import pytest

from cutaway import InputError
from cutaway.features.experiments import snowball
from cutaway.rerun.forks import Reconvergence, reconvergence
from cutaway.trace.differences import SHORTEST_RUN
from support.full_logits import probabilities

OPTIONS = {"errors": 3, "max_tokens": 20, "seed": 5, "temperature": 0.8}


@pytest.fixture(scope="module")
def done(tiny):
    return snowball(tiny, "ab", **OPTIONS)


def test_the_original_is_the_plain_text(tiny, done):
    plain = tiny.generate("ab", max_tokens=20, seed=5, temperature=0.8, ignore_eos=True)
    assert done.original.token_ids == plain.token_ids
    assert done.original.fingerprint == plain.fingerprint


def test_mistakes_lie_in_the_first_half_and_are_the_likeliest_other_tokens(tiny, done):
    assert [fork.at for fork in done.forks] == [0, 3, 6]
    assert done.horizon == 20 - 1 - 6
    ids = [*done.original.prompt_token_ids, *done.original.token_ids]
    p = probabilities(tiny, ids)[len(done.original.prompt_token_ids) - 1 :]
    for fork in done.forks:
        row = p[fork.at].copy()
        assert fork.instead_of == done.original.token_ids[fork.at]
        row[[fork.instead_of, *tiny.tokenizer.end_ids]] = 0
        assert fork.token_id == row.argmax()
        assert fork.bits == pytest.approx(-np.log2(p[fork.at, fork.token_id]))


def test_the_places_can_be_named(tiny, done):
    named = snowball(tiny, "ab", **OPTIONS | {"errors": None, "at": (6, 3, 6)})
    assert [fork.at for fork in named.forks] == [3, 6]
    for fork, other in zip(named.forks, done.forks[1:], strict=True):
        assert (fork.token_id, fork.token_ids) == (other.token_id, other.token_ids)
        assert fork.forced.tolist() == other.forced.tolist()


def test_a_short_text_has_room_for_fewer_mistakes(tiny):
    short = snowball(tiny, "ab", **OPTIONS | {"errors": None, "max_tokens": 8})
    assert [fork.at for fork in short.forks] == [0, 1, 2, 3]


def test_no_stop_condition_ends_a_text(tiny, done):
    stops = {"stop": ["a", "b", "c"], "stop_token_ids": done.original.token_ids}
    stopped = snowball(tiny, "ab", **OPTIONS, **stops)
    assert stopped.original.token_ids == done.original.token_ids
    assert stopped.mean("free").tolist() == done.mean("free").tolist()


def test_the_rank_makes_the_mistake_less_likely(tiny, done):
    worse = snowball(tiny, "ab", **OPTIONS, rank=3)
    assert all(b.bits > a.bits for a, b in zip(done.forks, worse.forks, strict=True))


def test_the_fork_continues_with_the_same_luck(tiny, done):
    for fork in done.forks:
        given = (*done.original.token_ids[: fork.at], fork.token_id)
        text = tiny.generate(
            "ab", seed=5, temperature=0.8, ignore_eos=True, forced=given, max_tokens=fork.at + 14
        )
        assert text.token_ids[fork.at + 1 :] == fork.token_ids


def test_every_curve_is_what_full_logits_say(tiny, done):
    prompt, tokens = list(done.original.prompt_token_ids), list(done.original.token_ids)
    plain = probabilities(tiny, prompt + tokens)
    for fork in done.forks:
        begun = prompt + tokens[: fork.at]
        meant = tokens[fork.at + 1 : fork.at + 14]
        forced = probabilities(tiny, [*begun, fork.token_id, *meant])
        free = probabilities(tiny, [*begun, fork.token_id, *fork.token_ids])
        for d in range(13):
            at = len(begun) + d
            p, q, r = plain[at], forced[at], free[at]
            assert fork.forced[d] == pytest.approx((p * np.log2(p / q)).sum(), abs=1e-9)
            assert fork.free[d] == pytest.approx((p * np.log2(p / r)).sum(), abs=1e-9)
            assert fork.cost[d] == pytest.approx(np.log2(p[meant[d]] / q[meant[d]]), abs=1e-9)


def test_averages_are_over_the_forks(done):
    tokens = done.original.token_ids
    for d in range(13):
        assert done.mean("cost")[d] == pytest.approx(sum(f.cost[d] for f in done.forks) / 3)
        parted = sum(f.token_ids[d] != tokens[f.at + 1 + d] for f in done.forks)
        assert done.parted[d] == pytest.approx(parted / 3)


def test_right_after_the_mistake_both_curves_are_one(done):
    for fork in done.forks:
        assert fork.forced[0] == fork.free[0] > 0


@pytest.mark.parametrize(
    ("fork", "original", "found"),
    [
        (range(20), range(20), Reconvergence(1, 0)),
        ([99, *range(1, 20)], range(20), Reconvergence(2, 0)),
        ([98, 99, *range(20)], range(20), Reconvergence(3, -2)),
        (range(3, 20), range(20), Reconvergence(1, 3)),
        (range(SHORTEST_RUN - 1), range(20), None),
        ([7] * 30, [*range(5), *[7] * 20], Reconvergence(1, 5)),
        ([], [], None),
    ],
)
def test_texts_meet_where_a_run_of_tokens_is_the_same(fork, original, found):
    assert reconvergence(list(fork), list(original)) == found


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"errors": 0}, "errors must be between 1 and 10"),
        ({"errors": 11}, "errors must be between 1 and 10"),
        ({"max_tokens": 3}, "max_tokens must be 4 or more"),
        ({"max_tokens": 400}, "max_tokens: the context has room for 125"),
        ({"errors": None, "at": []}, "at must name at least one step"),
        ({"errors": None, "at": [19]}, "at must be between 0 and 18"),
        ({"at": [4]}, "give one of the two"),
        ({"rank": 0}, "rank must be between 1 and 100"),
        ({"temprature": 1}, "unknown option"),
    ],
)
def test_what_cannot_be_is_refused(tiny, wrong, sentence):
    with pytest.raises(InputError, match=sentence):
        snowball(tiny, "ab", **OPTIONS | wrong)


def test_progress_counts_tokens_to_the_last(tiny):
    heard = []
    done = snowball(tiny, "ab", **OPTIONS, progress=lambda *each: heard.append(each))
    for what, total in (
        ("writing", 20 + sum(f.at + 1 + done.horizon for f in done.forks)),
        ("measuring", 3 * done.horizon),
    ):
        counts = [count for name, count, of in heard if name == what and of == total]
        assert counts == sorted(counts)
        assert counts[-1] == total
