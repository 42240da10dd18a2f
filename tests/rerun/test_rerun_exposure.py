"""A human text read on and written on, against brute force from full logits."""

import numpy as np
import pytest

from cutaway import InputError
from cutaway.features.experiments import exposure
from cutaway.sampling import derive_seed
from support.full_logits import probabilities

TEXT = "a harbour, an old ship and a bad map; " * 4
OPTIONS = {"before": 9, "tokens": 12, "points": 4, "seed": 3}


@pytest.fixture(scope="module")
def done(tiny):
    return exposure(tiny, TEXT, **OPTIONS)


def test_windows_are_pieces_of_the_text_that_do_not_overlap_after_the_cut(tiny, done):
    ids = tiny.tokenize(TEXT, add_bos=False)
    assert len(done.windows) == 4
    assert (done.windows[0].start, done.windows[-1].start) == (0, len(ids) - 21)
    for window in done.windows:
        assert window.context == tuple(ids[window.start : window.start + 9])
        assert window.human == tuple(ids[window.start + 9 : window.start + 21])
    starts = [window.start for window in done.windows]
    assert min(np.diff(starts)) >= 12


def test_the_models_own_text_is_a_plain_sample(tiny, done):
    for i, window in enumerate(done.windows):
        plain = tiny.generate(
            [1, *window.context], temperature=1, top_p=1, max_tokens=12, ignore_eos=True,
            seed=derive_seed(3, i),
        )  # fmt: skip
        assert plain.token_ids == window.own


def test_every_figure_is_what_full_logits_say(tiny, done):
    for i, window in enumerate(done.windows):
        for tokens, bits, expects in (
            (window.human, done.reads, done.expects_human),
            (window.own, done.writes, done.expects_own),
        ):
            p = probabilities(tiny, [1, *window.context, *tokens])[len(window.context) : -1]
            chosen = p[np.arange(12), list(tokens)]
            np.testing.assert_allclose(bits[i], -np.log2(chosen), atol=1e-9)
            np.testing.assert_allclose(expects[i], -(p * np.log2(p)).sum(axis=1), atol=1e-9)


def test_by_position_is_the_mean_over_windows_of_each_band(done):
    first, _, third, *_, last = done.by_position("gap")
    assert first.mean == pytest.approx(done.gap[:, 0].mean())
    assert third.mean == pytest.approx(done.gap[:, 2:4].mean())
    assert last.mean == pytest.approx(done.gap[:, 8:].mean())
    assert len(done.to_dict()["mean"]["gap"]) == len(done.to_dict()["positions"]) == 5


def test_differences_are_own_less_human_and_begin_at_nothing(done):
    np.testing.assert_array_equal(done.gap, done.writes - done.reads)
    np.testing.assert_array_equal(done.drift, done.expects_own - done.expects_human)
    assert not done.drift[:, 0].any()
    assert done.drift.any()


def test_no_stop_condition_ends_a_text(tiny):
    plain = exposure(tiny, TEXT, **OPTIONS)
    stops = {"stop": ["a", "b"], "stop_token_ids": plain.windows[0].own}
    assert exposure(tiny, TEXT, **OPTIONS, **stops).windows == plain.windows


def test_a_short_text_has_fewer_windows(tiny):
    few = exposure(tiny, TEXT[:60], **OPTIONS | {"points": 100})
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
def test_what_cannot_be_is_refused(tiny, wrong, sentence):
    options = {"text": TEXT, **OPTIONS} | wrong
    with pytest.raises(InputError, match=sentence):
        exposure(tiny, **options)
