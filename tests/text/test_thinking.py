"""A thought before an answer: the grammar of both, and taking them apart, cut anywhere."""

import dataclasses
import itertools
import json
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cutaway.errors import InputError
from cutaway.text import ChatTemplate
from cutaway.text.chat_probe import thinking_of
from cutaway.text.grammar import Grammar
from cutaway.text.grammar.compiler import GrammarCompiler
from cutaway.text.thinking import Thinking
from cutaway.text.thinking_switch import ThinkingSwitch, ThinkingWish
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
    grammar = Grammar(kind, text, thought=Thinking(opened=begun, control=tags).grammar)
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
    thinking, answer = dataclasses.replace(form, opened=begun), f"={answer}"
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


# -- the switch: what published templates can be told ------------------------------------------

FOLDER = Path(__file__).parent.parent / "data" / "chat_templates" / "families"
ASK = [{"role": "user", "content": "Hi"}]
FLAG, LEVELS, BUDGET, NONE = "a flag", "levels", "a budget", "nothing"
HOW = {
    "apertus": FLAG,
    "bielik-3": FLAG,
    "command-r7b-tools": FLAG,
    "deepseek-r1-distill": FLAG,
    "deepseek-r1-tools": NONE,
    "deepseek-v3": NONE,
    "deepseek-v3.1": FLAG,
    "deepseek-v3.2": FLAG,
    "gemma-4": FLAG,
    "glm-4.5": FLAG,
    "glm-4.6": FLAG,
    "glm-4.7-flash": FLAG,
    "gpt-oss": NONE,  # its levels have no "none"
    "granite-3.3": FLAG,
    "hunyuan-3": LEVELS,
    "kimi-k2-thinking": NONE,
    "lfm2.5": NONE,
    "minimax-m2": NONE,
    "ministral-3": NONE,
    "muse-glimmer": NONE,
    "nemotron-3-nano": FLAG,
    "nemotron-3-super": FLAG,
    "nemotron-nano-v2": NONE,
    "qwen3": FLAG,
    "qwen3-training": FLAG,
    "qwen3.5": FLAG,
    "qwq": FLAG,
    "rwkv-world": FLAG,
    "seed-oss": BUDGET,
    "smollm3": FLAG,
    "step-3.5": NONE,
}
"""How a family is told not to think."""


class Tokenizer:
    """One whose tokens are all marks that look like some."""

    def control_tokens(self, text):
        return {name: index for index, name in enumerate(re.findall(r"<\|\w+\|>", text))}

    def encode(self, text, **_):
        return [text]


def template_of(name):
    return ChatTemplate((FOLDER / f"{name}.jinja").read_text("utf-8"), "<s>", "</s>")


@cache
def switch_of(name):
    template = template_of(name)
    return template, ThinkingSwitch(template, thinking_of(template, Tokenizer()))


@pytest.mark.parametrize("name", HOW)
def test_no_prompt_opens_a_thought_that_is_not_wanted(name):
    template, switch = switch_of(name)
    off = switch.settings(ThinkingWish(think=False))
    kinds = {"reasoning_effort": LEVELS, "thinking_budget": BUDGET, switch.flag: FLAG}
    assert [kinds[one] for one in off.variables] == ([] if HOW[name] == NONE else [HOW[name]])
    assert off == switch.settings(ThinkingWish("none"))
    assert off.is_off == (HOW[name] != NONE)
    thinking = thinking_of(template, Tokenizer())
    if off.is_off:
        assert not thinking.with_prompt(template.render(ASK, **off.variables)).opened
        assert (off.tokens, off.opens, off.notes) == (0, False, ())
    else:  # what is left is to force the empty thought
        assert (off.tokens, off.opens, len(off.notes)) == (0, True, 1)


def test_every_family_with_thoughts_is_in_the_table():
    thinking = {
        path.stem
        for path in FOLDER.glob("*.jinja")
        if thinking_of(template_of(path.stem), Tokenizer())
    }
    assert thinking == {*HOW}


@pytest.mark.parametrize("name", [name for name, how in HOW.items() if how == FLAG])
def test_a_flag_switches_on_too(name):
    template, switch = switch_of(name)
    on, off = (switch.settings(ThinkingWish(think)).variables for think in (True, False))
    assert template.render(ASK, **on) != template.render(ASK, **off)
    high = switch.settings(ThinkingWish("high"))
    assert high.variables == on and "on and off" in high.notes[0]


@pytest.mark.parametrize(
    ("name", "levels"),
    [
        ("gpt-oss", ("low", "medium", "high")),
        ("hunyuan-3", ("no_think", "low", "high")),
        ("solar-open", ("minimal", "low", "high")),
        ("qwen3", ()),
    ],
)
def test_levels(name, levels):
    _, switch = switch_of(name)
    assert switch.levels == levels
    for level in levels[1:]:
        assert switch.settings(ThinkingWish(level)).variables == {"reasoning_effort": level}


def test_a_budget_that_the_template_writes():
    template, switch = switch_of("seed-oss")
    told = switch.settings(ThinkingWish(tokens=512))
    assert (told.variables, told.tokens) == ({"thinking_budget": 512}, 512)
    assert "512" in template.render(ASK, **told.variables)


@pytest.mark.parametrize(
    ("name", "wish", "sentence"),
    [
        ("gpt-oss", {"think": "max"}, "think: this model's template knows low, medium, high, not"),
        ("ministral-3", {"think": "low"}, "think: this model's template has no levels of thinking"),
        ("llama-3.1", {"think": True}, "think: this model's template has no words for thoughts"),
        ("llama-3.1", {"think": "low"}, "think: this model's template has no words for thoughts"),
        ("llama-3.1", {"tokens": 4}, "think_budget: this model's template has no words for thou"),
        ("qwen3", {"variables": {"thinking": 1}}, "does not read 'thinking'; it reads enable_thi"),
        ("qwen2.5", {"variables": {"x": 1}}, "does not read 'x'; it reads none"),
        ("gpt-oss", {"variables": {"builtin_tools": ["python"]}}, "does not read 'builtin_tools'"),
        (
            "qwen3", {"think": True, "variables": {"enable_thinking": False}},
            "chat_template_kwargs.enable_thinking contradicts think: give one of the two",
        ),
    ],
)  # fmt: skip
def test_what_a_template_cannot_be_told_is_refused(name, wish, sentence):
    _, switch = switch_of(name)
    with pytest.raises(InputError, match=re.escape(sentence)):
        switch.settings(ThinkingWish(**wish))


@pytest.mark.parametrize(
    ("wish", "sentence"),
    [
        ({"think": "much"}, "think must be one of none, minimal, low, medium, high, xhigh, max"),
        ({"think": 1}, "think must be one of none"),
        ({"tokens": -1}, "think_budget must be 0 or more"),
        ({"think": False, "tokens": 5}, "think_budget: without thoughts there is no budget"),
        ({"variables": "a"}, "chat_template_kwargs must be an object"),
    ],
)
def test_what_no_template_knows_is_refused(wish, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        ThinkingWish(**wish)


def test_a_model_without_thoughts_need_not_be_told_to_have_none():
    _, switch = switch_of("llama-3.1")
    off = switch.settings(ThinkingWish(think=False))
    assert (off.variables, off.tokens, off.notes) == ({}, None, ())
