"""Native sampler and NumPy twin: equal in every figure, on every instruction set.

With masks the draw is among the allowed alone; rows are observed, and tokens forced.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.errors import InputError
from cutaway.sampling import (
    PRESETS,
    CompiledChain,
    History,
    Observe,
    RowDraw,
    SamplingParams,
    build_chain,
    read_distributions,
    sample,
)
from cutaway.sampling import sample as sample_rows
from cutaway.sampling.native import TWIN
from support.examples import few_or_many
from support.native_rows import (
    ROWS,
    SETTINGS,
    TIERS,
    assert_as_twin,
    draw_by_twin,
    draw_noise,
    draws,
    extreme_rows,
    row_draw,
    same,
)

pytestmark = extreme_rows


CHAINS = {
    "default": {},
    "greedy": {"temperature": 0},
    "pure": {"temperature": 1, "top_p": 1},
    "hot": {"temperature": 2.0, "top_p": 1},
    "top_k": {"top_k": 40, "top_p": 1},
    "many": {"top_k": 3000, "top_p": 0.95},
    "most": {"top_k": 30000, "top_p": 0.99, "temperature": 1.5},
    "min_p": {"min_p": 0.05, "top_p": 1, "temperature": 1},
    "tight": {"top_p": 1 - 1e-12, "temperature": 1},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.1},
    "greedy penalties": {"repetition_penalty": 1.2, "temperature": 0},
    "bias": {"logit_bias": {0: 100.0, 49151: -3.25}},
    "typical": {"typical_p": 0.9, "top_p": 1},
    "sigma": {"top_n_sigma": 1.5, "top_p": 1},
    "xtc": {"xtc_probability": 1, "xtc_threshold": 0.01, "top_p": 1},
    "dry": {"dry_multiplier": 0.8, "dry_breakers": (12,), "temperature": 0},
}
HISTORY = (tuple(range(0, 4000, 7)), [5, 5, 6, 49151, 12, 5, 5, 6])


@pytest.mark.parametrize("name", CHAINS)
def test_a_whole_vocabulary(name):
    shapes = [(3.0, None, 0), (1.0, None, 300), (0.01, None, 0), (3.0, 0.25, 5), (400.0, None, 1)]
    for i, shape in enumerate(shapes):
        logits = draw_noise(49152, i, *shape)[None]
        for ledger in (False, True):
            asked = [row_draw(history=HISTORY, seed=i, position=i, stages=ledger, **CHAINS[name])]
            assert_as_twin(logits, asked)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(4097, 12000), st.integers(0, 2**32), st.sampled_from([0.0, 0.01, 0.5, 1.0, 4.0]),
    st.sampled_from([None, 0.25]), st.floats(0, 1, exclude_min=True), st.sampled_from([1, 0.7]),
    st.booleans(),
)  # fmt: skip
def test_top_p_of_many_cuts_where_the_definition_does(n, seed, spread, grid, share, heat, ledger):
    """Flat rows, and ties at the very target: all equal, with p a whole number of tokens."""
    logits = draw_noise(n, seed, spread, grid, 3)[None]
    p = max(1, round(share * n)) / n if spread == 0 else share
    asked = [row_draw(temperature=heat, top_p=p, seed=seed, stages=ledger)]
    assert_as_twin(logits, asked)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_on_a_whole_vocabulary(preset):
    logits = draw_noise(49152, 9, 2.0, None, 50)[None]
    given = {"top_k": 200, "top_p": 0.8, "min_p": 0.02, "temperature": 1.4, "preset": preset}
    asked = [row_draw(stages=True, history=HISTORY, repetition_penalty=1.1, **given)]
    assert_as_twin(logits, asked)


def test_a_large_vocabulary():
    logits = np.stack([draw_noise(262144, 1, 3.0, None, 9), draw_noise(262144, 2, 3.0, 0.5, 0)])
    asked = [row_draw(), row_draw(temperature=1, top_p=1)]
    assert_as_twin(logits, asked)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", CHAINS)
def test_distributions_after_the_stages(name, tier):
    shapes = [(3.0, None, 0), (1.0, None, 300), (0.01, None, 0), (3.0, 0.25, 5), (1e37, None, 1)]
    logits = np.stack([draw_noise(3000, i, *shape) for i, shape in enumerate(shapes)])
    asked = [row_draw(history=HISTORY, position=i, **CHAINS[name]) for i in range(len(shapes))]
    twin = read_distributions(logits, asked, with_chances=True, tier=TWIN)
    assert twin.chances.sum(axis=1) == pytest.approx(np.ones(len(shapes)))
    native = read_distributions(logits, asked, with_chances=True, tier=tier)
    assert (native.entropies == twin.entropies).all() and (native.chances == twin.chances).all()
    alone = read_distributions(logits, asked, with_chances=False, tier=tier)
    assert (alone.entropies == twin.entropies).all() and alone.chances is None


def test_luck_alone_decides_between_equals():
    """All logits equal: the bound that spares logarithms must never spare the winner."""
    logits = np.zeros((1, 5000), np.float32)
    for position in range(150):
        asked = [row_draw(position=position, temperature=1, top_p=1)]
        assert_as_twin(logits, asked)


@pytest.mark.parametrize("spread", [0.5, 3.0, 12.0])
def test_pure_sampling_draws_the_twins_token_at_many_positions(spread):
    logits = draw_noise(3001, 4, spread, None, 0)[None]
    for position in range(100):
        asked = [row_draw(position=position, seed=2**40 + 1, temperature=1, top_p=1)]
        assert_as_twin(logits, asked)


@pytest.mark.parametrize("value", [2e9, 3e30, -2e9, 1e-45])
def test_scores_too_coarse_for_luck_go_to_the_lowest_id(value):
    logits = np.full((1, 700), value, np.float32)
    logits[0, 0] = -3e30
    asked = [row_draw(temperature=1, top_p=1, seed=s) for s in range(9)]
    rows = np.repeat(logits, 9, axis=0)
    assert_as_twin(rows, asked)


def test_both_zeros_are_one_value():
    logits = np.array([[-1.0, -0.0, 0.0, -0.0, 0.0, -2.0]], np.float32)
    for chain in ({"temperature": 0}, {"top_k": 2}, {"top_p": 0.3, "temperature": 1}):
        asked = [row_draw(stages=True, **chain)]
        assert_as_twin(logits, asked)


# -- masks -----------------------------------------------------------------------------------------


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
    expected = draw_by_twin(row[None], [draw])
    for tier in TIERS:
        assert same(sample_rows(row[None], [draw], tier=tier), expected), tier


@pytest.mark.parametrize("tier", [*TIERS, TWIN])
@pytest.mark.parametrize("given", [{"temperature": 0}, {"temperature": 1, "top_p": 1}, {}])
def test_the_draw_is_that_of_a_row_where_the_others_are_out_of_reach(given, tier):
    """So a forbidden token's luck and mass do not count."""
    for position in range(40):
        row = draw_noise(300, position, 2.0, None, 3)
        allowed = [*range(position, 300, 7)]
        low = np.full_like(row, -3e30)
        low[allowed] = row[allowed]
        draw = masked(300, allowed, position=position, **given)
        free = masked(300, None, position=position, **given)
        (one,), (other,) = (
            sample_rows(row[None], [draw], tier=tier),
            draw_by_twin(low[None], [free]),
        )
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
    row = draw_noise(50, 1, 2.0, None, 0)[None]
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


