"""Lines of a text that is written piece by piece end between words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.cli.terminal.drawing import WordWrap, width

texts = st.text(st.sampled_from("ab  \n猫"), max_size=60)


def wrapped(pieces, columns):
    written = []
    wrap = WordWrap(written.append, lambda: columns)
    for piece in pieces:
        wrap.push(piece)
    wrap.flush()
    return "".join(written)


def test_a_line_ends_before_a_word_that_does_not_fit():
    pieces = ["The sky", " is bl", "ue and", " wide.\n  x"]
    assert wrapped(pieces, 11) == "The sky is\nblue and\nwide.\n  x"
    assert wrapped(["so long a", "bcdefghijklm it"], 6) == "so\nlong\nabcde\nfghijk\nlm it"
    assert wrapped(["猫猫猫 a"], 4) == "猫猫\n猫 a"


@given(texts, st.integers(2, 12))
def test_pieces_change_nothing_and_no_character_but_blanks_is_lost(text, columns):
    whole = wrapped([text], columns)
    assert wrapped(text, columns) == whole
    assert "".join(whole.split()) == "".join(text.split())
    for line in whole.split("\n"):
        assert width(line) <= columns


@pytest.mark.model
def test_a_chat_is_no_wider_than_the_terminal(smollm2_path, terminal):
    chat = terminal("chat", "-m", smollm2_path, "--seed", "3", "--max-tokens", "40", columns=50)
    header = chat.until("> ")  # a bar while the model loads is drawn again and again after \r
    assert "Ctrl-D quits" in " ".join(header.split())
    answer = chat.say("Tell me about the sea.", then="\n> ").partition("\n")[2]
    assert "max_tokens · seed 3]" in " ".join(answer.split())
    commands = chat.say("/help", then="\n> ").partition("\n")[2]
    assert "Ctrl-D quits)" in " ".join(commands.split())
    lines = [*header.splitlines(), *answer.splitlines(), *commands.splitlines()]
    assert len(lines) > 8
    assert all(width(line.replace("\x1b[K", "")) <= 50 for line in lines)
    chat.type("\x04")
    assert chat.end()[0] == 0
