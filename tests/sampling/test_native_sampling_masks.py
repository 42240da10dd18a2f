"""Masks of allowed tokens: the draw among the allowed alone, natively as by the twin."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.errors import InputError
from cutaway.sampling import CompiledChain, History, Observe, RowDraw, SamplingParams, build_chain
from cutaway.sampling import sample as sample_rows
from cutaway.sampling.native import TWIN
from support.examples import few_or_many
from support.native_rows import ROWS, SETTINGS, TIERS, by_twin, extreme_rows, made, same

pytestmark = extreme_rows


def mask_of(allowed, vocab):
    mask = np.zeros(-(-vocab // 32), np.uint32)
    for token_id in allowed:
        mask[token_id // 32] |= np.uint32(1 << token_id % 32)
    return mask


def masked(vocab, allowed, *, spare=0, order=None, seed=5, position=9, forced=None, **given):
    """A draw that observes everything; spare: bits beyond the vocabulary that are set, too."""
    params = SamplingParams(**given)
    chain = build_chain(params, constrained=True)
    chain = chain if order is None else tuple(chain[i] for i in order(len(chain)))
    mask = None if allowed is None else mask_of(allowed, vocab)
    if mask is not None and spare:
        mask[-1] |= np.uint32(~((1 << ((vocab - 1) % 32 + 1)) - 1) & 0xFFFFFFFF)
    observe = Observe(top=5, track=(0,), stages=True, after_chain=True)
    compiled = CompiledChain(chain, params, ())
    return RowDraw(compiled, History((), [0, 0, 1]), seed, position, observe, forced, mask)


@few_or_many(80, 600, ROWS, SETTINGS, st.data())
def test_every_figure_equals_the_twins(row, given, data):
    ids = st.integers(0, len(row) - 1)
    few = st.sets(ids, min_size=1, max_size=20)
    allowed = data.draw(few | few.map(lambda out: {*range(len(row))} - out or {0}))
    order = data.draw(st.none() | st.just(lambda n: data.draw(st.permutations(range(n)))))
    forced = data.draw(st.none() | ids)
    spare = data.draw(st.booleans())
    draw = masked(len(row), allowed, spare=spare, order=order, forced=forced, **given)
    expected = by_twin(row[None], [draw])
    for tier in TIERS:
        assert same(sample_rows(row[None], [draw], tier=tier), expected), tier


@pytest.mark.parametrize("tier", [*TIERS, TWIN])
@pytest.mark.parametrize("given", [{"temperature": 0}, {"temperature": 1, "top_p": 1}, {}])
def test_the_draw_is_that_of_a_row_where_the_others_are_out_of_reach(given, tier):
    """So a forbidden token's luck and mass do not count."""
    for position in range(40):
        row = made(300, position, 2.0, None, 3)
        allowed = [*range(position, 300, 7)]
        low = np.full_like(row, -3e30)
        low[allowed] = row[allowed]
        draw = masked(300, allowed, position=position, **given)
        free = masked(300, None, position=position, **given)
        (one,), (other,) = sample_rows(row[None], [draw], tier=tier), by_twin(low[None], [free])
        assert one.token_id == other.token_id
        assert one.token_id in allowed


@pytest.mark.parametrize("tier", [*TIERS, TWIN])
@settings(max_examples=100)
@given(ROWS, SETTINGS, st.data())
def test_what_was_wanted_is_what_the_same_luck_draws_without_the_mask(tier, row, given, data):
    ids = st.integers(0, len(row) - 1)
    draw = masked(len(row), data.draw(st.sets(ids, min_size=1, max_size=20)), **given)
    forced = draw._replace(forced=data.draw(ids))
    unseen = draw._replace(observe=Observe(top=5))
    free = draw._replace(mask=None)
    rows = np.stack([row] * 4)
    drawn = sample_rows(rows, [draw, forced, unseen, free], tier=tier)
    assert [one.unconstrained_id for one in drawn] == [drawn[3].token_id] * 2 + [None, None]


@pytest.mark.parametrize("tier", ["", TWIN])
@pytest.mark.parametrize("first", ["processors", "constraint"])
def test_a_processor_is_called_once_a_row(first, tier):
    calls = []

    def processor(tokens, logits):
        calls.append(len(tokens))
        return logits

    params = SamplingParams(processors=(processor,), temperature=0)
    chain = sorted(build_chain(params, constrained=True), key=lambda stage: stage.name != first)
    draw = masked(9, range(9))._replace(compiled=CompiledChain(tuple(chain), params, ()))
    (drawn,) = sample_rows(np.eye(9, dtype=np.float32)[3:4], [draw], tier=tier)
    assert (drawn.unconstrained_id, len(calls)) == (3 if first == "processors" else None, 1)


@pytest.mark.parametrize("tier", [*TIERS, TWIN])
def test_the_ledger_shows_what_the_constraint_removed(tier):
    row = np.log(np.array([0.1, 0.4, 0.3, 0.2], np.float32))
    (drawn,) = sample_rows(row[None], [masked(4, [0, 2], temperature=0)], tier=tier)
    (report,) = drawn.observed.stages
    assert (report.stage.name, report.stage.rule) == ("constraint", {})
    assert (drawn.token_id, report.survivors, report.top_removed) == (2, 2, (1, 3))
    assert report.removed_mass == pytest.approx(0.6, rel=1e-6)
    assert report.min_kept_logit == row[0]
    assert drawn.observed.candidates[0].removed_by == 0


@pytest.mark.parametrize("tier", [*TIERS, TWIN])
def test_a_forced_token_does_not_ask_the_mask(tier):
    (drawn,) = sample_rows(np.zeros((1, 9), np.float32), [masked(9, [3], forced=5)], tier=tier)
    assert (drawn.token_id, drawn.sampled_id) == (5, 3)
    assert drawn.observed.final_rank is None


@pytest.mark.parametrize("tier", [*TIERS, TWIN])
@pytest.mark.parametrize("allowed", [[], [1]])
def test_a_mask_that_leaves_no_token_is_its_own_rows_error(allowed, tier):
    """Also where the filters before it have left none of those that it allows."""
    order = lambda n: [*range(1, n), 0]  # noqa: E731 - the constraint comes last
    draw = masked(40, allowed, spare=1, order=order, top_k=1, temperature=1)
    fine = masked(40, None, temperature=0)
    rows = np.zeros((2, 40), np.float32)
    failed, drawn = sample_rows(rows, [draw, fine], tier=tier)
    assert isinstance(failed, InputError)
    assert str(failed).startswith("the constraint allows no token at position 9: loosen it")
    assert drawn.token_id == 0


def test_without_a_mask_the_stage_removes_nothing():
    row = made(50, 1, 2.0, None, 0)[None]
    (drawn,) = sample_rows(row, [masked(50, None, temperature=0)])
    assert [(r.survivors, r.removed_mass) for r in drawn.observed.stages] == [(50, 0.0)]


@pytest.mark.parametrize("mask", [np.zeros(2, np.int32), np.zeros(3, np.uint32)])
def test_a_mask_of_another_shape_is_refused(mask):
    draw = masked(50, [1])._replace(mask=mask)
    with pytest.raises(ValueError, match=r"a mask of 50 tokens is uint32 \(2,\)"):
        sample_rows(np.zeros((1, 50), np.float32), [draw])


def test_a_mask_needs_its_stage():
    params = SamplingParams()
    plain = CompiledChain(build_chain(params), params, ())
    draw = masked(50, [1])._replace(compiled=plain)
    with pytest.raises(ValueError, match="needs a chain with the stage 'constraint'"):
        sample_rows(np.zeros((1, 50), np.float32), [draw])