# -- observing a row, and forcing its token --------------------------------------------------------


TOPS = st.sampled_from([0, 1, 2, 5, 20, 300, 1000])


def observes(ids, most):
    """One id may be tracked twice."""
    track = st.lists(ids, max_size=most).map(tuple)
    return st.builds(
        Observe, top=TOPS, track=track, stages=st.booleans(), after_chain=st.booleans()
    )


@st.composite
def observed(draw):
    """A row and a draw that may observe it; more often than not its token is given."""
    row = draw(ROWS)
    ids = st.integers(0, len(row) - 1)
    likely = st.sampled_from(np.argsort(-row, kind="stable")[:3].tolist())
    forced = draw(st.none() | ids | likely)
    observe = draw(st.none() | observes(ids, 8) | observes(ids, 8))
    return row, draw(draws())._replace(observe=observe, forced=forced)


@few_or_many(100, 1200, observed())
def test_every_observed_figure_equals_the_twins(case):
    row, asked = case
    kept = row.copy()
    expected = draw_by_twin(row[None], [asked])
    for tier in TIERS:
        assert same(sample(row[None], [asked], tier=tier), expected), tier
    assert (row.view(np.uint32) == kept.view(np.uint32)).all()


@settings(max_examples=200)
@given(observed())
def test_observing_changes_nothing(case):
    """The same token by the same luck, the same hash."""
    row, asked = case
    seen, unobserved = sample(np.stack([row] * 2), [asked, asked._replace(observe=None)])
    assert same([seen._replace(observed=None)], [unobserved])


