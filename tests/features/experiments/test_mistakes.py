"""Mistakes in texts and canvases, against brute force: how they grow, and which are repaired."""

import json
from importlib import import_module
from itertools import groupby
from math import sqrt

import numpy as np
import pytest

from cutaway import LLM, InputError
from cutaway.cli.main import main
from cutaway.engine.canvas import rule_of_text
from cutaway.features.experiments.exposure import exposure
from cutaway.features.experiments.repair import repair, usual_repairs
from cutaway.features.experiments.snowball import snowball
from cutaway.rerun.forks import Reconvergence, reconvergence
from cutaway.rerun.statistics import rate
from cutaway.sampling import derive_seed
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


# -- a human text, read on and written on ------------------------------------------------------

TEXT = "a harbour, an old ship and a bad map; " * 4
WINDOWS = {"before": 9, "tokens": 12, "points": 4, "seed": 3}


@pytest.fixture(scope="module")
def exposed(tiny):
    return exposure(tiny, TEXT, **WINDOWS)


def test_windows_are_pieces_of_the_text_that_do_not_overlap_after_the_cut(tiny, exposed):
    ids = tiny.tokenize(TEXT, add_bos=False)
    assert len(exposed.windows) == 4
    assert (exposed.windows[0].start, exposed.windows[-1].start) == (
        0,
        len(ids) - 21,
    )
    for window in exposed.windows:
        assert window.context == tuple(ids[window.start : window.start + 9])
        assert window.human == tuple(ids[window.start + 9 : window.start + 21])
    starts = [window.start for window in exposed.windows]
    assert min(np.diff(starts)) >= 12


def test_the_models_own_text_is_a_plain_sample(tiny, exposed):
    for i, window in enumerate(exposed.windows):
        plain = tiny.generate(
            [1, *window.context], temperature=1, top_p=1, max_tokens=12, ignore_eos=True,
            seed=derive_seed(3, i),
        )  # fmt: skip
        assert plain.token_ids == window.own


def test_every_figure_is_what_full_logits_say(tiny, exposed):
    for i, window in enumerate(exposed.windows):
        for tokens, bits, expects in (
            (window.human, exposed.reads, exposed.expects_human),
            (window.own, exposed.writes, exposed.expects_own),
        ):
            p = probabilities(tiny, [1, *window.context, *tokens])[len(window.context) : -1]
            chosen = p[np.arange(12), list(tokens)]
            np.testing.assert_allclose(bits[i], -np.log2(chosen), atol=1e-9)
            np.testing.assert_allclose(expects[i], -(p * np.log2(p)).sum(axis=1), atol=1e-9)


def test_by_position_is_the_mean_over_windows_of_each_band(exposed):
    first, _, third, *_, last = exposed.average_bands("gap")
    assert first.mean == pytest.approx(exposed.gap[:, 0].mean())
    assert third.mean == pytest.approx(exposed.gap[:, 2:4].mean())
    assert last.mean == pytest.approx(exposed.gap[:, 8:].mean())
    assert len(exposed.to_dict()["mean"]["gap"]) == len(exposed.to_dict()["positions"]) == 5


def test_differences_are_own_less_human_and_begin_at_nothing(exposed):
    np.testing.assert_array_equal(exposed.gap, exposed.writes - exposed.reads)
    np.testing.assert_array_equal(
        exposed.drift,
        exposed.expects_own - exposed.expects_human,
    )
    assert not exposed.drift[:, 0].any()
    assert exposed.drift.any()


def test_no_stop_condition_ends_an_exposure(tiny):
    plain = exposure(tiny, TEXT, **WINDOWS)
    stops = {"stop": ["a", "b"], "stop_token_ids": plain.windows[0].own}
    assert exposure(tiny, TEXT, **WINDOWS, **stops).windows == plain.windows


