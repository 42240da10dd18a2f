"""A thought before an answer: the grammar of both, and taking them apart, cut anywhere."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.text.grammar.compiler import GrammarCompiler
from cutaway.text.grammar.source import Grammar
from cutaway.text.thinking import Thinking, ThinkingParser
from support.mock_backend import END, Words

OPENING, CLOSING = 254, 253  # of the vocabulary that has both tags as control tokens


class Tagged(Words):
    """The bytes, two of which are control tokens instead."""

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id in (OPENING, CLOSING) else super().token_bytes(token_id)

    def token_name(self, token_id: int) -> str:
        return {OPENING: "<think>", CLOSING: "</think>"}.get(token_id, f"<{token_id}>")


PLAIN, CONTROL = GrammarCompiler(Words()), GrammarCompiler(Tagged())
TAGS = {"<think>": OPENING, "</think>": CLOSING}
ANSWERS = {
    "json_schema": ('{"type":"array","items":{"type":"integer"}}', b"[1, 2]", b"[1, x"),
    "regex": ("a/[0-9]+", b"a/12", b"b"),
    "choice": ('["yes","no"]', b"no", b"nx"),
    "grammar": ('start: "a" | "b" start', b"bba", b"bc"),
}


def writes(compiler: GrammarCompiler, grammar: Grammar, tokens: list[int]) -> bool:
    """By the masks alone."""
    matcher = compiler.matcher(grammar)
    for token in [*tokens, END]:
        if matcher.is_over:
            return token == END
        if not np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")[token]:
            return False
        if token != END:
            matcher.accept(token)
    return True


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("control", [False, True])
def test_an_answer_may_follow_a_thought(kind, begun, control):
    text, good, bad = ANSWERS[kind]
    compiler, tags = (CONTROL, TAGS) if control else (PLAIN, {})
    opening = [OPENING] if control else [*b"<think>"]
    closing = [CLOSING] if control else [*b"</think>"]
    grammar = Grammar(kind, text, thought=Thinking(begun=begun, control=tags).grammar)
    thought = [*([] if begun else opening), *b"it is { hard\n", *closing, *b"\n\n"]
    assert writes(compiler, grammar, [*thought, *good])
    assert not writes(compiler, grammar, [*thought, *bad])
    assert not writes(compiler, grammar, thought)
    assert writes(compiler, grammar, [*good]) == (not begun)


@given(
    st.text("a<>/think {", max_size=20).filter(lambda t: "</think>" not in t),
    st.text("a<>/think }", max_size=20),
    st.booleans(),
    st.lists(st.integers(0, 60), max_size=6),
)
def test_cut_anywhere_they_are_the_same(thought, answer, begun, cuts):
    answer = f"={answer}"
    text = f"{'' if begun else '<think>'}{thought}</think>\n\n{answer}".encode()
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    apart = ThinkingParser(Thinking(begun=begun))
    pairs = [apart.push(text[a:b]) for a, b in itertools.pairwise(places)]
    pairs.append(apart.finish())
    assert b"".join(t for t, _ in pairs).decode() == thought
    assert b"".join(a for _, a in pairs).decode() == answer


@given(st.text("a<>/think", max_size=20).filter(lambda t: not t.startswith("<think>")))
def test_an_answer_without_a_thought_is_all_of_it(answer):
    apart = ThinkingParser(Thinking())
    pairs = [apart.push(bytes([byte])) for byte in answer.encode()] + [apart.finish()]
    assert b"".join(a for _, a in pairs).decode() == answer
    assert not any(thought for thought, _ in pairs)


def test_what_is_compiled_is_recorded_with_its_thought():
    plain, thinking = Grammar("regex", "a"), Grammar("regex", "a", thought=Thinking().grammar)
    assert plain.sha256 != thinking.sha256
    assert json.dumps(thinking.thought)
