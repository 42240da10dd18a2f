"""SamplingParams: what it takes, and the one sentence that names the field it does not."""

import dataclasses
import gc
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.base.checks import shown
from cutaway.errors import InputError
from cutaway.sampling import (
    PRESETS,
    CompiledChain,
    History,
    Observe,
    ReadRow,
    RowDraw,
    SamplingParams,
    build_chain,
    read_rows,
    sample,
)
from support.native_rows import draw_by_twin, needs_native, row_draw
from support.sampling_oracles import (
    OFF,
    best_first,
    chain_of,
    ln,
    probabilities,
    row,
    rows,
    scores_of,
    snapshots,
)

NUMBERS = ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty",
           "frequency_penalty"]  # fmt: skip
NOT_NUMBERS = [math.nan, math.inf, -math.inf, True, False, "0.5", None, [0.5], 1j, 10**400]
NOT_INTEGERS = [math.nan, math.inf, 1.0, True, "1", [1], 1j]

OUT_OF_RANGE = [
    ({"temperature": -0.1}, "0.01 and 100"),
    ({"temperature": 0.0099}, "0 (greedy)"),
    ({"temperature": 100.1}, "0.01 and 100"),
    ({"temperature": 5e-324}, "0.01 and 100"),
    ({"top_k": -1}, "0 or more"),
    ({"top_p": 0}, "above 0"),
    ({"top_p": -0.5}, "above 0"),
    ({"top_p": math.nextafter(1, 2)}, "at most 1"),
    ({"min_p": -1e-9}, "at least 0"),
    ({"min_p": 1}, "below 1"),
    ({"repetition_penalty": 0.009}, "between 0.01 and 100"),
    ({"repetition_penalty": -1}, "between 0.01 and 100"),
    ({"repetition_penalty": 100.5}, "between 0.01 and 100"),
    ({"presence_penalty": -2.01}, "-2 and 2"),
    ({"presence_penalty": 2.01}, "-2 and 2"),
    ({"frequency_penalty": -2.01}, "-2 and 2"),
    ({"frequency_penalty": 2.01}, "-2 and 2"),
    ({"logit_bias": {7: 100.1}}, "logit_bias[7]"),
    ({"logit_bias": {7: -100.1}}, "-100 and 100"),
    ({"logit_bias": {7: math.nan}}, "logit_bias[7]"),
    ({"logit_bias": {7: True}}, "logit_bias[7]"),
    ({"logit_bias": {7: "1"}}, "logit_bias[7]"),
    ({"logit_bias": {1: 1, -1: 1}}, "token id"),
    ({"logit_bias": {"7": 1}}, "token id"),
    ({"logit_bias": {True: 1}}, "token id"),
    ({"logit_bias": {1.0: 1}}, "token id"),
    ({"logit_bias": [7]}, "map token ids"),
    ({"logit_bias": None}, "map token ids"),
    ({"seed": -1}, "18446744073709551615"),
    ({"seed": 2**64}, "18446744073709551615"),
    ({"preset": "openai"}, "llama.cpp"),
    ({"preset": ""}, "cutaway"),
    ({"preset": None}, "cutaway"),
    ({"preset": ["hf"]}, "cutaway"),
    ({"processors": 5}, "callables"),
    ({"processors": None}, "callables"),
    ({"processors": ("mask",)}, "callables"),
    ({"processors": len}, "callables"),
]
IN_RANGE = [
    {"temperature": 0}, {"temperature": 0.01}, {"temperature": 100}, {"temperature": 1},
    {"top_k": 0}, {"top_k": 10**12}, {"top_p": 1}, {"top_p": 1e-300}, {"min_p": 0},
    {"min_p": math.nextafter(1, 0)}, {"repetition_penalty": 100}, {"repetition_penalty": 0.5},
    {"presence_penalty": -2}, {"presence_penalty": 2}, {"frequency_penalty": -2},
    {"frequency_penalty": 2}, {"logit_bias": {}}, {"logit_bias": {0: -100, 10**6: 100}},
    {"seed": None}, {"seed": 0}, {"seed": 2**64 - 1}, {"processors": (max,)},
    {"temperature": np.float64(0.5)},
    *({"preset": preset} for preset in PRESETS),
]  # fmt: skip