def test_a_short_text_has_fewer_windows(tiny):
    few = exposure(tiny, TEXT[:60], **WINDOWS | {"points": 100})
    count = len(tiny.tokenize(TEXT[:60], add_bos=False))
    assert len(few.windows) == (count - 9) // 12


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"text": "ab"}, "the text has .* tokens and two windows need 33"),
        ({"points": 1}, "points must be 2 or more"),
        ({"before": 0}, "before must be 1 or more"),
        ({"before": 120}, "must fit the model's context of 128"),
        ({"temprature": 1}, "unknown option"),
    ],
)
def test_what_cannot_be_exposed_is_refused(tiny, wrong, sentence):
    options = {"text": TEXT, **WINDOWS} | wrong
    with pytest.raises(InputError, match=sentence):
        exposure(tiny, **options)


# -- in canvases: each made again by hand, and their rates -------------------------------------

HOW = {"max_tokens": 9, "seed": 3, "temperature": 0.9}
NO_REMASK = ["confidence", "confidence,steps=3", "threshold,threshold=0.02,block=3"]
REMASK = [
    "mask-predict,steps=4", "remdm,steps=8,remask-rate=0.5",
    "edit,threshold=0.01,edit-threshold=0.01",
]  # fmt: skip
MASK = 0  # of the tiny model


@pytest.fixture(scope="module")
def llm(tiny_diffusion_path):
    return LLM(tiny_diffusion_path)


@pytest.fixture(scope="module")
def repaired(llm):
    return repair(llm, "ab", rules=[*NO_REMASK, *REMASK], errors=4, seeds=2, **HOW)


def run(llm, rule, seed, **forced):
    rule = {"denoise": rule_of_text(rule).to_json() | forced}
    return llm.generate("ab", **HOW | {"seed": seed}, ignore_eos=True, **rule)


def test_what_became_of_a_mistake_is_what_the_same_luck_makes_of_it(llm, repaired):
    assert [one.rule for one in repaired] == [*NO_REMASK, *REMASK]
    for of in repaired:
        assert len(of.mistakes) == 8
        for one in of.mistakes:
            plain = run(llm, of.rule, one.seed)
            fork = run(llm, of.rule, one.seed, forced_cells=[(one.passed, one.cell, one.token_id)])
            differ = [i for i in range(9) if plain.token_ids[i] != fork.token_ids[i]]
            others = [i for i in differ if i != one.cell]
            assert one.gone == (fork.token_ids[one.cell] != one.token_id)
            passed = {c.position: c.token_id for c in plain.passes[one.passed].revealed}
            own = passed[len(plain.prompt_token_ids) + one.cell]
            assert one.instead_of == own
            assert one.own_gone == (own != plain.token_ids[one.cell])
            assert one.restored == (one.cell not in differ)
            assert one.differ == len(others)
            masked = masked_after(plain, one.passed)
            assert (one.later, one.of_later) == (len({*others} & masked), len(masked))


def masked_after(plain, passed):
    """Of each cell by itself: whether the last that a pass said of it is that it is masked."""
    first, masked = len(plain.prompt_token_ids), {*range(9)}
    for position in range(first, first + 9):
        said = True
        for made in plain.passes[: passed + 1]:
            said = {cell.position: cell.now is None for cell in made.cells}.get(position, said)
            said = said or position in made.masked_again
        if not said:
            masked.remove(position - first)
    return masked


def test_a_mistake_is_the_likeliest_token_that_is_wrong(llm, repaired):
    """In the first pass, of which all cells are masked."""
    ids = llm.tokenize("ab")
    [rows] = llm.logits_at([((*ids, *[MASK] * 9), tuple(range(len(ids), len(ids) + 9)))])
    found = [(of, one) for of in repaired[:2] for one in of.mistakes if one.passed == 0]
    assert found
    for of, one in found:
        row = rows[one.cell].copy()
        plain = run(llm, of.rule, one.seed)
        assert one.instead_of == plain.token_ids[one.cell]
        row[[MASK, one.instead_of]] = -np.inf
        assert one.token_id == row.argmax()


def test_without_remasking_a_mistake_stays_and_what_stood_before_it_does(repaired):
    for of in repaired[:3]:
        assert of.gone.mean == of.own_gone.mean == of.restored.mean == 0
        assert all(one.differ == one.later for one in of.mistakes)
    assert sum(one.differ for of in repaired[:3] for one in of.mistakes)


