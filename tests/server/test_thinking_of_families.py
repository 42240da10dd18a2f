"""Thinking by request in every published family that thinks, through all four protocols.

Random models with the families' templates, whose thought is begun where the prompt does not begin
it: as of a model that would always think.
"""

import re
from functools import cache

import httpx
import pytest

from cutaway import LLM
from cutaway.server.http.settings import ServerSettings
from cutaway.text import ChatTemplate
from cutaway.text.harmony import Harmony
from cutaway.text.harmony_parser import MARKS
from cutaway.text.thinking_probe import thinking_of
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


@pytest.fixture(scope="module")
def family(request, tmp_path_factory):
    """(a model with the template and its marks, a server of it)"""
    template = template_of(request.param)
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
    folder = tmp_path_factory.mktemp("family")
    path = write_tiny_llama(folder / "t.gguf", metadata=metadata, context=8192)
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
