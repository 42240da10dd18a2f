"""A thought before an answer: the grammar of both, and taking them apart, cut anywhere."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cutaway.text.grammar import Grammar
from cutaway.text.grammar.compiler import GrammarCompiler
from cutaway.text.thinking import Thinking
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


FORMS = [
    Thinking(),
    Thinking("<think>\n", "\n</think>\n\n"),
    Thinking("[THINK]", "[/THINK]"),
    Thinking("<seed:think>", "</seed:think>\n"),
    Thinking("<|channel>thought\n", "<channel|>"),
    Thinking("<|START_THINKING|>", "<|END_THINKING|>"),
]
LETTERS = "a<>/[]|think \n{é"


def cut(text: bytes, places: list[int]) -> list[bytes]:
    """The text in pieces."""
    ends = sorted({0, len(text), *(place for place in places if place < len(text))})
    return [text[a:b] for a, b in itertools.pairwise(ends)]


def apart(thinking: Thinking, pieces: list[bytes]) -> tuple[str, str]:
    parser = thinking.parser()
    pairs = [*map(parser.push, pieces), parser.finish()]
    thought, answer = (b"".join(parts) for parts in zip(*pairs, strict=True))
    return thought.decode(), answer.decode()


@given(
    st.sampled_from(FORMS), st.text(LETTERS, max_size=20), st.text(LETTERS, max_size=20),
    st.booleans(), st.lists(st.integers(0, 80), max_size=6),
)  # fmt: skip
def test_cut_anywhere_they_are_the_same(form, thought, answer, begun, cuts):
    """Also where the thought has white space of its own beside the template's."""
    thought = thought.replace(form.closing, "")
    thinking, answer = dataclasses.replace(form, begun=begun), f"={answer}"
    text = f"{'' if begun else form.before}{thought}{form.after}\n{answer}"
    if begun:
        text = form.before.removeprefix(form.opening) + text
    written = (form.opening if begun else "") + text
    assume(written.index(form.closing) == len(written) - len(answer) - 1 - len(form.after.lstrip()))
    pieces = cut(text.encode(), cuts)
    assert apart(thinking, pieces) == (thought, answer)
    starts = itertools.accumulate(map(len, pieces), initial=0)
    start = text.encode().index(form.opening.encode()) if not begun else -len(form.opening)
    first = start + len(form.opening.encode())
    last = text.encode().index(form.closing.encode(), first)
    inside = [a for a, p in zip(starts, pieces, strict=False) if a < last and a + len(p) > first]
    assert thinking.count(pieces) == len(inside)


@given(st.sampled_from(FORMS), st.text(LETTERS, max_size=20), st.integers(0, 20))
def test_an_answer_without_a_thought_is_all_of_it(form, answer, place):
    answer = answer if not answer.startswith(form.opening) else f"={answer}"
    pieces = cut(answer.encode(), [place])
    assert apart(form, pieces) == ("", answer)
    assert form.count(pieces) == 0


@given(st.sampled_from(FORMS), st.text(LETTERS, max_size=20), st.lists(st.integers(0, 40)))
def test_a_thought_that_is_cut_is_all_thought(form, thought, cuts):
    thought = thought.replace(form.closing, "")
    assume(form.closing not in thought)
    said, answer = apart(form, cut(f"{form.before}{thought}".encode(), cuts))
    assert (said, answer) == (thought, "")


def test_what_is_compiled_is_recorded_with_its_thought():
    plain, thinking = Grammar("regex", "a"), Grammar("regex", "a", thought=Thinking().grammar)
    assert plain.sha256 != thinking.sha256
    assert json.dumps(thinking.thought)
