"""A text in parts: every token is in one, and goes where its first byte is."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.features.inside.ablate import BY, text_parts


def parts(text, by):
    """Of a text with a token for each byte."""
    data = text.encode()
    pieces = [bytes([byte]) for byte in data]
    return [data[part.start : part.stop].decode() for part in text_parts(pieces, by)]


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("word", ["The", " storm's", "  over,", " so", " "]),
        ("word", ["a", "\n", "b", " \n\n", "  c", "\t\t"]),
        ("word", ["Füße", " naïve\u0301", "\u00a0nach", "\u3000oben"]),
        ("word", ["猫", "は", "、", "GPU", "を", "見", "た"]),
        ("line", ["first\n", "\n", "second \r\n", "third"]),
        ("sentence", ["It is.", " Is it?!", ' "No…"', " 3.5 is one"]),
        ("sentence", ["没有。", "「是」。", " Oui !", " fin"]),
        ("sentence", ["A heading", "\n\nThen text.", "\n"]),
    ],
)
def test_what_a_part_is(by, expected):
    assert parts("".join(expected), by) == expected


@given(
    text=st.text(st.sampled_from("ab .!?\n\r«é。猫\u3000"), max_size=40),
    by=st.sampled_from(BY[1:]),
)
def test_parts_are_the_text(text, by):
    """None is cut within a character, and none is empty."""
    found = parts(text, by)
    assert "".join(found) == text
    assert all(found)


@given(
    pieces=st.lists(st.binary(max_size=6) | st.sampled_from(["é".encode(), b" a", b".\n"])),
    by=st.sampled_from(BY),
)
def test_a_token_goes_where_its_first_byte_is(pieces, by):
    """Whatever bytes there are, and however they are cut."""
    found = text_parts(pieces, by)
    assert [i for part in found for i in part] == [*range(len(pieces))]
    home = {i: n for n, part in enumerate(found) for i in part}
    singles = [p[n : n + 1] for p in pieces for n in range(len(p) or 1)]  # b"" stays one
    firsts = accumulate((len(p) or 1 for p in pieces), initial=0)
    of_byte = {i: n for n, part in enumerate(text_parts(singles, by)) for i in part}
    if by == "token":
        assert len(found) == len(pieces)
        return
    at = [of_byte[first] for first, _ in zip(firsts, pieces, strict=False)]
    for (i, a), (j, b) in pairwise(enumerate(at)):
        assert (home[i] == home[j]) == (a == b)


def test_a_token_without_bytes_divides_the_text():
    assert text_parts([b"a", b"", b"", b"b", b"c"], "sentence") == [
        range(1), range(1, 2), range(2, 3), range(3, 5)
    ]  # fmt: skip
