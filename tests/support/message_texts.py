"""Answers of several messages over a vocabulary of bytes and marks: allowed, drawn, and read."""

import json
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np

from cutaway.text import Tokenizer
from cutaway.text.grammar import Grammar
from cutaway.text.grammar.compiler import GrammarCompiler
from cutaway.text.grammar.llguidance_source import nested_json
from cutaway.text.grammar.matcher import Matcher
from cutaway.text.message_form import MessageForm
from cutaway.text.thinking import Thought
from cutaway.text.tools import Tool, ToolChoice
from support.chat_templates import FOLDER
from support.random_llama import WORDS, write_tiny_llama
from support.text_vocabularies import CONTROL, byte_level
from support.tool_texts import put_together


class MarkedBytes:
    """A tokenizer of the 256 bytes and these marks, with what is written and read over it."""

    def __init__(self, marks: Iterable[str], **fields: int) -> None:
        names = [*marks]
        ends: dict[str, Any] = {name: 256 + index for name, index in fields.items()}
        extra: list[tuple[str, int]] = [(name, CONTROL) for name in names]
        self.tokenizer = Tokenizer.from_gguf(byte_level(extra=extra, **ends))
        self._compiler = GrammarCompiler(self.tokenizer)

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, special=True)

    def can_write(self, grammar: Grammar, text: str) -> bool:
        """Return whether the masks allow the text; a token that ends it is the last."""
        matcher, tokens = self._compiler.matcher(grammar), self.ids(text)
        for token in tokens:
            if matcher.is_over or token not in list_allowed(matcher):
                return False
            if token in self.tokenizer.end_ids:
                matcher.finish(token)
                return token == tokens[-1]
            matcher.accept(token)
        return matcher.may_end

    def parser_bytes(self, form: MessageForm, tokens: Sequence[int]) -> list[bytes]:
        """What a parser reads for each token."""
        names = form.token_bytes
        return [names.get(token) or self.tokenizer.token_bytes(token) for token in tokens]

    def walk(self, grammar: Grammar, rng: random.Random, limit: int) -> tuple[list[int], bool]:
        """Tokens drawn from the masks, and whether the text ended by itself."""
        matcher, tokens = self._compiler.matcher(grammar), list[int]()
        while len(tokens) < limit and not matcher.is_over:
            if matcher.may_end and rng.random() < 0.3:
                return tokens, True
            choices = list_allowed(matcher)
            marks = [token for token in choices if token >= 256]
            token = rng.choice(marks if marks and rng.random() < 0.3 else choices)
            tokens.append(token)
            if token in self.tokenizer.end_ids:
                matcher.finish(token)
                return tokens, True
            matcher.accept(token)
        return tokens, matcher.is_over


def list_allowed(matcher: Matcher) -> list[int]:
    bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
    return np.flatnonzero(bits).tolist()


def read_answer(
    form: MessageForm, tools: Sequence[Tool], pieces: Iterable[bytes]
) -> tuple[str, str, list[list[str]]]:
    """(thought, content, calls)"""
    parser = form.reader(tools, lambda index: f"call{index}")
    deltas = [delta for piece in pieces for delta in parser.push(piece)] + parser.finish()
    thoughts = "".join(d.text for d in deltas if isinstance(d, Thought))
    return thoughts, *put_together([d for d in deltas if not isinstance(d, Thought)])


def list_grammars(
    form: MessageForm, tools: Sequence[Tool], schema: Mapping[str, Any]
) -> list[Grammar]:
    """Return the grammars of a schema, of calls that are allowed and required, and of both."""
    auto, required = ToolChoice("auto"), ToolChoice("required")
    return [
        Grammar("json_schema", json.dumps(schema), thought=form.grammar),
        Grammar("grammar", form.with_tools(tools, auto)),
        Grammar("grammar", form.with_tools(tools, required)),
        Grammar("grammar", form.with_tools(tools, auto, nested_json(schema))),
    ]


def check_drawn_answer(
    vocabulary: MarkedBytes,
    form: MessageForm,
    tools: Sequence[Tool],
    schema: Mapping[str, Any],
    number: int,
    rng: random.Random,
) -> None:
    """Draw an answer from a grammar of ``list_grammars``: it is read, however it is cut."""
    tokens, is_whole = vocabulary.walk(list_grammars(form, tools, schema)[number], rng, 600)
    pieces = vocabulary.parser_bytes(form, tokens)
    answer = read_answer(form, tools, pieces)
    single = [bytes([byte]) for byte in b"".join(pieces)]
    assert read_answer(form, tools, single) == answer
    if not is_whole:
        return
    _, content, calls = answer
    assert bool(calls) >= (number == 2)
    for name, _, arguments, is_closed in calls:
        [tool] = [tool for tool in tools if tool.name == name]
        assert is_closed
        if tool.format is None:
            jsonschema.validate(json.loads(arguments), tool.schema())
    if not calls and number in (0, 3):
        jsonschema.validate(json.loads(content), schema)


BYTES = WORDS[:254]  # those that a text may have


def write_marked_llama(folder: Path, template: str, marks: Collection[str], end: str) -> Path:
    """Write a file of a model with a test template and these marks; ``end`` ends its texts."""
    fillers = WORDS[256 : 263 - len(marks)]
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *marks, *fillers]
    metadata = {
        "tokenizer.chat_template": (FOLDER / f"{template}.jinja").read_text("utf-8"),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [
            *[2, 3, 3],
            *[6] * len(BYTES),
            *[3] * len(marks),
            *[1] * len(fillers),
        ],
        "tokenizer.ggml.eos_token_id": tokens.index(end),
    }
    return write_tiny_llama(folder / "t.gguf", metadata=metadata, context=4096)


def marked_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode a text as such a model writes it: no space in front of a text behind a mark."""
    token_ids: list[int] = []
    for part in tokenizer._all_specials.split(text):
        token_ids += [part] if isinstance(part, int) else [3 + byte for byte in part.encode()]
    return token_ids
