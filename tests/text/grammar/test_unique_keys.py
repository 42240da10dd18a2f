"""An object that may have any keys has none of them twice."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.errors import InputError
from cutaway.text.grammar import Grammar
from cutaway.text.grammar.compiler import GrammarCompiler, accepts
from cutaway.text.grammar.matcher import has_open_objects
from cutaway.text.grammar.partial_json import PartialJson
from support.mock_backend import Words

TOKENS = [
    *(bytes([i]) for i in range(256)), b"", b'""', b'":', b'","', b'"a"', b',"a"', b'"a":', b'a"',
    b'},"a":', b'b":1,"a":', b'{"a":{"a":', b'\\u0061"', b'":"","":"',
]  # fmt: skip


class MoreWords(Words):
    vocab_size = len(TOKENS)

    def token_bytes(self, token_id: int) -> bytes:
        return TOKENS[token_id]


COMPILER = GrammarCompiler(MoreWords())


def judged(text: bytes) -> tuple[set[bytes], set[bytes]]:
    """The tokens that may not follow though they would be JSON, and those with a key again."""
    matcher = COMPILER.matcher(Grammar("json_schema", "true"))
    for byte in text:
        matcher.accept(byte)
    mask = matcher.fork().mask()
    free = np.empty_like(mask)
    matcher._ways[0].matcher.unsafe_compute_mask_ptr(free.ctypes.data, free.nbytes)
    bits = np.unpackbits(np.array([free, mask]).view(np.uint8), axis=1, bitorder="little")
    tokens = [TOKENS[i] for i in np.flatnonzero(bits[0])]
    return {TOKENS[i] for i in np.flatnonzero(bits[0] & ~bits[1])}, {*filter(repeats(text), tokens)}


def repeats(text: bytes):
    def with_token(token: bytes) -> bool:
        reader = PartialJson()
        for _ in reader.read(text + token):
            pass
        return reader.repeated

    return with_token


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        (b'{"a":1', b',"a"'), (b'{"a":1,', b'"a":'), (b'{"a":1,"', b'a"'), (b'{"a":1,"a', b'"'),
        (b'{"ab":1,"a', b'b":1,"a":'), (b'{"":1,', b'""'), (b'{"":1,"', b'":'), (b'{', None),
        (b'{"', b'":"","":"'), (b'{"a":{"b":1', b'},"a":'), (b'{"b":{"b":1', None),
        (b'[{"a":1},{', None), (rb'{"\n":1,"\u000a', b'"'),
        (b'{"a":1,"b":"', None), (b'{"a":1,"b":"c', None),
    ],
)  # fmt: skip
def test_what_would_write_a_key_again_may_not_follow(text, gone):
    refused, again = judged(text)
    assert refused == again
    assert gone in refused if gone else not refused


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b", "ab"]), st.booleans()), max_size=4))
def test_an_object_is_accepted_if_and_only_if_its_keys_differ(members):
    said = ",".join(f'"{key}":{"{}" if nested else 1}' for key, nested in members)
    found = accepts(f"{{{said}}}", Grammar("json_schema", "true"))
    keys = [key for key, _ in members]
    assert found.whole is (len({*keys}) == len(keys))
    assert found.whole or found.at is not None


def test_a_key_in_another_spelling_is_no_second_key():
    found = accepts(r'{"\n":1,"\u000a":2}', Grammar("json_schema", '{"type":"object"}'))
    assert found.at == 15


def test_where_all_keys_are_there_already_it_is_an_error():
    schema = {"type": "object", "patternProperties": {"^a$": {}}, "additionalProperties": False}
    matcher = COMPILER.matcher(Grammar("json_schema", json.dumps(schema), compact=True))
    for byte in b'{"a":1,"a':
        matcher.accept(byte)
    with pytest.raises(InputError, match="all keys that may follow are there already"):
        matcher.mask()


@pytest.mark.parametrize(
    ("schema", "is_open"),
    [
        (True, True), ({}, True), ({"type": "object"}, True), ({"type": "string"}, False),
        ({"type": ["null", "object"]}, True), ({"enum": [{}]}, False),
        ({"type": "object", "additionalProperties": False}, False),
        ({"type": "array", "items": {"type": "object"}}, True),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}, True),
        ({"anyOf": [{"type": "null"}, {}]}, True), ({"type": "array"}, True),
        ({"type": "array", "items": {"type": "null"}}, False),
        ({"properties": {"a": {"type": "null"}}, "additionalProperties": False}, True),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": False}, True),
    ],
)  # fmt: skip
def test_objects_are_open_where_keys_may_be_any(schema, is_open):
    assert has_open_objects(schema) is is_open