def test_rules_that_take_tokens_back_repair_some(repaired):
    for of in repaired[3:]:
        assert of.gone.mean == sum(one.gone for one in of.mistakes) / 8
        assert of.restored.mean <= of.gone.mean
    assert all(of.gone.mean > 0 for of in repaired[3:])


def test_mistakes_are_spread_over_the_canvas_each_in_its_own(repaired):
    for of in repaired:
        for _, run in groupby(of.mistakes, lambda one: one.seed):
            assert [one.cell for one in run] == [0, 2, 4, 6]
    assert len({one.seed for of in repaired for one in of.mistakes}) == 2


def test_the_loop_takes_nothing_back(tiny):
    assert usual_repairs(tiny, 8) == ("left,block=1",)
    [loop] = repair(tiny, "ab", seeds=1, max_tokens=8, seed=3)
    assert [(one.cell, one.passed, one.of_later) for one in loop.mistakes] == [
        (i, i, 7 - i) for i in range(8)
    ]
    assert (loop.gone.mean, loop.restored.mean) == (0, 0)
    for one in loop.mistakes:
        text = tiny.generate("ab", max_tokens=8, seed=3, ignore_eos=True).token_ids
        fork = tiny.generate(
            "ab", max_tokens=8, seed=3, ignore_eos=True, forced=(*text[: one.cell], one.token_id)
        ).token_ids
        assert one.differ == sum(a != b for a, b in zip(text, fork, strict=True)) - 1


@pytest.mark.parametrize(("came", "of"), [(0, 8), (3, 7), (8, 8), (1, 2)])
def test_the_interval_of_a_rate_is_wilsons(came, of):
    """Its ends are the rates from which what was seen is 1.96 standard deviations away."""
    found = rate(came, of)
    assert found.mean == came / of
    for end in (found.low, found.high):
        away = abs(found.mean - end)
        assert away == pytest.approx(1.959964 * sqrt(end * (1 - end) / of), abs=1e-9)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"errors": 0}, "errors must be between 1 and 9"),
        ({"seeds": 0}, "seeds must be between 1 and 64"),
        ({"rules": []}, "rules must name at least one"),
        ({"rules": ["nobody"]}, "rule must be one of"),
        ({"n": 2}, "n: rules and seeds say"),
        ({"seed": "x"}, "seed must be"),
    ],
)
def test_what_is_no_experiment(llm, given, words):
    with pytest.raises(InputError, match=words):
        repair(llm, "ab", **HOW | given)


def test_a_rule_that_the_model_cannot_have(tiny):
    with pytest.raises(InputError, match="it writes from left to right"):
        repair(tiny, "ab", rules=["edit"], **HOW)


def test_the_command_prints_a_row_for_each_rule(llm, tiny_diffusion_path, capsys):
    settings = ("--seed", "3", "--temperature", "0.9", "--max-tokens", "9")
    size = ("--rule", NO_REMASK[0], "--rule", REMASK[0], "--errors", "4", "--seeds", "2")
    command = ["repair", "ab", "-m", str(tiny_diffusion_path), *settings, *size]
    repaired = repair(llm, "ab", rules=[NO_REMASK[0], REMASK[0]], errors=4, seeds=2, **HOW)
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(
        json.dumps([one.to_dict() for one in repaired])
    )
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:3] == ["confidence", "8", "0%"]
    assert lines[2].split()[:3] == ["mask-predict,steps=4", "8", f"{repaired[1].gone.mean:.0%}"]


def test_a_small_canvas_has_as_many_mistakes_as_cells(llm):
    [repaired] = repair(llm, "ab", rules=["left"], seeds=1, max_tokens=3, seed=3)
    assert [one.cell for one in repaired.mistakes] == [0, 1, 2]


def test_no_token_that_could_be_wrong(llm, monkeypatch):
    monkeypatch.setattr(
        import_module("cutaway.features.experiments.repair"), "_possible", lambda _: []
    )
    with pytest.raises(InputError, match="rule 'left': no cell has a likely token that is wrong"):
        repair(llm, "ab", rules=["left"], **HOW)
