"""StopMatcher against the definition: scan every byte so far for the first completed stop."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cutaway.engine import StopMatcher
from support.engine_definition import first_stop

WORDS = st.text("ab", min_size=1, max_size=5)
CHARACTERS = st.text("aéè€", min_size=1, max_size=3)  # é and è share their first byte
STOPS = st.lists(WORDS | CHARACTERS, min_size=1, max_size=4).map(tuple)
BYTES = st.lists(st.sampled_from(sorted(set("abéè€".encode()))), max_size=25).map(bytes)
TEXTS = st.text("abéè€", max_size=15).map(str.encode)
TOKENS = st.lists(st.binary(max_size=3) | BYTES | TEXTS, max_size=8)


@st.composite
def cut_texts(draw):
    """Bytes in which stops are common, cut anywhere, also inside characters."""
    data = draw(BYTES | TEXTS)
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def longest_started_stop(data: bytes, stops: tuple[str, ...]) -> int:
    """The length of the longest end of data that is a proper prefix of some stop."""
    prefixes = {s.encode()[:n] for s in stops for n in range(len(s.encode()))}
    return max(len(p) for p in prefixes if data.endswith(p))


def push_all(matcher: StopMatcher, tokens: list[bytes]) -> bytes:
    """As the engine does: until a stop is found, and a flush if none is."""
    emitted = b""
    for token in tokens:
        emitted += matcher.push(token)
        if matcher.matched is not None:
            return emitted + matcher.flush()
    return emitted + matcher.flush()


@given(STOPS, cut_texts() | TOKENS)
@example(("aab", "b"), [b"aa", b"b"])
@example(("abc", "b"), [b"a", b"b", b"c"])
@example(("abab", "ba"), [b"aba", b"b"])
def test_the_text_ends_before_the_first_completed_stop(stops, tokens):
    matcher = StopMatcher(stops)
    emitted = push_all(matcher, tokens)
    assert (emitted, matcher.matched) == first_stop(b"".join(tokens), stops)


@given(STOPS, cut_texts() | TOKENS)
def test_exactly_what_may_become_a_stop_is_held_back(stops, tokens):
    matcher, emitted, data = StopMatcher(stops), b"", b""
    for token in tokens:
        emitted, data = emitted + matcher.push(token), data + token
        before, stop = first_stop(data, stops)
        if stop is not None:
            assert emitted == before
            return
        assert emitted == data[: len(data) - longest_started_stop(data, stops)]


@given(STOPS, cut_texts())
def test_the_cut_into_tokens_does_not_matter(stops, tokens):
    cut, whole = StopMatcher(stops), StopMatcher(stops)
    assert push_all(cut, tokens) == push_all(whole, [b"".join(tokens)])
    assert cut.matched == whole.matched


@given(cut_texts())
def test_without_stops_nothing_is_held_back(tokens):
    matcher = StopMatcher(())
    assert [matcher.push(token) for token in tokens] == tokens
    assert matcher.flush() == b""
    assert matcher.matched is None


@pytest.mark.parametrize("stops", [("b", "ab", "aab"), ("aab", "ab", "b"), ("ab", "aab", "b")])
def test_of_stops_completed_at_once_the_longest_wins_in_any_order(stops):
    matcher = StopMatcher(stops)
    assert push_all(matcher, [b"xa", b"ab"]) == b"x"
    assert matcher.matched == "aab"


@pytest.mark.parametrize(
    ("stop", "tokens", "pushed", "matched", "flushed"),
    [
        ("STOP", [b"before STOP after"], [b"before "], "STOP", b""),  # what follows is dropped
        ("€", [b"a", b"\xe2", b"\x82", b"\xac"], [b"a", b"", b"", b""], "€", b""),
        ("é", [b"\xc3", b"\xa8"], [b"", "è".encode()], None, b""),  # it only starts like the stop
        ("abc", [b"xab"], [b"x"], None, b"ab"),
    ],
)
def test_stops_that_begin_or_end_within_a_token(stop, tokens, pushed, matched, flushed):
    matcher = StopMatcher((stop,))
    assert [matcher.push(token) for token in tokens] == pushed
    assert (matcher.matched, matcher.flush(), matcher.flush()) == (matched, flushed, b"")


LONG = "ab" * 5000 + "c"


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_a_stop_of_ten_kilobytes_is_found_after_a_false_start(size):
    data = b"xy" + b"ab" * 7000 + b"cab"
    matcher = StopMatcher((LONG,))
    tokens = [data[i : i + size] for i in range(0, len(data), size)]
    assert push_all(matcher, tokens) == b"xy" + b"ab" * 2000
    assert matcher.matched == LONG


def test_a_stop_of_ten_kilobytes_that_never_ends_holds_back_no_more_than_itself():
    matcher = StopMatcher((LONG,))
    assert matcher.push(b"ab" * 7000) == b"ab" * 2000
    assert matcher.flush() == b"ab" * 5000
