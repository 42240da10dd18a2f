"""The ledger: how many survived each stage, how much mass it removed, and whom."""

import math

import pytest
from hypothesis import given

from cutaway.sampling import StageReport, apply
from support.sampling_oracles import (
    HISTORIES,
    NOBODY,
    SETTINGS,
    best_first,
    chain_of,
    log_sum_exp,
    removed_mass,
    row,
    rows,
    scores_of,
    snapshots,
    top_k,
)


def expected_reports(chain, logits, history):
    states = snapshots(chain, logits, history)
    return [
        StageReport(
            stage,
            len(after),
            removed_mass(before, after),
            tuple(t for t in best_first(before) if t not in after)[:8],
            log_sum_exp(after),
            min(after.values()) if len(after) < len(before) else None,
        )
        for stage, before, after in zip(chain, states, states[1:], strict=False)
    ]


@given(rows(max_size=20), HISTORIES, SETTINGS)
def test_ledger_counts_weighs_and_names_the_removed(logits, history, settings):
    chain = chain_of(**settings)
    _, reports = apply(chain, logits, history)
    expected = expected_reports(chain, logits, history)
    assert [(r.stage, r.survivors, r.top_removed, r.min_kept_logit) for r in reports] == [
        (e.stage, e.survivors, e.top_removed, e.min_kept_logit) for e in expected
    ]
    for report, truth in zip(reports, expected, strict=True):
        assert report.removed_mass == pytest.approx(truth.removed_mass, rel=1e-12, abs=1e-12)
        assert report.log_sum_exp == pytest.approx(truth.log_sum_exp, rel=1e-12, abs=1e-12)


def test_ledger_of_a_worked_example():
    logits = row([math.log(p) for p in (0.1, 0.4, 0.3, 0.2)])
    _, reports = apply(chain_of(top_k=3, top_p=0.5), logits, NOBODY)
    first, second = reports
    assert (first.survivors, first.top_removed) == (3, (0,))
    assert first.removed_mass == pytest.approx(0.1, rel=1e-6)
    assert first.log_sum_exp == pytest.approx(math.log(0.9), rel=1e-6)
    assert (first.min_kept_logit, second.min_kept_logit) == (logits[3], logits[2])
    assert (second.survivors, second.top_removed) == (2, (3,))
    assert second.removed_mass == pytest.approx(0.2 / 0.9, rel=1e-6)


def test_top_removed_are_the_eight_likeliest_ties_by_id():
    values = [0.0, 5, 1, 1, 3, 2, -1, 2, 9, 1, 4, 0.5]
    _, (report,) = apply(chain_of(top_k=1), row(values), NOBODY)
    assert report.top_removed == (1, 10, 4, 5, 7, 2, 3, 9)
    assert set(report.top_removed).isdisjoint(top_k(scores_of(row(values)), 1))


def test_a_stage_that_removes_nobody_says_so():
    _, reports = apply(chain_of(temperature=0.5, top_k=9), row([1, 2]), NOBODY)
    told = [(r.survivors, r.removed_mass, r.top_removed, r.min_kept_logit) for r in reports]
    assert told == [(2, 0.0, (), None)] * 2
    assert reports[0].log_sum_exp == reports[1].log_sum_exp


def test_the_lowest_kept_logit_has_one_zero():
    _, (report,) = apply(chain_of(top_k=2), row([-0.0, 3, -1]), NOBODY)
    assert str(report.min_kept_logit) == "0.0"
