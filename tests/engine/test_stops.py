"""Every condition that ends a text, what it says, and which wins when two hold.

StopMatcher against the definition: scan every byte so far for the first completed stop. Of what
the reader sees no character is ever broken, and no byte lost.
"""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cutaway.engine import FinishReason, Started, StopMatcher, StopParams
from support.engine_definition import first_stop
from support.engine_mock import MockRequest, make_engine, run_to_end, steps_of, write
from support.mock_backend import END, make_scripted

PROMPT = list(b"go")
HELLO = list(b"hello")


def told(script, *, context=64, **stops):
    """(token ids, text, finish reason, matched) of a model that writes the script."""
    model = make_scripted(list(script), len(PROMPT))
    wrote = write(model, PROMPT, context=context, **({"max_tokens": 20} | stops))
    return bytes_of(wrote.token_ids), wrote.text, wrote.finish_reason, wrote.matched


def bytes_of(ids):
    """Token ids, readable: the end token as |."""
    return "".join("|" if i == END else chr(i) for i in ids)


ENDS = {
    "the end token is a token but no text": (
        [*HELLO, END], {}, ("hello|", "hello", FinishReason.END_TOKEN, END)),
    "the end token may come first": ([END], {}, ("|", "", FinishReason.END_TOKEN, END)),
    "ignore_eos writes on past the end token": (
        [*HELLO, END, *b"!!"], {"ignore_eos": True, "max_tokens": 8},
        ("hello|!!", "hello<end>!!", FinishReason.MAX_TOKENS, None)),
    "stop tokens of the prompt do not count": (
        HELLO, {"stop_token_ids": (ord("g"),), "max_tokens": 2},
        ("he", "he", FinishReason.MAX_TOKENS, None)),
    "of two stop strings the longest is reported": (
        HELLO, {"stop": ("l", "el", "ell")}, ("hel", "h", FinishReason.STOP_STRING, "el")),
    "a stop string does not begin in the prompt": (
        HELLO, {"stop": "goh", "max_tokens": 5}, ("hello", "hello", FinishReason.MAX_TOKENS, None)),
    "a stop string is not made of the end token's name": (
        [*HELLO, END], {"stop": "<end>"}, ("hello|", "hello", FinishReason.END_TOKEN, END)),
    "max_tokens counts new tokens": (
        HELLO, {"max_tokens": 3}, ("hel", "hel", FinishReason.MAX_TOKENS, None)),
    "a full context ends the text": (
        HELLO, {"context": 6}, ("hell", "hell", FinishReason.CONTEXT_FULL, None)),
    "the longest prompt leaves room for one token": (
        HELLO, {"context": 3}, ("h", "h", FinishReason.CONTEXT_FULL, None)),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_what_ends_a_text(name):
    script, stops, ended = ENDS[name]
    assert told(script, **stops) == ended


@pytest.mark.parametrize("ids", [(ord("l"),), (ord("o"), ord("l")), [ord("l")]])
def test_a_stop_token_is_a_token_but_no_text(ids):
    assert told(HELLO, stop_token_ids=ids) == ("hel", "he", FinishReason.STOP_TOKEN, ord("l"))


@pytest.mark.parametrize("stop", ["ll", ("ll",), ["zz", "ll", "lo"]])
def test_a_stop_string_is_tokens_but_no_text(stop):
    assert told(HELLO, stop=stop) == ("hell", "he", FinishReason.STOP_STRING, "ll")


def test_an_aborted_text_says_so_and_makes_no_more_steps():
    engine = make_engine(make_scripted(HELLO, len(PROMPT)))
    sequence = MockRequest(tuple(PROMPT), stops=StopParams()).add_to(engine)
    events = [*engine.step(), *engine.step()]
    engine.abort(sequence)
    [ended] = run_to_end(engine, engine.take_events())
    assert "".join(step.text for step in steps_of(events)) == "he"
    assert (ended.reason, ended.usage.completion_tokens) == (FinishReason.ABORTED, 2)
    assert (sequence.finish_reason, sequence.matched) == (FinishReason.ABORTED, None)


@pytest.mark.parametrize(
    ("script", "stops", "winner"),
    [
        (HELLO, {"stop": "el", "max_tokens": 3}, (FinishReason.STOP_STRING, "el")),
        (HELLO, {"stop": "el", "context": 5}, (FinishReason.STOP_STRING, "el")),
        (HELLO, {"stop_token_ids": (108,), "max_tokens": 3}, (FinishReason.STOP_TOKEN, 108)),
        (HELLO, {"stop_token_ids": (108,), "context": 5}, (FinishReason.STOP_TOKEN, 108)),
        (HELLO, {"stop_token_ids": (108,), "stop": "el"}, (FinishReason.STOP_TOKEN, 108)),
        ([END], {"stop_token_ids": (END,)}, (FinishReason.STOP_TOKEN, END)),
        ([END], {"stop_token_ids": (END,), "ignore_eos": True}, (FinishReason.STOP_TOKEN, END)),
        ([END], {"max_tokens": 1}, (FinishReason.END_TOKEN, END)),
        ([END], {"context": 3}, (FinishReason.END_TOKEN, END)),
        (HELLO, {"max_tokens": 3, "context": 5}, (FinishReason.MAX_TOKENS, None)),
    ],
)
def test_which_wins_when_two_hold_at_once(script, stops, winner):
    assert told(script, **stops)[2:] == winner


def test_a_run_is_started_steps_and_ended():
    engine = make_engine(make_scripted(HELLO, len(PROMPT)))
    sequence = MockRequest(tuple(PROMPT), stops=StopParams(stop="ll")).add_to(engine)
    started, *steps, ended = run_to_end(engine)
    assert isinstance(started, Started)
    assert steps == steps_of(steps)
    assert (ended.reason, ended.matched) == (sequence.finish_reason, sequence.matched)
    assert sum(step.released_bytes for step in steps) == len("".join(step.text for step in steps))


def test_finish_reasons_read_as_words():
    assert [f"{reason}" for reason in FinishReason] == [
        "end_token", "stop_string", "stop_token", "max_tokens", "context_full", "constraint",
        "scored", "aborted", "error",
    ]  # fmt: skip


# -- stop strings ----------------------------------------------------------------------------------


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
        if matcher.match is not None:
            return emitted + matcher.flush()
    return emitted + matcher.flush()


@given(STOPS, cut_texts() | TOKENS)
@example(("aab", "b"), [b"aa", b"b"])
@example(("abc", "b"), [b"a", b"b", b"c"])
@example(("abab", "ba"), [b"aba", b"b"])
def test_the_text_ends_before_the_first_completed_stop(stops, tokens):
    matcher = StopMatcher(stops)
    emitted = push_all(matcher, tokens)
    assert (emitted, matcher.match) == first_stop(b"".join(tokens), stops)


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
    assert cut.match == whole.match


@given(cut_texts())
def test_without_stops_nothing_is_held_back(tokens):
    matcher = StopMatcher(())
    assert [matcher.push(token) for token in tokens] == tokens
    assert matcher.flush() == b""
    assert matcher.match is None


@pytest.mark.parametrize("stops", [("b", "ab", "aab"), ("aab", "ab", "b"), ("ab", "aab", "b")])
def test_of_stops_completed_at_once_the_longest_wins_in_any_order(stops):
    matcher = StopMatcher(stops)
    assert push_all(matcher, [b"xa", b"ab"]) == b"x"
    assert matcher.match == "aab"


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
    assert (matcher.match, matcher.flush(), matcher.flush()) == (matched, flushed, b"")


LONG = "ab" * 5000 + "c"


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_a_stop_of_ten_kilobytes_is_found_after_a_false_start(size):
    data = b"xy" + b"ab" * 7000 + b"cab"
    matcher = StopMatcher((LONG,))
    tokens = [data[i : i + size] for i in range(0, len(data), size)]
    assert push_all(matcher, tokens) == b"xy" + b"ab" * 2000
    assert matcher.match == LONG


def test_a_stop_of_ten_kilobytes_that_never_ends_holds_back_no_more_than_itself():
    matcher = StopMatcher((LONG,))
    assert matcher.push(b"ab" * 7000) == b"ab" * 2000
    assert matcher.flush() == b"ab" * 5000


# -- what the reader sees --------------------------------------------------------------------------


ANY_TEXT = st.text(min_size=1, max_size=12)
FEW_STOPS = st.lists(st.text("abé€", min_size=1, max_size=3), max_size=3).map(tuple)
PIECES = st.lists(
    st.binary(max_size=4) | st.text("abé€🙂", max_size=3).map(str.encode), min_size=1, max_size=40
)


def tell(pieces: list[bytes], stops: tuple[str, ...] = ()) -> list[str]:
    """The texts of the steps of a model that writes these pieces, a token each."""
    model = make_scripted(list(range(len(pieces))), prompt_length=1)
    engine = make_engine(model, pieces=pieces.__getitem__)
    MockRequest((0,), stops=StopParams(max_tokens=len(pieces), stop=stops)).add_to(engine)
    return [step.text for step in steps_of(run_to_end(engine))]


@given(PIECES, FEW_STOPS)
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


@given(
    st.lists(st.text("abé€🙂", max_size=3).map(str.encode), min_size=1, max_size=9),
    FEW_STOPS,
)
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
    engine = make_engine(make_scripted([*b"hi", *b"ST", 256], prompt_length=1))
    MockRequest((0,), stops=StopParams(max_tokens=20, stop="STOP")).add_to(engine)
    assert [step.text for step in steps_of(run_to_end(engine))] == ["h", "i", "", "", "ST"]


def test_half_a_character_held_as_a_started_stop_is_flushed_once():
    assert write(make_scripted([*b"a\xc3"], 1), [0], max_tokens=2, stop="é").text == "a\ufffd"