def complaint(settings):
    with pytest.raises(InputError) as caught:
        SamplingParams(**settings)
    return str(caught.value)


@pytest.mark.parametrize(("settings", "word"), OUT_OF_RANGE)
def test_out_of_range_names_the_field_and_the_range(settings, word):
    sentence = complaint(settings)
    assert sentence.startswith(next(iter(settings)))
    assert word in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize("field", NUMBERS)
@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_not_a_number_names_the_field_and_the_value(field, value):
    assert complaint({field: value}) == f"{field} must be a finite number, not {shown(value)}"


@pytest.mark.parametrize("field", ["top_k", "seed"])
@pytest.mark.parametrize("value", NOT_INTEGERS)
def test_not_an_integer_names_the_field_and_the_value(field, value):
    sentence = complaint({field: value})
    assert sentence.startswith(f"{field} must be a whole number")
    assert sentence.endswith(f"not {shown(value)}")


def test_top_k_has_no_none():
    assert complaint({"top_k": None}).startswith("top_k must be a whole number")


@pytest.mark.parametrize("settings", IN_RANGE)
def test_the_ends_of_each_range_are_taken_as_they_are(settings):
    (field, value), params = next(iter(settings.items())), SamplingParams(**settings)
    assert getattr(params, field) == value


def test_numpys_numbers_are_stored_as_plain_ones():
    half, two = np.float32(0.5), np.int64(2)
    given = {"temperature": half, "top_p": half, "top_k": two, "seed": np.uint64(2**64 - 1)}
    params = SamplingParams(**given, logit_bias={two: half}, min_p=np.float16(0.25))
    assert (params.temperature, params.top_p, params.min_p) == (0.5, 0.5, 0.25)
    assert (params.top_k, params.seed, params.logit_bias) == (2, 2**64 - 1, {2: 0.5})
    values = [params.temperature, params.top_p, params.min_p, params.logit_bias[2]]
    assert {type(value) for value in values} == {float}
    assert {type(value) for value in (params.top_k, params.seed, *params.logit_bias)} == {int}


def test_defaults():
    assert dataclasses.asdict(SamplingParams()) == {
        "temperature": 0.7, "top_k": 0, "top_p": 0.9, "min_p": 0.0, "repetition_penalty": 1.0,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "logit_bias": {}, "seed": None,
        "preset": "cutaway", "processors": (), "chain": None, "typical_p": 1.0, "top_n_sigma": 0.0,
        "xtc_probability": 0.0, "xtc_threshold": 0.1, "dry_multiplier": 0.0, "dry_base": 1.75,
        "dry_allowed_length": 2, "dry_penalty_last_n": -1, "dry_breakers": (),
    }  # fmt: skip


def test_unknown_and_positional_options_raise():
    with pytest.raises(TypeError, match="topk"):
        SamplingParams(topk=1)
    with pytest.raises(TypeError, match="positional"):
        SamplingParams(0.5)


def test_params_cannot_be_changed_after_the_check():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().top_k = -1


# -- sampling observe ------------------------------------------------------------------------------

# What may be asked of each step; log-probabilities, ranks and the likeliest tokens.
#
# These are held against definitions in Decimals of 50 digits.


def test_it_is_plain_data():
    asked = Observe(top=3, track=(1, 2), stages=True, after_chain=True, prompt_top=1)
    assert pickle.loads(pickle.dumps(asked)) == asked
    assert Observe(track=[1, 2]) == Observe(track=(1, 2))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"top": -1}, "top must be between 0 and 1000, not -1"),
        ({"top": 1001}, "top must be between 0 and 1000, not 1001"),
        ({"prompt_top": 2.5}, "prompt_top must be a whole number, between 0 and 1000, not 2.5"),
        ({"track": "ab"}, "track must be token ids"),
        ({"stages": 1}, "stages must be true or false, not 1"),
        ({"after_chain": "no"}, "after_chain must be true or false, not 'no'"),
    ],
)
def test_a_bad_value_is_refused_by_name(given, sentence):
    with pytest.raises(InputError) as caught:
        Observe(**given)
    assert str(caught.value).startswith(sentence)


