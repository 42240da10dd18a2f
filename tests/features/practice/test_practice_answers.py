"""What a person may write, and what is said to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.errors import InputError
from cutaway.features.practice.answers import BITS, SHARE, Numbers, TokenAnswer

PAIR = Numbers((0.622459, 0.377541), ("mat", "sofa"), SHARE)
ONE = Numbers((1.9993,), ("entropy",), BITS)
NAMES = ("mat", "␣mat", "Roof", "‹eos›", "3", "␣")


@pytest.mark.parametrize(
    "text",
    ["0.622 0.378", ".62 .38", "0.622, 0.378", "0.622,0.378", "0,622 0,378", "0,622; 0,378",
     "62% 38%", "62.2 % 37.8 %", "62 38", "62.2, 37.8", " .622\t.378 "],
)  # fmt: skip
def test_figures_may_be_written_in_many_ways(text):
    assert PAIR.judge(text).right


@pytest.mark.parametrize("text", ["0.6 0.4", "0.378 0.622", "-.62 -.38"])
def test_figures_that_are_off(text):
    assert not PAIR.judge(text).right


def test_the_wrong_figure_is_named_but_not_its_value():
    assert PAIR.judge(".622 .4").remark == "1 of 2 are right; look at sofa."
    assert PAIR.judge("0.1 0.1").remark == "Not quite."


@pytest.mark.parametrize(
    "text",
    ["0.622", "1 2 3", "a b", "0.622 b", "0..6 1", "%", "1/2 1/2", "nan nan",
     "inf 0.378", "0.6_2 0.378"],
)  # fmt: skip
def test_what_is_no_figure_is_answered_with_an_example(text):
    with pytest.raises(InputError, match="write 2 numbers with spaces between, each like "):
        PAIR.judge(text)


def test_bits():
    assert ONE.judge("2").right and ONE.judge("2 bits").right and ONE.judge("1,98").right
    assert not ONE.judge("1.39").right  # nats
    with pytest.raises(InputError, match=r"write one number, like 1\.5"):
        ONE.judge("200%")


@pytest.mark.parametrize(
    ("text", "row"),
    [("mat", 0), ("␣mat", 1), ("roof", 2), ("ROOF ", 2), ("eos", 3), ("<EOS>", 3), ("3", 4),
     ("#3", 2), ("1", 0), ("6", 5), ("_", 5)],
)  # fmt: skip
def test_a_token_is_named_by_its_text_or_its_number(text, row):
    assert [n for n in range(6) if TokenAnswer(NAMES, n).judge(text).right] == [row]


@pytest.mark.parametrize("text", ["door", "7", "0", "-1", "MAT", "99", "²"])
def test_what_is_no_token_is_answered_with_the_choices(text):
    with pytest.raises(InputError, match="write a token of the table, or its number, 1 to 6"):
        TokenAnswer(NAMES, 0).judge(text)


@given(st.text(max_size=20))
def test_any_text_is_judged_or_refused(text):
    for answer in (PAIR, ONE, TokenAnswer(NAMES, 0)):
        try:
            answer.judge(text)
        except InputError as error:
            assert str(error).startswith("write ")
