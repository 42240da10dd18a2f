"""An answer that is a text of a schema or calls: which it is, in every dialect, cut anywhere.

The definition: it is calls where the grammar of the calls alone takes it, else it is text.
"""

import json
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import jsonschema
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from cutaway.requests.answer import AnswerReader, SchemaOrCalls
from cutaway.text.characters import TextStream
from cutaway.text.grammar import Grammar
from cutaway.text.grammar.compiler import GrammarCompiler, accepts, byte_matcher
from cutaway.text.thinking import Thinking
from cutaway.text.tools import CallParser, Content, Tool, ToolChoice, grammar
from support.chat_templates import NAMES, byte_tokenizer, dialect
from support.tool_texts import put_together

COMPILER, REQUIRED = GrammarCompiler(byte_tokenizer()), ToolChoice("required")
ARGUMENTS = [
    {"properties": {"x": {"enum": [1, 12]}}, "required": ["x"], "additionalProperties": False},
    {"properties": {}, "additionalProperties": False},
    {"properties": {"y": {"enum": ["}", "f"]}}, "additionalProperties": False},
]
tools = st.lists(st.sampled_from(ARGUMENTS), min_size=1, max_size=2).map(
    lambda each: [Tool("fg"[i], "", schema) for i, schema in enumerate(each)]
)
VALUES = {"name": {"enum": ["f", "fg", "h"]}, "parameters": {"enum": [{"x": 1}, {"x": 2}, {}, 1]}}
objects = st.builds(
    lambda names, required, more: {
        "type": "object", "properties": {name: VALUES[name] for name in names},
        "required": names[:required], "additionalProperties": {"enum": [{}, 0]} if more else False,
    },
    st.permutations(["name", "parameters"]).flatmap(lambda p: st.sampled_from([p, p[:1]])),
    st.integers(0, 2), st.booleans(),
)  # fmt: skip
schemas = objects | st.sampled_from([
    {"enum": ["<tool_call>\n", "[TOOL_CALLS]f", '{"name": "f", "parameters": {}}', "<", "["]},
    {"type": "array", "items": {"enum": ["<|tool_call|>", {"name": "f", "arguments": {}}]},
     "maxItems": 2},
    {"enum": [1, None, True]},
])  # fmt: skip
families, control = st.sampled_from(NAMES) | st.just("llama3"), st.booleans()


def schema_grammar(schema, calls=""):
    return Grammar("json_schema", json.dumps(schema), calls=calls)


def calls_grammar(form, tools):
    return grammar(form, tools, REQUIRED)


def spelt(form, tools):
    return calls_grammar(replace(form, control={}), tools)


def reader(form, tools, schema):
    matcher = byte_matcher(schema_grammar(schema, spelt(form, tools)))
    return SchemaOrCalls(matcher, CallParser(form, tools, str, required=True))


def read(form, tools, schema, pieces):
    made = reader(form, tools, schema)
    deltas = [delta for piece in pieces for delta in made.push(piece)]
    return put_together(deltas + made.finish())


def written(draw, form, tools, schema):
    """(tokens that the masks let through, whether the text ended by itself)."""
    matcher = COMPILER.matcher(schema_grammar(schema, calls_grammar(form, tools)))
    tokens, ends = [], {*byte_tokenizer().end_ids}
    while len(tokens) < 150 and not matcher.is_over:
        bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
        may = np.flatnonzero(bits).tolist()
        signs = [token for token in may if token > 255 or token in b'"}]<[{f']
        token = draw.draw(st.sampled_from(signs or may) | st.sampled_from(may))
        if token in ends:
            return tokens, True
        matcher.accept(token)
        tokens.append(token)
    return tokens, matcher.is_over


def as_bytes(form, tokens):
    names, tokenizer = form.token_bytes, byte_tokenizer()
    return b"".join(names.get(token) or tokenizer.token_bytes(token) for token in tokens)


@settings(max_examples=60, deadline=None)
@given(families, control, tools, schemas, st.data())
def test_what_is_written_is_one_of_the_two(name, control, tools, schema, draw):
    form = dialect(name, control)
    tokens, whole = written(draw, form, tools, schema)
    data = as_bytes(form, tokens)
    content, calls = read(form, tools, schema, [data])
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=8)))
    pieces = [data[a:b] for a, b in pairwise([0, *cuts, len(data)])]
    assert read(form, tools, schema, pieces) == (content, calls)
    assert not (content and calls)
    if not whole:
        return
    # A call that is there already is the last, without the mark that all calls share.
    *before, last = [(name, arguments) for name, _, arguments, _ in calls] or [None]
    whole = accepts(data.decode(), Grammar("grammar", spelt(form, tools))).whole
    assert bool(calls) == (whole or last in before)
    if calls:
        allowed = {tool.name: tool.schema() for tool in tools}
        for called, _, arguments, ended in calls:
            jsonschema.validate(json.loads(arguments), allowed[called])
            assert ended
    else:
        assert content == data.decode()
        jsonschema.validate(json.loads(content), schema)


