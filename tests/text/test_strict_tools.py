"""Strict tools under every template: the arguments that a grammar takes are valid.

They are written as the template writes them, and read as the call parser reads them.
"""

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from cutaway.errors import InputError
from cutaway.text import ChatTemplate
from cutaway.text.tools import Tool, ToolChoice, grammar
from support.chat_templates import FOLDER, byte_tokenizer
from support.schema_pairs import arguments, is_valid
from support.tool_grammars import ids, matcher
from support.tool_texts import put_together, read_tokens

TEMPLATES = sorted([*FOLDER.glob("*.jinja"), *(FOLDER / "families").glob("*.jinja")])
FEW, MANY = 4, 200  # schemas of each template, with eight texts each


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", TEMPLATES, ids=[f"{p.parent.name}/{p.stem}" for p in TEMPLATES])
def test_arguments_that_can_be_written_are_valid(path: Path, count: int) -> None:
    form = ChatTemplate(path.read_text(), "<s>", "</s>")
    try:
        dialect = form.dialect(byte_tokenizer(False))
    except InputError:
        assert path.stem == "functiongemma"  # which has a form that is not supported
        return
    call_id = "0" if path.stem.startswith("kimi-k2") else "abcdefgh1"  # Kimi's are numbers
    rng, counts = random.Random(f"{path.stem} {count}"), Counter[str]()
    for _ in range(count):
        schema, some = arguments(rng)
        try:
            text = grammar(dialect, [Tool("f", "", schema)], ToolChoice("required"))
            begun = matcher(text)
        except (InputError, AssertionError):  # one that allows nothing, or is not supported
            counts["refused"] += 1
            continue
        for written in (some() for _ in range(8)):
            tokens, running = ids(dialect.write([("f", written, call_id)]), dialect), begun
            running = running.deep_copy()
            if running.try_consume_tokens(tokens) == len(tokens) and running.is_accepting():
                _, [call] = put_together(read_tokens(dialect, [Tool("f", "", schema)], tokens))
                assert is_valid(schema, call[2]), (schema, call[2])
                counts["taken"] += 1
            counts.update(pairs=1, valid=is_valid(schema, written))
    print(f"{path.stem}: {dict(counts)}")
    assert counts["taken"] or count == FEW


@pytest.mark.parametrize("stem", ["step-3.5", "hunyuan-3", "kimi-k2"])
@pytest.mark.parametrize(("pattern", "text", "fits"), [
    (r"^\w\d$", "a1", True), (r"^\w\d$", "é1", False), (r"^\w\d$", "a١", False),
    (r"^[\w-]/\W$", "-/é", True), (r"^[^\d]$", "١", True), (r"^\D$", "1", False),
])  # fmt: skip
def test_classes_of_characters_are_ascii_with_and_without_quotes(
    stem: str, pattern: str, text: str, fits: bool
) -> None:
    path = FOLDER / "families" / f"{stem}.jinja"
    dialect = ChatTemplate(path.read_text(), "<s>", "</s>").dialect(byte_tokenizer(False))
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
    schema |= {"required": ["a"], "additionalProperties": False}
    running = matcher(grammar(dialect, [Tool("f", "", schema)], ToolChoice("required")))
    tokens = ids(dialect.write([("f", json.dumps({"a": text}, ensure_ascii=False), "0")]), dialect)
    taken = running.try_consume_tokens(tokens) == len(tokens) and running.is_accepting()
    assert taken == fits == is_valid(schema, json.dumps({"a": text}))
