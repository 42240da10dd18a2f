"""Incremental UTF-8 equals decoding all bytes at once."""

from hypothesis import example, given
from hypothesis import strategies as st

from cutaway.text import TextStream

BYTES = st.binary(max_size=12) | st.text(st.characters(exclude_categories=["Cs"])).map(str.encode)


@given(st.lists(BYTES, max_size=12))
@example([b"\xf0\x9f", b"\x99", b"\x82"])
@example([b"\xf0\x9f", b"a"])
@example([b"\xe2\x82"])
@example([b"\xed\xa0\x80", b"\xc0\xaf", b"\xf5"])
def test_any_split_gives_the_same_text(chunks: list[bytes]) -> None:
    stream = TextStream()
    text = "".join(map(stream.push, chunks)) + stream.flush()
    assert text == b"".join(chunks).decode("utf-8", "replace")


def test_a_character_appears_whole_with_its_last_byte() -> None:
    stream = TextStream()
    assert [stream.push(bytes([byte])) for byte in "a🙂é".encode()] == [
        *("a", "", "", "", "🙂", "", "é")
    ]
    assert stream.flush() == ""


def test_a_broken_character_is_replaced_and_the_rest_kept() -> None:
    stream = TextStream()
    assert stream.push(b"\xf0\x9f") == ""
    assert stream.push(b"ok") == "\ufffdok"
    assert stream.push(b"\xe2\x82") == ""
    assert stream.flush() == "\ufffd"
    assert stream.push(b"next") == "next"
