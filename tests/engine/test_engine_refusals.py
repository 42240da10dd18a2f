"""What the engine refuses: one sentence that names the field, and nothing left behind."""

from contextlib import contextmanager

import numpy as np
import pytest

from cutaway.engine import FinishReason, StopParams
from cutaway.errors import InputError
from cutaway.sampling import SamplingParams
from support.engine_mock import GREEDY, add, make_engine, run_to_end, score
from support.mock_backend import VOCAB

STOPS = StopParams(max_tokens=4)


@contextmanager
def refused(sentence):
    with pytest.raises(InputError) as refusal:
        yield
    assert str(refusal.value).startswith(sentence)


@pytest.mark.parametrize(
    ("stops", "sentence"),
    [
        ({"max_tokens": -1}, "max_tokens must be 0 or more, not -1"),
        ({"max_tokens": 2.0}, "max_tokens must be a whole number, 0 or more, not 2.0"),
        ({"max_tokens": True}, "max_tokens must be a whole number"),
        ({"max_tokens": None}, "max_tokens must be a whole number"),
        ({"stop": ""}, "stop must not hold an empty string"),
        ({"stop": ("a", "")}, "stop must not hold an empty string"),
        ({"stop": 5}, "stop must be a string or a list of strings, not 5"),
        ({"stop": None}, "stop must be a string or a list of strings, not None"),
        ({"stop": b"a"}, "stop must be a string or a list of strings, not b'a'"),
        ({"stop": ("a", 5)}, "stop must be a string or a list of strings"),
        ({"stop": {"a": 1}}, "stop must be a string or a list of strings"),
        ({"stop": "a\ud800"}, "stop must be whole characters"),
        ({"stop_token_ids": (-1,)}, "stop_token_ids: a token id must be 0 or more, not -1"),
        ({"stop_token_ids": (1.0,)}, "stop_token_ids: a token id must be a whole number"),
        ({"stop_token_ids": "ab"}, "stop_token_ids must be a list of token ids, not 'ab'"),
        ({"stop_token_ids": (True,)}, "stop_token_ids: a token id must be a whole number"),
        ({"stop_token_ids": 5}, "stop_token_ids must be a list of token ids, not 5"),
        ({"stop_token_ids": None}, "stop_token_ids must be a list of token ids, not None"),
        ({"ignore_eos": 1}, "ignore_eos must be true or false, not 1"),
        ({"ignore_eos": "no"}, "ignore_eos must be true or false, not 'no'"),
    ],
)
def test_stop_params_name_the_field(stops, sentence):
    with refused(sentence):
        StopParams(**stops)


def refuse(prompt=(1,), params=GREEDY, stops=STOPS, **sizes):
    engine = make_engine(**({"context": 16} | sizes))
    try:
        add(engine, prompt, params, stops)
    finally:
        assert not engine.waiting
        assert engine.blocks.free == engine.blocks.count


def bias(token_id):
    return SamplingParams(logit_bias={token_id: 1.0})


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"prompt": ()}, "prompt is empty"),
        ({"stops": StopParams(max_tokens=0)}, "max_tokens must be 1 or more to write"),
        ({"prompt": [1] * 16}, "prompt has 16 tokens, and this model's maximum"),
        ({"prompt": [1, VOCAB]}, f"prompt: token id {VOCAB} is not between 0 and {VOCAB - 1}"),
        ({"prompt": [-1]}, "prompt: token id -1 is not between"),
        ({"prompt": [2**40]}, f"prompt: token id {2**40} is not between"),
        ({"prompt": [1.5]}, "prompt must be token ids"),
        ({"prompt": "12"}, "prompt must be token ids"),
        ({"prompt": [None]}, "prompt must be token ids"),
        ({"prompt": 5}, "prompt must be token ids"),
        ({"params": bias(VOCAB)}, f"logit_bias: token id {VOCAB} is not between"),
        ({"stops": StopParams(stop_token_ids=(VOCAB,))}, f"stop_token_ids: token id {VOCAB} is"),
        (
            {"prompt": [1] * 30, "stops": StopParams(max_tokens=99), "context": 99, "kv_blocks": 2},
            "prompt and max_tokens need 4 KV blocks of 32 tokens; there are 2",
        ),
    ],
)
def test_add_names_the_field_and_queues_nothing(asked, sentence):
    with refused(sentence):
        refuse(**asked)


def test_the_last_token_id_and_the_longest_prompt_are_accepted():
    engine, last = make_engine(context=16), VOCAB - 1
    stops = StopParams(stop_token_ids=(last,))
    sequence = add(engine, [last] * 15, SamplingParams(logit_bias={last: -100.0}), stops)
    run_to_end(engine)
    assert sequence.finish_reason == FinishReason.CONTEXT_FULL


@pytest.mark.parametrize("prompt", [[1, 2], (1, 2), iter([1, 2]), np.array([1, 2])])
def test_a_prompt_may_be_any_iterable_of_whole_numbers(prompt):
    sequence = add(make_engine(), prompt, GREEDY, STOPS)
    assert sequence.prompt_token_ids == (1, 2)
    assert {type(token_id) for token_id in sequence.prompt_token_ids} == {int}


@pytest.mark.parametrize(
    ("token_ids", "sentence"),
    [
        ((), "token_ids must hold 1 to 16 ids, not 0"),
        ((1,) * 17, "token_ids must hold 1 to 16 ids, not 17"),
        ((1, VOCAB), f"token_ids: token id {VOCAB} is not between"),
        ((-1,), "token_ids: token id -1 is not between"),
    ],
)
def test_score_names_the_field(token_ids, sentence):
    with refused(sentence):
        score(make_engine(context=16), token_ids)


def test_a_refused_request_does_not_disturb_the_company():
    engine = make_engine()
    sequence = add(engine, [1], GREEDY, STOPS)
    with pytest.raises(InputError):
        add(engine, [], GREEDY, STOPS)
    run_to_end(engine)
    assert sequence.finish_reason == FinishReason.MAX_TOKENS
