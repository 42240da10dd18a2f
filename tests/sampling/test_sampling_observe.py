"""What may be asked of each step: checked, plain data."""

import pickle

import pytest

from cutaway.errors import InputError
from cutaway.sampling import Observe


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
