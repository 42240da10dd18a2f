"""Thinking by request in every published family that thinks, through all four protocols.

Random models with the families' templates, whose thought is begun where the prompt does not begin
it: as of a model that would always think.
"""

import re
from functools import cache
from itertools import product

import httpx
import pytest

from cutaway import LLM
from cutaway.server.http.settings import ServerSettings
from cutaway.text import ChatTemplate
from cutaway.text.chat_probe import thinking_of
from cutaway.text.harmony import MARKS, Harmony
from support.chat_templates import FOLDER
from support.random_llama import WORDS, write_tiny_llama
from support.served import serve
from support.thoughts import ASK, FORMS, NONE, TWENTY, thought_and_count

TAG = re.compile(r"<[^<>]+>|\[/?[A-Z]+\]")


def families() -> list[str]:
    """Those whose templates have words for thoughts."""
    paths = sorted((FOLDER / "families").glob("*.jinja"))
    return [path.stem for path in paths if thinking_of(template_of(path.stem), Marks())]


class Marks:
    """A tokenizer to which all that looks like a mark is one token."""

    @staticmethod
    def control_tokens(text):
        return {name: index for index, name in enumerate(re.findall(r"<\|\w+\|>", text))}

    @staticmethod
    def encode(text, **_):
        return [text]


@cache
def template_of(name):
    source = (FOLDER / "families" / f"{name}.jinja").read_text("utf-8")
    return ChatTemplate(source, "<s>", "</s>")


def written(name, folder):
    """A file of a model with the family's template and its marks."""
    template = template_of(name)
    thinking = thinking_of(template, Marks())
    marks = [*MARKS] if isinstance(thinking, Harmony) else TAG.findall(thinking.empty)
    tokens, kinds = ["<unk>", "<s>", "</s>", *WORDS], [2, 3, 3, *[6] * 256, *[1] * 5]
    free = [i for i, token in enumerate(tokens) if kinds[i] == 1 or (token > "<0xF4>" and i > 2)]
    for place, mark in zip(free, marks, strict=False):
        tokens[place], kinds[place] = mark, 3
    metadata = {
        "tokenizer.chat_template": template.source,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
    }
    return write_tiny_llama(folder / "t.gguf", metadata=metadata, context=8192)


@pytest.fixture(scope="module")
def family(request, tmp_path_factory):
    """(a model with the template and its marks, a server of it)"""
    path = written(request.param, tmp_path_factory.mktemp("family"))
    with (
        LLM(path, threads=1, progress=False) as llm,
        serve(llm, ServerSettings(names=["t"])) as served,
    ):
        yield llm, served


def asked(family, path, wish=None, **fields):
    """(whether a thought was begun, what was thought, how many tokens of it were counted)"""
    llm, served = family
    prompt = llm.detokenize(llm.chat_prompt(ASK, think=wish), special=True)
    thinking = llm.model.thinking.behind(prompt)
    body = {"model": "t", **FORMS[path], **fields}
    begins = path != "/api/chat" and not thinking.begun  # Ollama's form cannot begin one
    if begins:
        body |= {"forced": thinking.token_ids(thinking.opening, llm.tokenizer), "seed": 1}
    answer = httpx.post(served.url + path, json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return begins or thinking.begun, *thought_and_count(path, answer.json())


def asked_by(index: int) -> str:
    """The protocol in which a family is asked in the usual run, each in turn: what a protocol says
    of a thought does not depend on the family."""
    return [*FORMS][index % len(FORMS)]


every_family = pytest.mark.parametrize(
    ("family", "path"),
    [
        pytest.param(name, path, marks=[] if path == asked_by(i) else pytest.mark.slow)
        for i, name in enumerate(families())
        for path in FORMS
    ],
    indirect=["family"],
)


@every_family
def test_none_gives_no_thought(family, path):
    begun, _, count = asked(family, path)
    assert count > 0 or not begun
    assert asked(family, path, wish=False, **NONE[path])[1:] == ("", 0)


@every_family
def test_a_budget_of_20_gives_20_at_most(family, path):
    begun, _, count = asked(family, path, **TWENTY[path])
    assert count <= 20 and (count > 0 or not begun)


CALL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
ASKED_FOR = [
    {"json_schema": {"type": "integer"}},
    {"tools": [CALL], "tool_choice": "required"},
]
SLASH = [{"role": "system", "content": "/no_think"}, *ASK]


def told_not_to_think(llm):
    """(messages, keywords) of requests that are to have no thought: by the flag of the template,
    by ours, and those whose prompt has a closed one, as some templates write by themselves or
    behind a word of the system's."""
    if flag := llm.model.thinking_switch.flag:
        yield ASK, {"think": False}
        yield ASK, {"chat_template_kwargs": {flag: False}}
    for said in (ASK, SLASH):
        prompt = llm.detokenize(llm.chat_prompt(said), special=True)
        if prompt.rstrip().endswith(llm.model.thinking.closing):
            yield said, {}


@pytest.mark.parametrize("name", families())
def test_a_thought_that_was_closed_does_not_begin_again(name, tmp_path):
    """Under a schema or required calls, though the model would."""
    with LLM(written(name, tmp_path), threads=1, progress=False) as llm:
        thinking = llm.model.thinking
        if isinstance(thinking, Harmony):
            pytest.skip("its messages are in channels, which a schema or a call requires")
        opening = thinking.token_ids(thinking.opening, llm.tokenizer)[0]
        eager = {"logit_bias": {opening: 100}, "max_tokens": 4}
        for (said, given), wanted in product(told_not_to_think(llm), ASKED_FOR):
            done = llm.chat(said, **given, **wanted, **eager)
            assert done.steps[0].token_id != opening, (said, given, wanted)
            assert "reasoning_content" not in done.new_messages[0]


def test_some_prompts_close_a_thought_because_of_what_the_system_says():
    """So what a thought is depends on the messages, and not on variables alone."""
    for name in ("smollm3", "nemotron-nano-v2"):
        assert template_of(name).render(SLASH).rstrip().endswith("</think>")
        assert not template_of(name).render(ASK).rstrip().endswith("</think>")


def test_what_a_closed_thought_lets_pass_is_all_answer(tmp_path):
    """Also what looks like another thought, under a grammar that has it."""
    metadata = {"tokenizer.chat_template": template_of("qwen3").source}
    with LLM(write_tiny_llama(tmp_path / "t.gguf", metadata=metadata), progress=False) as llm:
        off = {"chat_template_kwargs": {"enable_thinking": False}}
        done = llm.chat(ASK, regex="<think>no</think>", max_tokens=40, **off)
    assert done.new_messages[0] == {"role": "assistant", "content": "<think>no</think>"}