@settings(max_examples=40, deadline=None)
@given(families, tools, schemas, st.data())
def test_a_text_that_was_cut(name, tools, schema, draw):
    """It is what it can still be; where it can be both, calls if it has named a tool."""
    form = dialect(name)
    data = as_bytes(form, written(draw, form, tools, schema)[0])
    cut = data[: draw.draw(st.integers(0, max(0, len(data) - 1)))].decode(errors="ignore")
    content, calls = read(form, tools, schema, [cut.encode()])
    text = accepts(cut, schema_grammar(schema))
    called = accepts(cut, Grammar("grammar", spelt(form, tools)))
    assume(text.at is None or called.at is None)
    if called.at is not None:
        assert (content, calls) == (cut, [])
    elif text.at is not None or called.whole:
        assert content == ""
    else:
        assert (content == "") if calls else (content == cut)
        assert not calls or not text.whole


LLAMA, TOOLS = dialect("llama3"), [Tool("f", "", ARGUMENTS[0])]
NAMED = {"type": "object", "properties": {"name": {"type": "string"}}}


@pytest.mark.parametrize(
    ("text", "is_call"),
    [
        ('{"name": "f", "parameters": {"x": 1}}', True),  # of the schema, too
        ('{"name": "f", "parameters": {"x": 2}}', False),
        ('{"name": "f", "parameters": {"x": 1}, "more": 1}', False),
        ('{"name":"f", "parameters": {"x": 1}}', False),  # the dialect writes a space there
        ('{"name": "fg", "parameters": {"x": 1}}', False),
        ('{"name": "f"}', False),
    ],
)
def test_where_calls_are_bare_json_a_text_that_is_both_is_a_call(text, is_call):
    for pieces in ([text.encode()], [bytes([byte]) for byte in text.encode()]):
        content, calls = read(LLAMA, TOOLS, NAMED, pieces)
        assert (content, [call[0] for call in calls]) == (("", ["f"]) if is_call else (text, []))


@pytest.mark.parametrize(
    ("cut", "content", "calls"),
    [
        ('{"name": "f", "parameters": {"x"', "", [["f", "0", '{"x"', False]]),
        ('{"name": "f", "param', '{"name": "f", "param', []),
        ('{"name": "f", "parameters": {"x": 2', '{"name": "f", "parameters": {"x": 2', []),
        ("", "", []),
    ],
)
def test_what_was_cut_is_a_call_once_it_has_named_a_tool(cut, content, calls):
    assert read(LLAMA, TOOLS, NAMED, [cut.encode()]) == (content, calls)


def test_a_whole_text_is_no_call_that_was_cut():
    text, form = '{"name": "f", "parameters": {"x": 1}}', replace(LLAMA, tail=("}\n;",))
    assert read(form, TOOLS, NAMED, [text.encode()]) == (text, [])
    assert read(form, TOOLS, NAMED, [text[:-1].encode()])[1][0][0] == "f"
    assert read(form, TOOLS, NAMED, [f"{text}\n;".encode()])[1][0][3]


def test_a_text_is_told_as_soon_as_it_cannot_be_a_call():
    made = reader(LLAMA, TOOLS, NAMED)
    assert made.push(b'{"name": "') == []
    assert made.push(b"g") == [Content('{"name": "g')]
    assert made.push("é".encode()[:1]) == []
    assert made.push("é".encode()[1:]) == [Content("é")]


def test_a_call_is_told_as_soon_as_it_cannot_be_a_text():
    closed = NAMED | {"additionalProperties": False}
    made = reader(LLAMA, TOOLS, closed)
    assert made.push(b'{"name": "f", ') == []
    assert [type(delta).__name__ for delta in made.push(b'"parameters": {')] == [
        "CallStart",
        "Arguments",
    ]


# -- answer ----------------------------------------------------------------------------------------

# Thought and answer of any bytes: a mark stands where it was drawn, whatever was no character.


OPENING, CLOSING = 256, 257
THINKING = Thinking(control={"<think>": OPENING, "</think>": CLOSING})
MARKS = {OPENING: "<think>", CLOSING: "</think>"}
tokens = st.sampled_from([*"aé漢".encode(), 0x20, 0xC3, 0xE6, 0xFF]) | st.just(CLOSING)
spelled = st.sampled_from([[*b"</think>"], [*b"<think>"], [*b"</thi"], [*b"nk>"]])
texts_of_tokens = st.lists(spelled | tokens.map(lambda token: [token]), max_size=12)


@given(texts_of_tokens, st.booleans(), st.booleans())
@example([[0xFF], [*b"</think>"]], False, False)  # the byte that a parser reads before a mark
def test_a_mark_stands_where_its_token_was_drawn(parts, begun, visible):
    """Behind the characters that were whole; what spells it by other tokens is text.

    visible: whether the token has a text, as most vocabularies' have
    """

    def token_bytes(token):
        return (MARKS[token].encode() if visible else b"") if token in MARKS else bytes([token])

    ids = [token for part in ([] if begun else [[OPENING]], parts) for one in part for token in one]
    reader = AnswerReader(None, {}, token_bytes, Thinking(opened=begun, control=THINKING.control))
    stream = TextStream()
    texts = [stream.push(token_bytes(token)) for token in ids]
    rest = stream.flush()
    steps = [
        SimpleNamespace(token_id=token, text=text) for token, text in zip(ids, texts, strict=True)
    ]
    told = [part for step in steps for part in reader.push(step)] + reader.finish(rest)
    written = [
        f"{text.removesuffix(MARKS[token])}\0{MARKS[token]}" if token in MARKS else text
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
