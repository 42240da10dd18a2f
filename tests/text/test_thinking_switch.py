"""What the families' published templates can be told of thinking."""

import re
from functools import cache
from pathlib import Path

import pytest

from cutaway.errors import InputError
from cutaway.text import ChatTemplate
from cutaway.text.chat_probe import thinking_of
from cutaway.text.thinking import ThinkingSwitch, ThinkingWish

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
        assert not thinking.behind(template.render(ASK, **off.variables)).begun
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
            "chat_template_kwargs.enable_thinking: think sets it, too: give one of the two",
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
