"""From tokens to what the reader sees: no character is ever broken, no byte lost."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cutaway.engine import StopParams
from support.engine_definition import first_stop
from support.engine_mock import MockRequest, make_engine, run_to_end, steps_of, write
from support.mock_backend import scripted

ANY_TEXT = st.text(min_size=1, max_size=12)
STOPS = st.lists(st.text("abé€", min_size=1, max_size=3), max_size=3).map(tuple)
PIECES = st.lists(
    st.binary(max_size=4) | st.text("abé€🙂", max_size=3).map(str.encode), min_size=1, max_size=40
)


def tell(pieces: list[bytes], stops: tuple[str, ...] = ()) -> list[str]:
    """The texts of the steps of a model that writes these pieces, a token each."""
    model = scripted(list(range(len(pieces))), prompt_length=1)
    engine = make_engine(model, pieces=pieces.__getitem__)
    MockRequest((0,), stops=StopParams(max_tokens=len(pieces), stop=stops)).add_to(engine)
    return [step.text for step in steps_of(run_to_end(engine))]


@given(PIECES, STOPS)
@example([b"\xe2\x82", b"a"], ("a",))
@example([b"\xc3", b"\xa9"], ("é",))
@example([b"x\xc3", b"\xa9b"], ("b",))
def test_the_text_is_the_bytes_before_the_stop_decoded(pieces, stops):
    before, _ = first_stop(b"".join(pieces), stops)
    assert "".join(tell(pieces, stops)) == before.decode("utf-8", "replace")


@given(ANY_TEXT)
def test_characters_split_into_single_bytes_come_whole(text):
    pieces = [bytes([b]) for b in text.encode()]
    shown = tell(pieces)
    assert "".join(shown) == text
    ends = [len(text[: i + 1].encode()) - 1 for i in range(len(text))]
    assert [i for i, part in enumerate(shown) if part] == ends


@given(st.lists(st.text("abé€🙂", max_size=3).map(str.encode), min_size=1, max_size=9), STOPS)
def test_nothing_shown_is_ever_taken_back(pieces, stops):
    final, _ = first_stop(b"".join(pieces), stops)
    shown = ""
    for part in tell(pieces, stops):
        shown += part
        assert final.decode().startswith(shown)
    assert shown == final.decode()


@pytest.mark.parametrize(
    ("pieces", "stops", "shown"),
    [
        ([b"a", b"\xe2\x82"], (), ["a", "\ufffd"]),  # half a character at the end of the text
        ([b"a\xe2\x82", b"st", b"op"], ("stop",), ["a", "", "\ufffd"]),  # and before a stop string
        ([b"x\xe2", b"\x82\xac yz"], ("€",), ["x", ""]),  # a stop string within a token
        ([b"1\n", b"\n", b"2"], ("\n\n\n",), ["1", "", "\n\n2"]),  # a stop string that was none
    ],
)
def test_what_is_shown_of_half_a_character_and_half_a_stop_string(pieces, stops, shown):
    assert tell(pieces, stops) == shown


def test_a_started_stop_string_is_shown_when_the_end_token_comes():
    engine = make_engine(scripted([*b"hi", *b"ST", 256], prompt_length=1))
    MockRequest((0,), stops=StopParams(max_tokens=20, stop="STOP")).add_to(engine)
    assert [step.text for step in steps_of(run_to_end(engine))] == ["h", "i", "", "", "ST"]


def test_half_a_character_held_as_a_started_stop_is_flushed_once():
    assert write(scripted([*b"a\xc3"], 1), [0], max_tokens=2, stop="é").text == "a\ufffd"
