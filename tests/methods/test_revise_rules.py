"""What each rule leaves as it is, on a model whose every text can be enumerated."""

from collections import Counter
from itertools import product

import numpy as np
import pytest

from cutaway.features.revise import How, _plan, _Revision, _silent, rules
from cutaway.features.revise.rules import Better, Gibbs, Metropolis, PlaceReader, RevisedText
from cutaway.methods.rows import ScoredText
from support.revise_table import ALLOWED, TOKENS, Table

HEAD = (0,)
POWERS = (1.0, 2.5)


@pytest.fixture(scope="module")
def table():
    return Table()


def text_of(table, ids):
    [logprobs] = table.known([ScoredText(ids, len(HEAD))])
    return RevisedText(ids, len(HEAD), tuple(logprobs))


def replaced(ids, position, values):
    return (*ids[:position], *values, *ids[position + len(values) :])


def softmax(x):
    shares = np.exp(x - np.max(x))
    return shares / shares.sum()


def balanced(pi, moves):
    """Whether what flows from each text to each other flows back: moves[x, y] is a chance."""
    for x in pi:
        assert sum(moves.get((x, y), 0) for y in pi) <= 1 + 1e-9
    for (x, y), chance in moves.items():
        if x != y:
            assert pi[x] * chance == pytest.approx(pi[y] * moves.get((y, x), 0), rel=1e-6)


# -- every chance of moving, exactly -----------------------------------------------------------


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("candidates", [1, 2, 4])
@pytest.mark.parametrize("position", [1, 2])
def test_gibbs_is_in_balance_with_any_number_of_candidates(
    table, monkeypatch, power, candidates, position
):
    """Each way the two draws can come out is forced; the shares are those on record."""
    pi = table.power(HEAD, 2, power)
    rule = Gibbs(PlaceReader(table, ALLOWED, candidates), power)
    moves, reached = Counter(), []
    for x in pi:
        prior = power * table.row(x[:position])[0].astype(float)
        best = sorted(TOKENS, key=lambda v: (-prior[v], v))[:candidates]
        rest = [v for v in TOKENS if v not in best]
        text = text_of(table, x)
        if not rest:
            rest, shares = [None], [1.0]
        else:
            shares = softmax(prior[rest])
        if x[position] in best:  # and from any other token to these
            reached += [(x, v) for v in TOKENS]
        for (other, r), drawn in product(zip(rest, shares, strict=True), TOKENS):
            forced = iter([[other], [drawn]] if other is not None else [[drawn]])
            monkeypatch.setattr(
                rules, "gumbel", lambda s, p, ids, forced=forced: 1e6 * np.isin(ids, next(forced))
            )
            made = rule.propose(text, position, 0)
            if made.ids == (drawn,):  # else it was not among those tried
                assert made.log_ratio == 0
                moves[x, replaced(x, position, made.ids)] += r * np.exp(made.forward)
                new = text_of(table, replaced(x, position, made.ids))
                assert made.logprobs == new.logprobs[position - 1 :]
    for x in pi:
        assert sum(moves[x, y] for y in pi) == pytest.approx(1)
    balanced(pi, moves)
    assert all(moves[x, replaced(x, position, (v,))] > 0 for x, v in reached)


def test_gibbs_over_all_tokens_is_the_conditional_enumerated(table):
    pi = table.power(HEAD, 3, 1.0)
    rule = Gibbs(PlaceReader(table, ALLOWED, 4), 1.0)
    for seed, x in enumerate(pi):
        made = rule.propose(text_of(table, x), 2, seed)
        every = {v: pi[replaced(x, 2, (v,))] for v in TOKENS}
        share = every[made.ids[0]] / sum(every.values())
        assert np.exp(made.forward) == pytest.approx(share, rel=1e-9)
        assert np.exp(made.reverse) == pytest.approx(every[x[2]] / sum(every.values()), rel=1e-9)


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize(("span", "position"), [(None, 1), (1, 1), (2, 2)])
def test_metropolis_accepts_by_the_ratio_enumerated(table, monkeypatch, power, span, position):
    pi = table.power(HEAD, 2, power)
    rule, moves = Metropolis(table, ALLOWED, power, span), Counter()
    count = min(span or 2, 3 - position)
    for x in pi:
        for values in product(TOKENS, repeat=count):
            asked = []

            def drawn(head, count, temperature, seed, values=values, asked=asked):
                asked.append((head, count, temperature))
                return values

            monkeypatch.setattr(table, "drawn", drawn)
            made = rule.propose(text_of(table, x), position, 0)
            assert asked == [(x[:position], count, 1 / power)]
            q = 1.0
            for i, v in enumerate(values):
                z = table.row((*x[:position], *values[:i]))[0][TOKENS] / np.float32(1 / power)
                q *= softmax(z.astype(float))[TOKENS.index(v)]
            assert np.exp(made.forward) == pytest.approx(q, rel=1e-6)
            y = replaced(x, position, values)
            assert made.logprobs == text_of(table, y).logprobs[position - 1 :]
            moves[x, y] += q * min(1.0, float(np.exp(made.log_ratio)))
    balanced(pi, moves)


