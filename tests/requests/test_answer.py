"""Thought and answer of any bytes: a mark stands where it was drawn, whatever was no character."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from cutaway.requests.answer import AnswerReader
from cutaway.text.stream import TextStream
from cutaway.text.thinking import Thinking

OPENING, CLOSING = 256, 257
THINKING = Thinking(control={"<think>": OPENING, "</think>": CLOSING})
NAMES = {OPENING: "<think>", CLOSING: "</think>"}
tokens = st.sampled_from([*"aé漢".encode(), 0x20, 0xC3, 0xE6, 0xFF]) | st.just(CLOSING)


def token_bytes(token):
    return b"" if token in NAMES else bytes([token])


def shown(ids):
    """What each step shows, and the text at the end."""
    stream = TextStream()
    return [stream.push(token_bytes(token)) for token in ids], stream.flush()


@given(st.lists(tokens, max_size=12), st.booleans())
def test_a_mark_stands_behind_the_characters_that_were_whole(ids, begun):
    ids = ids if begun else [OPENING, *ids]
    reader = AnswerReader(None, {}, token_bytes, Thinking(begun=begun, control=THINKING.control))
    texts, rest = shown(ids)
    steps = [
        SimpleNamespace(token_id=token, text=text) for token, text in zip(ids, texts, strict=True)
    ]
    parts = [part for step in steps for part in reader.push(step)] + reader.finish(rest)
    whole = "".join(NAMES.get(token, text) for token, text in zip(ids, texts, strict=True)) + rest
    thought, closing, answer = whole.removeprefix("<think>").partition("</think>")
    said = reader.message
    assert said.get("reasoning_content", "") == thought
    assert said["content"] == (answer.lstrip(" \n") if closing else "")
    assert "".join(part.text for part in parts) == thought + said["content"]
