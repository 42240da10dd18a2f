"""Which experts a mixture chooses and how it weighs them, against a definition with loops."""

from math import exp

import numpy as np
import pytest

from cutaway.compute.model.metadata import MetadataReader
from cutaway.compute.model.mixture import Mixture, mixture_of
from cutaway.errors import FormatError

COUNT = 12
SCORES = np.random.default_rng(2).normal(size=(20, COUNT)) * 2
BIAS = np.random.default_rng(3).normal(size=COUNT) * 0.3


def by_definition(mixture, scores, bias):
    """Of one row: {expert: weight}, the best first."""
    if mixture.gating == "softmax":
        weights = [exp(s) / sum(exp(other) for other in scores) for s in scores]
    else:
        weights = [1 / (1 + exp(-s)) for s in scores]
    wanted = [w + b for w, b in zip(weights, bias, strict=True)]
    each = COUNT // mixture.groups
    groups = [range(g * each, (g + 1) * each) for g in range(mixture.groups)]
    groups.sort(key=lambda group: -sum(sorted((wanted[e] for e in group), reverse=True)[:2]))
    allowed = [e for group in groups[: mixture.used_groups] for e in group]
    chosen = sorted(allowed, key=lambda e: (-wanted[e], e))[: mixture.used]
    whole = sum(weights[e] for e in chosen) if mixture.normed else 1
    return {e: weights[e] / whole * mixture.scale for e in chosen}


@pytest.mark.parametrize("gating", ["softmax", "sigmoid"])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("groups", "used_groups"), [(1, 1), (4, 2), (6, 3), (3, 1)])
def test_every_way_to_choose(gating, normed, biased, groups, used_groups):
    mixture = Mixture(
        used=3, gating=gating, normed=normed, scale=1.5, groups=groups, used_groups=used_groups
    )
    ids, weights = mixture.choose(SCORES, BIAS if biased else None)
    for row, scores in enumerate(SCORES):
        expected = by_definition(mixture, scores, BIAS if biased else 0 * BIAS)
        assert ids[row].tolist() == [*expected]
        np.testing.assert_allclose(weights[row], [*expected.values()], rtol=1e-12)


@pytest.mark.parametrize("tolerance", [0.02, 0.4])
def test_sparsemixer_shares_each_choice_among_those_that_score_nearly_as_much(tolerance):
    mixture = Mixture(used=3, gating="sparsemixer", normed=False, tolerance=tolerance)
    ids, weights = mixture.choose(SCORES)
    for row, scores in enumerate(SCORES.tolist()):
        left = dict(enumerate(scores))
        for rank in range(3):
            best = max(left, key=lambda e: (left[e], -e))
            near = [
                s for s in left.values() if left[best] - s <= tolerance * max(abs(s), left[best])
            ]
            assert ids[row, rank] == best
            expected = exp(left.pop(best)) / sum(map(exp, near))
            np.testing.assert_allclose(weights[row, rank], expected, rtol=1e-12)


def test_a_softmax_after_the_choice_is_one_of_all_normed():
    ids, weights = Mixture(used=4).choose(SCORES)
    chosen = np.exp(np.take_along_axis(SCORES, ids, axis=1))
    np.testing.assert_allclose(weights, chosen / chosen.sum(axis=1, keepdims=True))


def test_ties_go_to_the_lowest():
    for mixture in (Mixture(used=2), Mixture(used=2, gating="sigmoid", groups=4, used_groups=1)):
        ids, _ = mixture.choose(np.zeros((1, COUNT)), np.zeros(COUNT))
        assert ids.tolist() == [[0, 1]]


def read(**keys):
    metadata = {f"m.expert_{key}": value for key, value in ({"used_count": 2} | keys).items()}
    return mixture_of(MetadataReader(metadata, "m"), Mixture(used=1, normed=False), 8)


def test_what_a_file_says():
    assert read() == Mixture(used=2, normed=False)
    assert read(gating_func=1, weights_norm=True) == Mixture(used=2)
    assert read(gating_func=2, weights_scale=2.5).scale == 2.5
    assert read(gating_func=2).gating == "sigmoid"
    assert read(gating_func=3) == Mixture(used=2)
    assert read(weights_scale=0.0, group_count=0).scale == 1
    assert read(group_count=4, group_used_count=4) == read()  # all of them
    grouped = read(group_count=4, group_used_count=2)
    assert (grouped.groups, grouped.used_groups) == (4, 2)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"gating_func": 4}, "expert_gating_func is 4"),
        ({"group_count": 3, "group_used_count": 1}, "3 groups"),
        ({"group_count": 8, "group_used_count": 2}, "8 groups"),
        ({"group_count": 4, "group_used_count": 1, "used_count": 3}, "from 1 of 4 groups"),
        ({"group_count": 2, "group_used_count": 3}, "from 3 of 2 groups"),
        ({"used_count": 9}, "up to 8"),
    ],
)
def test_what_is_refused(keys, message):
    with pytest.raises(FormatError, match=message):
        read(**keys).check(8, "blk.0.")