def test_whether_steps_are_observed():
    assert not Observe(prompt_top=3).any_step
    for asked in ({"top": 1}, {"track": (0,)}, {"stages": True}, {"after_chain": True}):
        assert Observe(**asked).any_step


# -- log-probabilities -----------------------------------------------------------------------------


CHAINS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0, 0.5, 1, 1, 3]),
        "top_k": st.integers(0, 14),
        "top_p": st.sampled_from([1.0, 0.3, 0.9]),
        "logit_bias": st.dictionaries(st.integers(0, 14), st.integers(-100, 100), max_size=3),
        "presence_penalty": st.sampled_from([0.0, 0.5, -2.0]),
    }
)


def drawn(logits, top, history=(), **settings):
    params = SamplingParams(**(OFF | settings))
    chain = CompiledChain(build_chain(params), params, ())
    observe = Observe(top=top, after_chain=True)
    (found,) = sample(logits[None], [RowDraw(chain, History((), history), 7, 3, observe)])
    return found


def told(logits, top, **settings):
    return logprobs_of(drawn(logits, top, **settings), top)


def logprobs_of(found, top):
    return found.observed.logprobs(top)


def close(number):
    return pytest.approx(number, rel=1e-12, abs=1e-12)


def truth(scores, top):
    mass = probabilities(scores)
    return [(t, float(ln(mass[t]))) for t in best_first(scores)[:top]]


def assert_likeliest(found, scores, top):
    expected = truth(scores, top)
    assert [t for t, _ in found] == [t for t, _ in expected]
    assert [p for _, p in found] == close([p for _, p in expected])


# --- of a draw ------------------------------------------------------------------------------


@given(rows(max_size=20), CHAINS, st.integers(1, 25), st.lists(st.integers(0, 14), max_size=4))
def test_the_likeliest_before_and_after_the_chain(logits, settings, top, output):
    history = History((), tuple(output))
    found = drawn(logits, top, tuple(output), **settings)
    likely, chosen = logprobs_of(found, top), found.token_id
    states = snapshots(chain_of(**settings), logits, history)
    before, after = states[0], states[-1]
    assert_likeliest(likely.model, before, top)
    assert_likeliest(likely.chain, after, top)
    assert likely.chosen_model == found.logprob == close(dict(truth(before, 99))[chosen])
    assert likely.chosen_chain == close(dict(truth(after, 99))[chosen])


def test_a_chain_that_leaves_one_gives_it_all():
    likely = told(row([1, 5, 3]), 3, top_k=1)
    assert likely.chain == ((1, 0.0),)
    assert likely.chosen_chain == 0.0 > likely.chosen_model


def test_greedy_tells_the_softmax_of_what_the_chain_made():
    likely = told(row([1, 5, 3]), 2, temperature=0, logit_bias={0: 9})
    assert [t for t, _ in likely.model] == [1, 2]
    assert_likeliest(likely.chain, {0: 10.0, 1: 5.0, 2: 3.0}, 2)
    assert likely.chosen_chain == likely.chain[0][1]


def test_tokens_that_a_processor_removed_are_not_in_the_chain():
    def ban(_, logits):
        logits[[1, 3]] = -np.inf
        return logits

    likely = told(row([1, 5, 3, 4]), 9, processors=(ban,))
    assert_likeliest(likely.model, {0: 1.0, 1: 5.0, 2: 3.0, 3: 4.0}, 9)
    assert_likeliest(likely.chain, {0: 1.0, 2: 3.0}, 9)


def test_equals_are_told_by_id():
    assert [t for t, _ in told(row([2, 0.0, 2, -0.0, 2]), 4).model] == [0, 2, 4, 1]


@pytest.mark.parametrize("processors", [(), (lambda ids, x: x,)])
def test_how_many_are_told(processors):
    logits = row([1, 2, 3])
    for top, count in [(0, 0), (1, 1), (3, 3), (4, 3), (1000, 3)]:
        likely = told(logits, top, processors=processors)
        assert len(likely.model) == len(likely.chain) == count