@settings(max_examples=200)
@given(observed())
def test_a_forced_token_leaves_what_would_be_drawn(case):
    row, asked = case
    forced, free = sample(np.stack([row] * 2), [asked, asked._replace(forced=None)])
    assert forced.sampled_id == free.token_id == free.sampled_id
    assert forced.token_id == (free.sampled_id if asked.forced is None else asked.forced)


@settings(max_examples=100)
@given(st.lists(draws(), min_size=1, max_size=5), st.integers(1, 900), st.data())
def test_rows_of_a_batch_do_not_notice_each_other(asked, n, data):
    rows = np.stack([draw_noise(n, i, 3.0, None, 2) for i in range(len(asked))])
    ids = st.integers(0, n - 1)
    observe = st.none() | observes(ids, 4)
    asked = [
        r._replace(observe=data.draw(observe), forced=data.draw(st.none() | ids)) for r in asked
    ]
    alone = [draw_by_twin(row[None], [r])[0] for row, r in zip(rows, asked, strict=True)]
    assert same(sample(rows, asked), alone)


TRACK = (0, 49151, 5, 17, 17)
OBSERVED_CHAINS = {
    "default": {},
    "greedy": {"temperature": 0, "repetition_penalty": 1.3},
    "pure": {"temperature": 1, "top_p": 1},
    "top_k": {"top_k": 3000, "top_p": 0.9, "temperature": 1.5},
    "min_p": {"min_p": 0.05, "top_p": 1, "temperature": 1},
    "bias": {"logit_bias": {5: 9.5, 49151: -3.25}, "presence_penalty": 0.5},
}


def observed_draws(history=(5, 5, 17), **settings):
    """Of one chain: drawn, forced, and without candidates."""
    plain = row_draw(history=((5, 9), history), seed=7, **settings)
    whole = Observe(top=20, track=TRACK, stages=True, after_chain=True)
    return [
        plain._replace(observe=whole),
        plain._replace(observe=whole, forced=17),
        plain._replace(observe=Observe(stages=True)),
    ]


@pytest.mark.parametrize("name", OBSERVED_CHAINS)
def test_a_whole_vocabulary_observed(name):
    asked = observed_draws(**OBSERVED_CHAINS[name])
    for i, shape in enumerate([(3.0, None, 0), (1.0, None, 300), (3.0, 0.25, 5), (40.0, None, 1)]):
        rows = np.repeat(draw_noise(49152, i, *shape)[None], len(asked), axis=0)
        assert_as_twin(rows, asked)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset(preset):
    asked = observed_draws(preset=preset, top_k=200, top_p=0.8, min_p=0.02, repetition_penalty=1.1)
    rows = np.repeat(draw_noise(49152, 9, 2.0, None, 50)[None], len(asked), axis=0)
    assert_as_twin(rows, asked)


@pytest.mark.parametrize("ids", [{"observe": Observe(top=1, track=(9,))}, {"forced": 9}])
def test_an_id_beyond_the_vocabulary_is_its_own_rows_error(ids):
    fine = row_draw()
    wrong, right = sample(np.zeros((2, 9), np.float32), [fine._replace(**ids), fine])
    assert isinstance(wrong, InputError) and "9" in str(wrong)
    assert right.token_id in range(9)