def test_metropolis_at_power_1_takes_every_suffix_that_the_model_draws(monkeypatch):
    """Where all tokens add text there is nothing to put right."""
    table, everything = Table(), np.ones_like(ALLOWED)
    rule = Metropolis(table, everything, 1.0, None)
    for seed in range(20):
        made = rule.propose(text_of(table, (0, 1, 3, 4)), 2, seed)
        assert made.log_ratio == pytest.approx(0, abs=1e-9)


def test_metropolis_replaces_nothing_that_adds_no_text(table):
    rule = Metropolis(table, ALLOWED, 2.0, None)
    made = rule.propose(text_of(table, (0, 1, 3, 2, 4)), 1, 3)
    assert len(made.ids) == 2


def test_better_climbs_to_a_text_that_no_single_candidate_makes_likelier(table):
    pi = table.power(HEAD, 3, 1.0)
    for x in [*pi][::5]:
        text, before = text_of(table, x), -np.inf
        rule = Better(PlaceReader(table, ALLOWED, 4))
        while text.logprob > before:
            before = text.logprob
            for position in (3, 1, 2):
                made = rule.propose(text, position, 0)
                best = max(pi[replaced(text.ids, position, (v,))] for v in TOKENS)
                assert (made.log_ratio == 0) == (best > pi[text.ids] * (1 + 1e-9))
                if made.log_ratio == 0:
                    assert pi[text.with_(made).ids] == best
                    text = text.with_(made)
        neighbours = [replaced(text.ids, i, (v,)) for i in (1, 2, 3) for v in TOKENS]
        assert pi[text.ids] == max(pi[y] for y in neighbours)


# -- many sweeps, with the luck of a seed ------------------------------------------------------


def swept(table, rule, power, *, sweeps, candidates=2, span=None, seed=5):
    how = How(rule, 1.0, sweeps, candidates, power, span, "loop", None, seed)
    start = text_of(table, (0, 1, 1))
    revision = _Revision(_plan(table, ALLOWED, how, start), how, _silent)
    last = revision.run(start)
    return [*(tried.text for tried in revision.trials), last]


@pytest.mark.parametrize(
    ("rule", "more"),
    [("gibbs", {"candidates": 2}), ("gibbs", {"candidates": 4}), ("metropolis", {})],
)
def test_the_histogram_of_many_sweeps_is_the_model_s_own(table, rule, more):
    """Total variation from the enumerated distribution; from that of a uniform one it is 0.4."""
    pi = table.power(HEAD, 2, 1.0)
    texts = swept(table, rule, 1.0, sweeps=800, **more)
    seen = Counter(text.ids for text in texts)
    assert {*seen} <= {*pi}
    assert sum(abs(seen[x] / len(texts) - pi[x]) for x in pi) / 2 < 0.08
    for text in texts[-3:]:  # log-probabilities are kept up to date
        assert text == text_of(table, text.ids)


def test_the_same_seed_tries_the_same(table):
    for rule in ("gibbs", "metropolis"):
        one, two, other = (
            [text.ids for text in swept(table, rule, 1.0, sweeps=20, seed=s)] for s in (1, 1, 2)
        )
        assert one == two != other


def test_a_trial_s_luck_does_not_depend_on_how_many_come_after(table):
    few, many = (swept(table, "gibbs", 1.0, sweeps=n) for n in (3, 9))
    assert many[:6] == few[:6]
