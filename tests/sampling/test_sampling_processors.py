"""A user's own processors: what they see, what they may change, and what is refused."""

import numpy as np
import pytest

from cutaway.errors import InputError
from cutaway.sampling import History, Observe, SamplingParams
from support.sampling_oracles import row
from support.twin_draw import draw

LOGITS = row([1, 4, 2, 3])
HISTORY = History((9, 8), [7])


def drawn(*processors, **settings):
    settings = {"temperature": 0, "top_p": 1} | settings
    params = SamplingParams(processors=processors, **settings)
    return draw(params, LOGITS, HISTORY, seed=3, position=2, observe=Observe(stages=True))


def chosen(*processors, **settings):
    """The token, and how many survived."""
    made = drawn(*processors, **settings)
    return made.token_id, made.survivors


def masking(*banned):
    def mask(_, logits):
        logits[list(banned)] = -np.inf
        return logits

    return mask


def returning(value):
    return lambda ids, logits: value


def test_masked_tokens_are_removed():
    assert chosen(masking(1)) == (3, 3)
    assert chosen(masking(1), masking(3)) == (2, 2)
    assert chosen(masking(0, 1, 3), temperature=1) == (2, 1)


def test_masked_tokens_are_named_in_the_ledger():
    observed = drawn(masking(0, 1)).observed
    (report,) = observed.stages
    assert (report.stage.name, report.survivors, report.top_removed) == ("processors", 2, (1, 0))
    weights = np.exp([1.0, 4.0, 2.0, 3.0])
    assert report.removed_mass == pytest.approx((weights[0] + weights[1]) / weights.sum(), 1e-12)


def test_filters_come_after_processors():
    assert chosen(masking(1), temperature=1, top_k=1) == (3, 1)


def test_a_processor_sees_prompt_then_output_and_a_float32_row():
    seen = []

    def look(ids, logits):
        seen.append((ids, logits.dtype, logits.tolist()))
        return logits

    chosen(look)
    assert seen == [([9, 8, 7], np.float32, [1, 4, 2, 3])]


def test_a_processor_sees_bias_and_penalties_but_not_temperature():
    seen = []

    def look(_, logits):
        seen.append(logits.tolist())
        return logits

    chosen(look, logit_bias={0: 2}, temperature=0.5)
    assert seen == [[3, 4, 2, 3]]


def test_processors_run_in_order_each_on_the_result_of_the_last():
    def double(_, logits):
        return logits * 2

    def only_eight(_, logits):
        return np.where(logits == 8, logits, -np.inf)

    assert chosen(double, only_eight) == (1, 1)
    with pytest.raises(InputError, match="at least one token"):
        chosen(only_eight, double)


def test_a_processor_cannot_change_the_logits_or_the_history():
    def vandal(ids, logits):
        ids.clear()
        logits[:] = 0
        return logits

    writable = np.array([1, 4, 2, 3], np.float32)
    history = History([1, 2], [3])
    params = SamplingParams(temperature=0, processors=(vandal,))
    draw(params, writable, history, seed=0, position=0)
    assert writable.tolist() == [1, 4, 2, 3]
    assert history == History([1, 2], [3])


def test_a_processor_cannot_change_what_another_is_given_or_keeps():
    constant = np.array([0, 0, 0, 5], np.float32)
    seen = []

    def vandal(ids, logits):
        ids.clear()
        logits[:] = 1
        return logits

    def look(ids, logits):
        seen.append(ids)
        return logits

    chosen(returning(constant), vandal, look)
    assert constant.tolist() == [0, 0, 0, 5]
    assert seen == [[9, 8, 7]]


@pytest.mark.parametrize(
    "value",
    [
        np.array([1, np.nan, 2, 3], np.float32),
        np.array([1, np.inf, 2, 3], np.float32),
        np.array([1, 1e300, 2, 3]),  # infinite once it is float32
        np.zeros(3, np.float32),
        np.zeros(5, np.float32),
        np.zeros((1, 4), np.float32),
        np.zeros((4, 1), np.float32),
        np.float32(1),
        None,
        "logits",
        [[1, 2], [3]],
        ["a", "b", "c", "d"],
        {0: 1.0},
    ],
    ids=repr,
)
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_result_that_is_not_a_row_of_logits_is_refused(value, temperature):
    with pytest.raises(InputError, match=r"^processors must return one logit per token"):
        chosen(returning(value), temperature=temperature, min_p=0.1)


def test_a_wrong_result_is_refused_before_the_next_processor_sees_it():
    calls = []

    def second(ids, logits):
        calls.append("second")
        return logits

    with pytest.raises(InputError, match="one logit per token"):
        chosen(returning(None), second)
    assert calls == []


@pytest.mark.parametrize("temperature", [0, 1])
def test_removing_everybody_is_refused(temperature):
    with pytest.raises(InputError, match=r"^processors must leave at least one token"):
        chosen(masking(0, 1), masking(2, 3), temperature=temperature)


def test_an_error_of_the_users_own_passes_unchanged():
    def broken(ids, logits):
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine$") as caught:
        chosen(broken)
    assert not isinstance(caught.value, InputError)


def test_lists_and_wider_floats_are_taken():
    assert chosen(returning([0, 0, 9, 0])) == (2, 4)
    assert chosen(returning(np.array([0, 0, 9, -1e300]))) == (2, 3)
