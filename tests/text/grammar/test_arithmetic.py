"""The calculator in the loop, against a definition that reads whole texts."""

import re
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cutaway.text.grammar.checks import Arithmetic
from support.examples import few_or_many

CHECK = Arithmetic()
ALPHABET = [bytes([byte]) for byte in b"0123456789./-, =+*x\n"]


def passes(text: str, following: str) -> bool:
    """Byte by byte, to an end."""
    data, more = text.encode(), following.encode()
    each = all(CHECK.allows(data + more[:i], more[i : i + 1]) for i in range(len(more)))
    assert each is CHECK.allows(data, more)
    return each and CHECK.allows(data + more, b"")


def begins_right(value: Fraction, said: str) -> bool:
    """Whether a text begins with a number that is right, and goes on as none does."""
    found = re.match(r"-?\d+(?:[./]\d+)?", said)
    if not found or re.match(r"\d|[./]\d", said[found.end() :]):
        return False
    return is_right(value, found.group())


def is_right(value: Fraction, said: str) -> bool:
    """A definition in other words: what may stand for a number."""
    found = re.fullmatch(r"(-?)(0|[1-9]\d*)(?:/([1-9]\d*)|\.(\d+))?", said)
    if not found or (found[1] and value >= 0):
        return False
    if found[3]:
        return int(found[3]) > 1 and [int(found[1] + found[2]), int(found[3])] == [
            value.numerator, value.denominator,
        ]  # fmt: skip
    exact = Fraction(said)
    ends = 10**200 % value.denominator == 0
    if ends:
        return exact == value and not (found[4] and found[4].endswith("0"))
    places = len(found[4] or "")
    off = abs(value) - abs(exact)
    step = Fraction(1, 10**places)
    near = 0 <= off < step or abs(off) <= step / 2
    digits = len(said.strip("-").replace(".", "").lstrip("0"))
    return near and 2 <= places <= 15 and digits >= 2


OPERANDS = st.one_of(
    st.integers(0, 30).map(str),
    st.tuples(st.integers(0, 9), st.integers(0, 99)).map(lambda p: f"{p[0]}.{p[1]:02d}"),
    st.tuples(st.integers(0, 9), st.integers(1, 9)).map(lambda p: f"{p[0]}/{p[1]}"),
)
PYTHON = {"+": "+", "-": "-", "−": "-", "*": "*", "×": "*", "/": "/", "÷": "/"}


@st.composite
def sums(draw):
    """A sum as text, and its value as Python has it."""
    text, code = "", ""
    for index in range(draw(st.integers(2, 3))):
        operand = draw(OPERANDS)
        if index:
            sign = draw(st.sampled_from([s for s in PYTHON if s != "/" or "/" not in operand]))
            around = draw(st.sampled_from(["", " "]))
            if sign == "/" and {"/", "÷"} & {*text}:  # 8 / 4/2 can be read in two ways, 1÷1/3 too
                around = " "
            text += around + sign + around
            code += PYTHON[sign]
        text += operand
        numbers = [f"Fraction('{n}')" for n in operand.split("/")]
        code += f"({'/'.join(numbers)})"
    try:
        value = eval(code, {"Fraction": Fraction})
    except ZeroDivisionError:
        value = None
    return text + draw(st.sampled_from(["=", " ="])), value


@few_or_many(100, 400, sums(), st.sampled_from(["", " ", "So ", "x = ", "\n", "("]), st.data())
def test_what_follows_is_the_value_and_nothing_else(made, before, data):
    text, value = made
    if value is None:
        assert passes(before + text, "7")
        return
    near = [f"{float(value):.{k}f}" for k in range(5)] + [str(value), str(value + 1), "0", "-1"]
    said = data.draw(st.one_of(st.sampled_from(near), st.text("0123456789./-", max_size=5)))
    assume(said)
    assert passes(before + text, said) is begins_right(value, said), (value, said)
    assert passes(before + text, f" {said}\n") is begins_right(value, said)


@given(sums(), st.data())
def test_there_is_always_a_way_to_the_end_of_the_number(made, data):
    text, value = made
    data_now, steps = text.encode(), 0
    while value is not None and not CHECK.allows(data_now, b""):
        may = [b for b in ALPHABET if CHECK.allows(data_now, b)]
        assert may
        data_now += data.draw(st.sampled_from(may))
        steps += 1
        assert steps < 120


@given(sums(), st.lists(st.sampled_from(ALPHABET), min_size=1, max_size=4), st.data())
def test_only_suspects_are_refused(made, pieces, data):
    text = made[0].encode()
    if made[1] is not None:
        text += data.draw(st.sampled_from([b"", b" ", str(made[1]).encode()]))
    for cut in range(len(text) + 1):
        before, token = text[:cut], text[cut:] + b"".join(pieces)
        pattern = CHECK.suspects(before)
        if CHECK.allows(b"", before) and pattern is not None and not pattern.search(token):
            assert CHECK.allows(before, token)


@pytest.mark.parametrize(
    ("text", "following", "passing"),
    [
        ("12*13=", "156", True),
        ("12*13=", "146", False),
        ("12*13=", " 156. It is", True),
        ("12*13=", "156.5", False),
        ("12*13=", "156,000", False),
        ("12*13=", "156, and", True),
        ("12*13=", "15", False),
        ("12*13=", "about", False),
        ("12*13=", "\n", False),
        ("2 + 3 + 4 + 5 =", "3", True),  # four: left alone
        ("(2 + 3) * 4 =", "1", True),
        ("2^3 + 4 =", "1", True),
        ("v2 + 3 =", "1", True),
        ("1,000 + 5 =", "1", True),
        ("8 / 4/2 =", "9", True),  # two ways to read it
        ("8/4/2=", "1", True),
        ("8/4/2=", "4", False),
        ("0.5/1/2=", "0.25", True),
        ("0.5/1/2=", "1", False),
        ("1/1.25=", "0.8", True),
        ("1/1.25=", "1", False),
        ("7/0 =", "9", True),
        ("x = 5 =", "9", True),
        ("2+3=6 and", " then 7", True),  # wrong already: not ours to judge
        ("1/3 + 1/6 = ", "1/2", True),
        ("1/3 + 1/6 = ", "0.5", True),
        ("1/3 + 1/6 = ", "3/6", False),
        ("10/3=", "3.33", True),
        ("10/3=", "3.34", False),
        ("20/3=", "6.67", True),
        ("20/3=", "6.7", False),
        ("1/2 ÷ 1/4 =", "2", True),
        ("3 - 5 =", "−2", True),
        ("0.1 + 0.2 =", "0.3", True),
        ("0.1 + 0.2 =", "0.30", False),
        ("2+2=4, 3+3=", "6", True),
        ("2+2=4, 3+3=", "7", False),
    ],
)
def test_examples(text, following, passing):
    assert passes(text, following) is passing
