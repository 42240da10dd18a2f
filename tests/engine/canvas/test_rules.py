"""A rule's settings as data, and what it makes of figures, by brute force."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cutaway.engine.canvas import (
    RULES,
    SETTINGS,
    BlockProgress,
    Figures,
    ForcedCell,
    Rule,
    bound,
    choose_masked_again,
    count_revealed,
    figure,
    find_edits,
    make_canvas,
    rank,
    read_rule,
    rule_of_text,
)  # fmt: skip
from cutaway.errors import InputError

NO_LOOK = BlockProgress(0, 1, 1, 0)


@st.composite
def figures(draw, most=20):
    n = draw(st.integers(1, most))
    p = st.floats(0.0, 1.0)
    best = np.array(draw(st.lists(p, min_size=n, max_size=n)))
    shares = np.array(draw(st.lists(p, min_size=2 * n, max_size=2 * n))).reshape(2, n)
    entropy = np.array(draw(st.lists(st.floats(0.0, 12.0), min_size=n, max_size=n)))
    positions = np.arange(n) + draw(st.integers(0, 9))
    return Figures(positions, best * shares[0], best, best * shares[1], entropy)


# -- data --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
def test_a_rule_survives_json(name):
    rule = replace(RULES[name], forced_cells=((3, 1, 2),))
    assert read_rule(json.loads(json.dumps(rule.to_json()))) == rule
    assert rule.forced_cells == (ForcedCell(3, 1, 2),)


def test_what_is_given_goes_before_the_name():
    assert read_rule("llada") == RULES["llada"] == read_rule({"rule": "llada"})
    assert read_rule({"rule": "edit", "steps": 4}) == Rule(steps=4, remask="edit")
    margin = replace(RULES["dream"], order="margin")
    assert read_rule({"rule": "dream", "order": "margin"}) == margin
    assert read_rule(True) == read_rule({}) == Rule()
    assert {"rule", "steps", "forced_cells"} <= {*SETTINGS}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"order": "best"}, "order must be one of confidence"),
        ({"steps": 0}, "steps must be between 1"),
        ({"steps": 2.5}, "steps must be a whole number"),
        ({"threshold": 1.5}, "threshold must be between 0 and 1"),
        ({"threshold": float("nan")}, "threshold must be a finite number"),
        ({"threshold": 0.5, "factor": 1}, "threshold and factor both say"),
        ({"remask": "lowest"}, "steps: with remask 'lowest'"),
        ({"draws_first": 1}, "draws_first must be true or false"),
        ({"forced_cells": [(1, 2)]}, "forced_cells must be"),
        ({"forced_cells": [(1, -2, 3)]}, "forced_cells: a number must be 0 or more"),
        ({"forced_cells": 7}, "forced_cells must be"),
        ({"noise": "good"}, "noise must be one of reuse, fresh"),
        ({"rule": "lada"}, "rule must be one of"),
        ({"step": 4}, "unknown setting 'step'"),
        (7, "denoise must be a rule's name"),
    ],
)
def test_what_is_no_rule_is_said_in_a_sentence(settings, words):
    with pytest.raises(InputError, match=words):
        read_rule(settings)


# -- figures -----------------------------------------------------------------------------------


@given(figures(), st.sampled_from(["confidence", "margin", "entropy", "left"]), st.booleans())
def test_the_order_by_brute_force(of, order, draws_first):
    rule = Rule(order=order, draws_first=draws_first)
    sure = of.p_drawn if draws_first else of.p_best
    by = {
        "confidence": lambda i: -sure[i],
        "margin": lambda i: -(of.p_best[i] - of.p_second[i]),
        "entropy": lambda i: of.entropy[i],
        "left": lambda i: of.positions[i],
    }[order]
    values = figure(rule, of, 0, NO_LOOK)
    expected = sorted(range(len(of.positions)), key=lambda i: (by(i), of.positions[i]))
    assert rank(values, of.positions).tolist() == expected


@given(figures(), st.sampled_from(["confidence", "margin", "entropy", "random", "left"]))
def test_choose_then_sample_knows_nothing_of_the_draw(of, order):
    other = replace(of, p_drawn=of.p_drawn[::-1].copy())
    rule = Rule(order=order)
    assert np.array_equal(figure(rule, of, 5, NO_LOOK), figure(rule, other, 5, NO_LOOK))


@given(figures(), st.integers(0, 99), st.integers(0, 99))
def test_random_orders_are_the_seeds_and_the_passes(of, seed, made):
    rule, at = Rule(order="random"), BlockProgress(0, 1, 1, made)
    values = figure(rule, of, seed, at)
    assert np.array_equal(values, figure(rule, of, seed, at))
    assert not np.array_equal(values, figure(rule, of, seed + 1, at))
    assert not np.array_equal(values, figure(rule, of, seed, BlockProgress(0, 1, 1, made + 1)))


def test_an_order_that_is_drawn_has_the_chances_that_it_says():
    """exp(figure / temperature), for which of two cells is first."""
    best = np.array([0.9, 0.3])
    of = Figures(np.arange(2), best, best, best * 0, best)
    rule, times = Rule(order_temperature=0.5), 4000
    first = sum(np.argmax(figure(rule, of, seed, NO_LOOK)) == 0 for seed in range(times)) / times
    expected = 1 / (1 + np.exp((0.3 - 0.9) / 0.5))
    assert abs(first - expected) < 4 * np.sqrt(expected * (1 - expected) / times)


# -- how many ----------------------------------------------------------------------------------


def best_first(rule, of):
    return of.select(rank(figure(rule, of, 0, NO_LOOK), of.positions))


@given(figures(), st.floats(0, 40))
def test_the_entropy_bound_is_never_exceeded_and_no_more_would_fit(of, gamma):
    rule = Rule(order="entropy", entropy_bound=gamma)
    ordered = best_first(rule, of)
    n = count_revealed(rule, ordered, NO_LOOK)
    entropies = ordered.entropy

    def lost(k):
        return float(np.cumsum(entropies[:k])[-1] - entropies[:k].max())

    assert n >= 1
    assert lost(n) <= gamma
    assert n == len(entropies) or lost(n + 1) > gamma


@given(figures(), st.floats(0, 1))
def test_a_threshold_by_brute_force(of, threshold):
    rule = Rule(threshold=threshold)
    expected = max(1, sum(p >= threshold for p in of.p_best))
    assert count_revealed(rule, best_first(rule, of), NO_LOOK) == expected


@given(figures(), st.floats(0, 30))
def test_a_factor_by_brute_force(of, factor):
    rule = Rule(factor=factor)
    ordered = best_first(rule, of)
    fits = [n for n, p in enumerate(ordered.p_best, 1) if p >= 1 - factor / (n + 1)]
    assert count_revealed(rule, ordered, NO_LOOK) == max(fits, default=1)


@given(
    st.integers(1, 40), st.integers(1, 60), st.sampled_from(["even", "dream", "linear", "cosine"]),
    st.integers(1, 40), st.sampled_from([None, 4, 8, 32]), st.integers(0, 70),
)  # fmt: skip
@example(length=13, steps=4, schedule="even", block=1, model_block=4, first=1)
def test_a_schedule_reveals_every_cell_and_no_pass_is_in_vain(
    length, steps, schedule, block, model_block, first
):
    rule = Rule(steps=steps, schedule=schedule, block=None if model_block else block)
    canvas = make_canvas(rule, first, length, model_block)
    cells = [i for start, end in canvas.blocks for i in range(start, end)]
    assert cells == list(range(length))
    if model_block:
        assert all((first + end) % model_block == 0 for _, end in canvas.blocks[:-1])
    passes = 0
    while not canvas.is_full:
        n = len(canvas.next_cells)
        positions = np.array(canvas.next_cells) + first
        flat = np.full(n, 0.5)
        before = len(canvas.masked)
        canvas.reveal([Drawn(i) for i in range(n)], Figures(positions, *[flat] * 4), 0)
        assert len(canvas.masked) < before
        passes += 1
        if canvas.is_done:
            canvas.next_block()
    assert passes == canvas.index
    assert passes <= max(steps, len(canvas.blocks)) + (schedule != "even") * steps


class Drawn:
    """As much of a draw as a canvas looks at."""

    def __init__(self, token_id, logprob=-1.0):
        self.token_id, self.logprob = token_id, logprob


# -- what is undone ----------------------------------------------------------------------------


def test_remdm_masks_again_as_often_as_it_says():
    """min(rate, (1 - alpha_s) / alpha_t), and nothing in the last pass."""
    positions, p = np.arange(4000), np.full(4000, 0.5)
    for rate, index in ((0.3, 4), (0.9, 7)):
        rule = Rule(steps=10, schedule="linear", remask="sigma", remask_rate=rate)
        expected = min(rate, (1 - (index + 1) / 10) / (index / 10))
        again = choose_masked_again(rule, positions, p, 1, BlockProgress(index, 10, 4000, index))
        share = len(again) / 4000
        assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / 4000)
        assert choose_masked_again(rule, positions, p, 1, BlockProgress(9, 10, 4000, 9)) == []


@given(figures(), st.floats(0, 1))
def test_edits_by_brute_force(of, threshold):
    other = of.positions % 2 == 0
    rule = Rule(threshold=0.5, remask="edit", edit_threshold=threshold)
    expected = [bool(o and p > threshold) for o, p in zip(other, of.p_drawn, strict=True)]
    assert find_edits(rule, of, other).tolist() == expected
    assert not find_edits(Rule(), of, other).any()


@given(figures())
def test_the_bound_of_a_pass(of):
    assert bound(of.entropy) == pytest.approx(sum(sorted(of.entropy)[:-1]), abs=1e-9)
    assert bound(of.entropy[:0]) == 0


def test_luck_held_is_the_earlier_name_of_noise_reuse():
    assert read_rule({"rule": "llada", "luck": "held"}) == Rule(draws_first=True)
    assert read_rule({"luck": "fresh"}) == Rule(noise="fresh")
    assert rule_of_text("confidence,luck=fresh") == Rule(noise="fresh")
    assert Rule(noise="fresh").to_json() == {"noise": "fresh"}
    with pytest.raises(InputError, match="noise must be one of reuse, fresh"):
        read_rule({"luck": {"a": 1}})
    with pytest.raises(InputError, match="luck is the earlier name of noise"):
        read_rule({"luck": "fresh", "noise": "fresh"})
