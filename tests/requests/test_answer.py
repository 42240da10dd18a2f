"""Thought and answer of any bytes: a mark stands where it was drawn, whatever was no character."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from cutaway.requests.answer import AnswerReader
from cutaway.text.characters import TextStream
from cutaway.text.thinking import Thinking

OPENING, CLOSING = 256, 257
THINKING = Thinking(control={"<think>": OPENING, "</think>": CLOSING})
NAMES = {OPENING: "<think>", CLOSING: "</think>"}
tokens = st.sampled_from([*"aé漢".encode(), 0x20, 0xC3, 0xE6, 0xFF]) | st.just(CLOSING)
spelled = st.sampled_from([[*b"</think>"], [*b"<think>"], [*b"</thi"], [*b"nk>"]])
texts_of_tokens = st.lists(spelled | tokens.map(lambda token: [token]), max_size=12)


@given(texts_of_tokens, st.booleans(), st.booleans())
def test_a_mark_stands_where_its_token_was_drawn(parts, begun, visible):
    """Behind the characters that were whole; what spells it by other tokens is text.

    visible: whether the token has a text, as most vocabularies' have
    """

    def token_bytes(token):
        return (NAMES[token].encode() if visible else b"") if token in NAMES else bytes([token])

    ids = [token for part in ([] if begun else [[OPENING]], parts) for one in part for token in one]
    reader = AnswerReader(None, {}, token_bytes, Thinking(begun=begun, control=THINKING.control))
    stream = TextStream()
    texts = [stream.push(token_bytes(token)) for token in ids]
    rest = stream.flush()
    steps = [
        SimpleNamespace(token_id=token, text=text) for token, text in zip(ids, texts, strict=True)
    ]
    told = [part for step in steps for part in reader.push(step)] + reader.finish(rest)
    written = [
        f"{text.removesuffix(NAMES[token])}\0{NAMES[token]}" if token in NAMES else text
        for token, text in zip(ids, texts, strict=True)
    ]
    whole = ("".join(written) + rest).removeprefix("\0<think>")
    thought, closing, answer = (part.replace("\0", "") for part in whole.partition("\0</think>"))
    said = reader.message
    assert said.get("reasoning_content", "") == thought
    assert said["content"] == (answer.lstrip(" \n") if closing else "")
    assert "".join(part.text for part in told) == thought + said["content"]
    inside = ids[0 if begun else 1 :]
    count = inside.index(CLOSING) if CLOSING in inside else len(inside)
    assert reader.reasoning_tokens == count
