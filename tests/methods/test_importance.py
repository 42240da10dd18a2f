"""Estimates of n constrained texts against all texts, counted out; one text chosen by weight."""

from fractions import Fraction
from math import exp, lcm, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway import AsyncLLM, InputError
from cutaway.engine import ConstraintParams, StopParams
from cutaway.engine.events import neg_log_z
from cutaway.methods.importance import align, constraint_estimate, estimate, resample
from cutaway.sampling import Observe, SamplingParams, derive_seed, text_luck
from support.engine_mock import MockRequest, make_engine, run_to_end, steps_of
from support.mock_backend import END, VOCAB

PROMPT = (1, 2)
TEXTS = ["a", "ab", "abc", "c", "cab"]
TOKENS = (*b"abc", END)


def weights(tokens, table):
    """Small whole numbers, so that every probability is a fraction."""
    return {i: table[(sum(tokens) * 7 + len(tokens) * 3 + i) % len(table)] for i in TOKENS}


def model_of(table):
    def model(tokens):
        logits = np.full(VOCAB, -200, np.float32)
        for token_id, weight in weights(tokens, table).items():
            logits[token_id] = log(weight)
        return logits

    return model


def all_texts(table, text=b"", masked=Fraction(1), free=Fraction(1)):
    """(ids, probability under the mask, without it) of each that can be written."""
    whole = [t.encode() for t in TEXTS]
    longer = {t[len(text)] for t in whole if t.startswith(text) and t != text}
    if not longer:
        yield tuple(text), masked, free
        return
    each = weights((*PROMPT, *text), table)
    allowed = longer | ({END} if text in whole else set())
    left = sum(each[i] for i in allowed)
    for i in allowed:
        under, own = masked * Fraction(each[i], left), free * Fraction(each[i], sum(each.values()))
        if i == END:
            yield (*text, END), under, own
        else:
            yield from all_texts(table, text + bytes([i]), under, own)


def weights_drawn(table, count):
    """-ln w of each text, as the engine reports it, from as many seeds as it takes to see all."""
    found, seed = {}, 0
    while len(found) < count:
        engine = make_engine(model_of(table), max_num_seqs=16)
        for _ in range(16):
            MockRequest(
                PROMPT, SamplingParams(seed=seed), StopParams(max_tokens=8),
                observe=Observe(stages=True), constraint=ConstraintParams(choice=TEXTS),
            ).add_to(engine)  # fmt: skip
            seed += 1
        steps = steps_of(run_to_end(engine))
        for id in {step.id for step in steps}:
            mine = [step for step in steps if step.id == id]
            found[tuple(step.token_id for step in mine)] = neg_log_z(mine)
    return found


@settings(max_examples=8)
@given(st.lists(st.integers(1, 3), min_size=3, max_size=6))
def test_over_all_texts_the_estimates_are_the_figures_that_they_estimate(table):
    """Each text as often as it is drawn: what is averaged is then the expectation itself."""
    texts = [*all_texts(table)]
    assert sum(masked for _, masked, _ in texts) == 1
    drawn = weights_drawn(table, len(texts))
    assert drawn.keys() == {ids for ids, *_ in texts}
    every = lcm(*(masked.denominator for _, masked, _ in texts))
    population = [drawn[ids] for ids, masked, _ in texts for _ in range(int(masked * every))]
    found = estimate(population)
    chance = sum(free for *_, free in texts)
    kl = sum(float(q) * log(q / (p / chance)) for _, q, p in texts)
    assert found.n == every
    assert found.probability == pytest.approx(float(chance), rel=1e-6)  # logits are float32
    assert found.kl == pytest.approx(kl, abs=1e-6)


@given(st.lists(st.floats(0, 300), min_size=1, max_size=20))
def test_an_estimate_is_its_definition(each):
    w = np.exp(-np.array(each))
    found = estimate(each)
    assert found.probability == pytest.approx(w.mean(), rel=1e-9)
    assert found.kl == pytest.approx(np.mean(each) + log(w.mean()), abs=1e-9)
    assert found.effective_n == pytest.approx(w.sum() ** 2 / (w**2).sum(), rel=1e-9)
    assert found.kl >= 0


