"""Every condition that ends a text, what it says, and which wins when two hold."""

import pytest

from cutaway.engine import FinishReason, Started, StopParams
from support.engine_mock import MockRequest, make_engine, run_to_end, steps_of, write
from support.mock_backend import END, scripted

PROMPT = list(b"go")
HELLO = list(b"hello")


def told(script, *, context=64, **stops):
    """(token ids, text, finish reason, matched) of a model that writes the script."""
    model = scripted(list(script), len(PROMPT))
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
    engine = make_engine(scripted(HELLO, len(PROMPT)))
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
    engine = make_engine(scripted(HELLO, len(PROMPT)))
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
