"""Looking at a row, and forcing its token: natively as its definition, to the last bit."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.errors import InputError
from cutaway.sampling import PRESETS, Look, Request, sample
from support.native_rows import (
    ROWS,
    TIERS,
    by_twin,
    made,
    natively,
    needs_native,
    request,
    requests,
    same,
)

pytestmark = [
    needs_native,
    pytest.mark.filterwarnings("ignore:overflow"),
    pytest.mark.filterwarnings("ignore:invalid value"),
    pytest.mark.filterwarnings("ignore:divide by zero"),
]

TOPS = st.sampled_from([0, 1, 2, 5, 20, 300, 10**6])


@st.composite
def looking(draw: st.DrawFn) -> tuple[np.ndarray, Request]:
    """A row and a request that looks at it; more often than not its token is given."""
    row = draw(ROWS)
    ids = st.integers(0, len(row) - 1)
    watch = tuple(draw(st.lists(ids, max_size=8)))  # one may stand there twice
    likely = st.sampled_from(np.argsort(-row, kind="stable")[:3].tolist())
    forced = draw(st.none() | ids | likely)
    return row, draw(requests())._replace(look=Look(draw(TOPS), watch), forced=forced)


@settings(max_examples=1200)
@given(looking())
def test_every_figure_equals_the_twins(case):
    row, asked = case
    kept = row.copy()
    expected = by_twin(row[None], [asked])
    for tier in TIERS:
        assert same(sample(row[None], [asked], tier=tier), expected), tier
    assert (row.view(np.uint32) == kept.view(np.uint32)).all()


@settings(max_examples=200)
@given(looking())
def test_whoever_looks_changes_nothing(case):
    """The same token by the same luck, the same hash, the same ledger."""
    row, asked = case
    (seen,), (blind,) = sample(row[None], [asked]), sample(row[None], [asked._replace(look=None)])
    assert same([seen._replace(observed=None)], [blind])


@settings(max_examples=200)
@given(looking())
def test_a_forced_token_leaves_what_would_be_drawn(case):
    row, asked = case
    (forced,), (free,) = (
        sample(row[None], [asked]),
        sample(row[None], [asked._replace(forced=None)]),
    )
    assert forced.own == free.draw.token_id == free.own
    assert forced.draw.token_id == (free.own if asked.forced is None else asked.forced)


@settings(max_examples=100)
@given(st.lists(requests(), min_size=1, max_size=5), st.integers(1, 900), st.data())
def test_rows_of_a_batch_do_not_notice_each_other(asked, n, data):
    rows = np.stack([made(n, i, 3.0, None, 2) for i in range(len(asked))])
    ids = st.integers(0, n - 1)
    looks = st.none() | st.builds(Look, TOPS, st.lists(ids, max_size=4).map(tuple))
    asked = [r._replace(look=data.draw(looks), forced=data.draw(st.none() | ids)) for r in asked]
    alone = [by_twin(row[None], [r])[0] for row, r in zip(rows, asked, strict=True)]
    assert same(sample(rows, asked), alone)


WATCH = (0, 49151, 5, 17, 17)
CHAINS = {
    "default": {},
    "greedy": {"temperature": 0, "repetition_penalty": 1.3},
    "pure": {"temperature": 1, "top_p": 1},
    "top_k": {"top_k": 3000, "top_p": 0.9, "temperature": 1.5},
    "min_p": {"min_p": 0.05, "top_p": 1, "temperature": 1},
    "bias": {"logit_bias": {5: 9.5, 49151: -3.25}, "presence_penalty": 0.5},
}


def looks(history: Sequence[int] = (5, 5, 17), **settings: object) -> list[Request]:
    """Of one chain: drawn, forced, and without candidates."""
    plain = request(history=((5, 9), history), seed=7, ledger=True, **settings)
    return [
        plain._replace(look=Look(20, WATCH)),
        plain._replace(look=Look(20, WATCH), forced=17),
        plain._replace(look=Look(0, ())),
    ]


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", CHAINS)
def test_a_whole_vocabulary(name, tier):
    asked = looks(**CHAINS[name])
    for i, shape in enumerate([(3.0, None, 0), (1.0, None, 300), (3.0, 0.25, 5), (40.0, None, 1)]):
        rows = np.repeat(made(49152, i, *shape)[None], len(asked), axis=0)
        assert same(natively(rows, asked, tier), by_twin(rows, asked))


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset(preset):
    asked = looks(preset=preset, top_k=200, top_p=0.8, min_p=0.02, repetition_penalty=1.1)
    rows = np.repeat(made(49152, 9, 2.0, None, 50)[None], len(asked), axis=0)
    for tier in TIERS:
        assert same(natively(rows, asked, tier), by_twin(rows, asked))


@pytest.mark.parametrize("ids", [{"look": Look(1, (9,))}, {"forced": 9}])
def test_an_id_beyond_the_vocabulary_is_its_own_rows_error(ids):
    fine = request()
    wrong, right = sample(np.zeros((2, 9), np.float32), [fine._replace(**ids), fine])
    assert isinstance(wrong, InputError) and "9" in str(wrong)
    assert right.draw.token_id in range(9)