def test_fewer_than_were_observed():
    found = drawn(row([1, 2, 3, 0]), 3)
    for top in range(4):
        assert logprobs_of(found, top) == told(row([1, 2, 3, 0]), top)


@needs_native
@pytest.mark.parametrize("temperature", [0, 1])
def test_what_is_noted_of_many_tokens_is_few_objects_and_reads_as_tuples(temperature):
    """While the garbage collector looks at a million tuples, a server answers nobody."""
    logits = np.random.default_rng(3).normal(0, 3, (1, 2000)).astype(np.float32)
    asked = [row_draw(top=1000, temperature=temperature, top_k=500)]
    [seen], [twin] = (
        [row.observed for row in draw(logits, asked)] for draw in (sample, draw_by_twin)
    )
    assert type(twin.candidates) is tuple
    for noted, tuples in ((seen.candidates, twin.candidates), (seen.after_chain, twin.after_chain)):
        assert noted == tuples and tuples == noted and hash(noted) == hash(tuples)
        assert [*noted] == [*tuples] and noted[3:9:2] == tuples[3:9:2]
        assert (noted[0], noted[-1], len(noted)) == (tuples[0], tuples[-1], len(tuples))
        assert repr(noted) == repr(tuples) and pickle.loads(pickle.dumps(noted)) == tuples
        assert noted != tuples[1:] and noted != 5
        with pytest.raises(IndexError):
            noted[len(tuples)]
        assert sum(map(gc.is_tracked, reached(noted))) < 5
    assert {c.removed_by is None for c in seen.candidates} == {True, temperature == 0}
    assert [c.luck is None for c in seen.candidates] == [temperature == 0] * 1000
    assert seen.logprobs(7) == twin.logprobs(7)


def reached(value):
    """All objects that it holds, but not the types."""
    found, new = {}, [value]
    while new:
        found |= {id(each): each for each in new}
        inner = gc.get_referents(*new)
        new = [each for each in inner if id(each) not in found and not isinstance(each, type)]
    return found.values()


def test_what_was_told_stays():
    with pytest.raises(AttributeError):
        told(row([1, 2]), 1).chosen_model = 0.0


# --- of rows that are read --------------------------------------------------------------------


@given(rows(max_size=20), st.data(), st.integers(0, 25))
def test_a_row_read_without_a_draw(logits, data, top):
    token_id = data.draw(st.integers(0, len(logits) - 1))
    (read,) = read_rows(logits[None], [token_id], top)
    scores = scores_of(logits)
    assert read.rank == best_first(scores).index(token_id) + 1
    assert read.logprob == close(dict(truth(scores, 99))[token_id])
    assert_likeliest(read.top, scores, top)


def test_equals_rank_by_id():
    logits = np.tile(row([2, 7, 2, 7, 2]), (5, 1))
    read = read_rows(logits, range(5), 0)
    assert [r.rank for r in read if isinstance(r, ReadRow)] == [3, 1, 4, 2, 5]


def test_no_token_to_look_up():
    (read,) = read_rows(row([1, 2])[None], [None], 1)
    assert (read.logprob, read.rank, [t for t, _ in read.top]) == (None, None, [1])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_is_an_error_in_its_place(bad):
    logits = np.zeros((3, 40), np.float32)
    logits[1, 17] = bad
    first, error, last = read_rows(logits, [0, 0, 0], 2)
    assert str(error) == "the model's logits in row 1 are not finite"
    assert [first, last] == read_rows(logits[[0, 2]], [0, 0], 2)


@pytest.mark.parametrize("wrong", [-1, 3, 2**40])
def test_an_id_outside_the_vocabulary_is_refused(wrong):
    with pytest.raises(InputError, match=f"token id {wrong} is not between 0 and 2"):
        read_rows(np.zeros((2, 3), np.float32), [None, wrong], 0)


def test_rows_and_ids_must_be_as_many():
    assert read_rows(np.zeros((0, 3), np.float32), [], 5) == []
    with pytest.raises(ValueError, match="2 rows of logits for 1 next ids"):
        read_rows(np.zeros((2, 3), np.float32), [0], 0)