def test_weights_beyond_the_smallest_number_are_kept():
    found = estimate([2000.0, 2000.0 + log(3)])
    assert found.log_probability == pytest.approx(-2000 + log(2 / 3))
    assert found.effective_n == pytest.approx((4 / 3) ** 2 / (10 / 9))


@given(st.lists(st.floats(0, 50), min_size=1, max_size=20), st.integers(0, 2**64 - 1))
def test_the_luckiest_weight_is_taken(each, seed):
    scores = text_luck(seed, len(each)) - np.array(each)
    assert scores[resample(each, seed)] == scores.max()


def test_each_text_is_taken_as_often_as_its_weight_says():
    each = [log(2), log(4), log(4)]
    taken = np.bincount([resample(each, seed) for seed in range(4000)], minlength=3) / 4000
    assert taken == pytest.approx([0.5, 0.25, 0.25], abs=0.03)


# -- asked of a model --------------------------------------------------------------------------

ASKED = {
    "n": 6,
    "seed": 4,
    "temperature": 1,
    "top_p": 1,
    "choice": ("ab", "b", "aba"),
    "align": True,
}


def test_one_of_n_is_answered_and_each_weight_is_on_record(tiny):
    samples = tiny.generate("ab", **ASKED | {"align": False})
    logs = [sample.neg_log_z for sample in samples]
    assert all(value > 0 for value in logs)
    done = tiny.generate("ab", **ASKED)
    chosen = resample(logs, ASKED["seed"])
    assert done.text == samples[chosen].text
    assert done.seed == derive_seed(ASKED["seed"], chosen)
    assert (done.aligned.chosen, [*done.aligned.neg_log_z]) == (chosen, logs)
    assert sum(done.aligned.weights) == pytest.approx(1)
    assert done.aligned.weights[0] == pytest.approx(exp(-logs[0]) / sum(exp(-x) for x in logs))
    assert done.to_dict()["aligned"]["chosen"] == chosen
    assert constraint_estimate(samples) == constraint_estimate([done]) == estimate(logs)
    again = tiny.generate("ab", **ASKED | {"n": 1, "align": False, "seed": done.seed})
    assert (again.token_ids, again.fingerprint) == (done.token_ids, done.fingerprint)
    assert again.neg_log_z is None  # nobody asked


async def test_every_way_to_ask_chooses_the_same(tiny):
    expected = tiny.generate("ab", **ASKED)
    [other, same] = tiny.generate(["b", "ab"], **ASKED)
    assert (same.token_ids, same.aligned) == (expected.token_ids, expected.aligned)
    assert other.prompt_token_ids != same.prompt_token_ids
    [(_, bulk)] = tiny.generate_each(["ab"], **ASKED)
    assert bulk.aligned == expected.aligned
    assert align([s.finish() for s in tiny.streams("ab", **ASKED)]).aligned == expected.aligned
    async with AsyncLLM(tiny) as llm:
        assert (await llm.generate("ab", **ASKED)).aligned == expected.aligned


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"n": 1}, "align chooses one of n texts: give n, 2 or more"),
        ({"choice": ()}, "align weighs texts under a constraint: give one, such as json_schema"),
        ({"temperature": 0}, "align: at temperature 0 the n texts are the same"),
        ({"align": 1}, "align must be true or false, not 1"),
    ],
)
def test_what_has_no_weights_is_refused(tiny, changed, sentence):
    with pytest.raises(InputError, match=sentence):
        tiny.generate("ab", **ASKED | changed)


def test_where_nothing_is_estimated(tiny):
    free = {"align": False, "choice": ()}
    assert constraint_estimate(tiny.generate("ab", **ASKED | free, max_tokens=3)) is None
    greedy = {"align": False, "temperature": 0}
    assert constraint_estimate(tiny.generate("ab", **ASKED | greedy)) is None
