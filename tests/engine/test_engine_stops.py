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


def test_the_end_token_is_a_token_but_no_text():
    assert told([*HELLO, END]) == ("hello|", "hello", FinishReason.END_TOKEN, END)


def test_the_end_token_may_come_first():
    assert told([END]) == ("|", "", FinishReason.END_TOKEN, END)


def test_ignore_eos_writes_on_past_the_end_token():
    ended = told([*HELLO, END, *b"!!"], ignore_eos=True, max_tokens=8)
    assert ended == ("hello|!!", "hello<end>!!", FinishReason.MAX_TOKENS, None)


@pytest.mark.parametrize("ids", [(ord("l"),), (ord("o"), ord("l")), [ord("l")]])
def test_a_stop_token_is_a_token_but_no_text(ids):
    assert told(HELLO, stop_token_ids=ids) == ("hel", "he", FinishReason.STOP_TOKEN, ord("l"))


def test_stop_tokens_of_the_prompt_do_not_count():
    assert told(HELLO, stop_token_ids=(ord("g"),), max_tokens=2)[2] == FinishReason.MAX_TOKENS


@pytest.mark.parametrize("stop", ["ll", ("ll",), ["zz", "ll", "lo"]])
def test_a_stop_string_is_tokens_but_no_text(stop):
    assert told(HELLO, stop=stop) == ("hell", "he", FinishReason.STOP_STRING, "ll")


def test_of_two_stop_strings_the_longest_is_reported():
    assert told(HELLO, stop=("l", "el", "ell")) == ("hel", "h", FinishReason.STOP_STRING, "el")


def test_a_stop_string_does_not_begin_in_the_prompt():
    assert told(HELLO, stop="goh")[2:] == (FinishReason.MAX_TOKENS, None)


def test_a_stop_string_is_not_made_of_the_end_tokens_name():
    assert told([*HELLO, END], stop="<end>")[1:] == ("hello", FinishReason.END_TOKEN, END)


def test_max_tokens_counts_new_tokens():
    assert told(HELLO, max_tokens=3) == ("hel", "hel", FinishReason.MAX_TOKENS, None)


def test_a_full_context_ends_the_text():
    assert told(HELLO, context=6) == ("hell", "hell", FinishReason.CONTEXT_FULL, None)


def test_the_longest_prompt_leaves_room_for_one_token():
    assert told(HELLO, context=3) == ("h", "h", FinishReason.CONTEXT_FULL, None)


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
