"""Grammars of the byte tokens of the mock model: what they allow, and what is refused."""

import json
import os
import re
import resource
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from cutaway.errors import CutawayError, InputError, QueueFullError
from cutaway.text import Tokenizer
from cutaway.text import grammar as sources
from cutaway.text.grammar import Grammar
from cutaway.text.grammar.compile_sandbox import CompileSandbox
from cutaway.text.grammar.compiler import Accepted, GrammarCompiler, _Vocabulary, accepts, notes_on
from cutaway.text.grammar.llguidance_source import reason, source_of
from support.mock_backend import END, Words
from support.text_vocabularies import sentencepiece

COMPILER = GrammarCompiler(Words())


def allowed(mask: np.ndarray) -> set[int]:
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return {*np.flatnonzero(bits).tolist()}


def can_write(grammar: Grammar, text: bytes) -> bool:
    """By the masks alone, token by token; the end must be allowed at the end."""
    matcher = COMPILER.matcher(grammar)
    for byte in text:
        if byte not in allowed(matcher.mask()):
            return False
        matcher.accept(byte)
    return END in allowed(matcher.mask()) if not matcher.is_over else True


@given(st.text("ab1", max_size=6))
def test_a_regular_expression_is_what_python_says_it_is(text):
    expression = "a+(b|1)*a?"
    assert can_write(Grammar("regex", expression), text.encode()) == bool(
        re.fullmatch(expression, text)
    )


@given(st.sampled_from(["yes", "yesterday", "no", 'é"\\']), st.text("yesno", max_size=4))
def test_a_choice_allows_its_texts_and_nothing_else(one, other):
    choices = ["yes", "yesterday", "no", 'é"\\']
    grammar = Grammar("choice", json.dumps(choices))
    assert can_write(grammar, one.encode())
    assert can_write(grammar, other.encode()) == (other in choices)


@given(st.text("ab ▁é", min_size=1, max_size=9), st.booleans())
def test_forced_text_is_spelled_as_it_is(text, prefix):
    """Though a text may begin with a space for its tokenizer, which may read ▁ as one."""
    pieces = [(piece, -1.0 * i) for i, piece in enumerate(["▁", "a", "▁a", "ab", "b"])]
    fields = sentencepiece(pieces, add_space_prefix=prefix, add_bos_token=True)
    vocabulary = _Vocabulary(Tokenizer.from_gguf(fields))
    assert b"".join(vocabulary.tokens[i] for i in vocabulary(text)) == text.encode()


@pytest.mark.parametrize("text", ['start: "a" | "b" start', 'root ::= "a" | "b" root'])
def test_lark_and_gbnf(text):
    assert can_write(Grammar("grammar", text), b"bba")
    assert not can_write(Grammar("grammar", text), b"bb")


def test_the_keys_of_an_object_have_the_order_of_the_schema():
    schema = {"type": "object", "properties": {"b": {"type": "null"}, "a": {"type": "null"}},
              "required": ["a", "b"], "additionalProperties": False}  # fmt: skip
    grammar = Grammar("json_schema", json.dumps(schema))
    assert can_write(grammar, b'{"b": null, "a": null}')
    assert not can_write(grammar, b'{"a": null, "b": null}')


@pytest.mark.parametrize(("space", "may"), [("", True), (" ", True), ("\n" + " " * 20, True),
                                            ("  ", False), ("\n" + " " * 21, False)])  # fmt: skip
def test_white_space_is_bounded(space, may):
    grammar = Grammar("json_schema", '{"type":"array","items":{"type":"integer"}}')
    assert can_write(grammar, f"[{space}1]".encode()) == may


@pytest.mark.parametrize("thought", ["", 'start: "-" answer'])
@pytest.mark.parametrize("text", [b'{"a": [null, 1.5]}', b'"a"', b"true"])
def test_true_is_any_json(text, thought):
    grammar, before = Grammar("json_schema", "true", thought=thought), b"-" if thought else b""
    assert can_write(grammar, before + text)
    assert not can_write(grammar, before + text + b",")
    assert notes_on(grammar, COMPILER.compile(grammar)) == []


def test_compact_json_has_no_white_space():
    grammar = Grammar("json_schema", '{"type":"array","items":{"type":"integer"}}', compact=True)
    assert can_write(grammar, b"[1,2]")
    assert not can_write(grammar, b"[1, 2]")


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        (Grammar("json_schema", '{"unevaluatedItems":true}'), "json_schema: .*unevaluatedItems"),
        (Grammar("json_schema", '{"type":"string","format":"iri"}'), "json_schema: .*iri"),
        (
            Grammar("json_schema", '{"properties":{"a":{"type":"objct"}}}'),
            "json_schema: properties.a.type is 'objct', which JSON does not have; choose one of",
        ),
        (
            Grammar("json_schema", '{"anyOf":[{"type":["null","int"]}]}'),
            r"json_schema: anyOf\[0\].type is 'int'",
        ),
        (Grammar("regex", "[a"), "regex: .*unclosed"),
        (Grammar("grammar", 'start: "a" | other'), "grammar: .*other"),
        (Grammar("grammar", 'root ::= "a" | other'), "grammar: .*other"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(grammar, said):
    with pytest.raises(InputError, match=said) as raised:
        COMPILER.compile(grammar)
    assert "\n" not in str(raised.value)


def test_lenient_cannot_be_asked_for_by_the_schema_itself():
    schema = {"x-guidance": {"lenient": True}, "type": "array", "unevaluatedItems": True}
    with pytest.raises(InputError, match="unevaluatedItems"):
        COMPILER.compile(Grammar("json_schema", json.dumps(schema)))


def test_a_token_that_is_not_allowed_is_an_error_and_not_an_end():
    matcher = COMPILER.matcher(Grammar("regex", "abc"))
    with pytest.raises(CutawayError, match="the grammar failed"):
        matcher.accept(ord("x"))
    assert not matcher.is_over


@given(st.lists(st.sampled_from(b'[]1, "a'), max_size=12))
def test_masks_are_a_function_of_the_text_alone(tokens):
    """Forward with a mask at each token, without, and by a fork that went another way first."""
    grammar = Grammar("json_schema", '{"type":"array","items":{"type":["integer","string"]}}')
    forward, silent = COMPILER.matcher(grammar), COMPILER.matcher(grammar)
    for token in tokens:
        if token not in allowed(forward.mask()):
            break
        aside = forward.fork()
        for other in allowed(aside.mask()) - {END}:
            aside.accept(other)
            break
        forward.accept(token)
        silent.accept(token)
    assert np.array_equal(forward.mask(), silent.mask())
    assert np.array_equal(forward.mask(), forward.fork().mask())


def test_a_format_that_json_schema_does_not_define_is_a_note_to_people():
    """As validators have it; whoever asks is told."""
    schema = {
        "type": "object", "required": ["format"], "additionalProperties": False,
        "properties": {"format": {"type": "string", "format": "planet", "enum": ["a", "b"]}},
    }  # fmt: skip
    grammar = Grammar("json_schema", json.dumps(schema))
    assert can_write(grammar, b'{"format": "b"}')
    assert not can_write(grammar, b'{"format": "c"}')
    [note] = notes_on(grammar, COMPILER.compile(grammar))
    assert note.endswith("which JSON Schema does not define: planet")


@pytest.mark.parametrize(
    ("attributes", "idle"),
    [
        ('capture="a]b", temperature=0.01', "capture, temperature"),
        ('stop_capture="c", suffix="x"', "stop_capture"),
        ("max_tokens=3", ""), ('stop="temperature"', ""), ('suffix="x"', ""), ("lazy", ""),
    ],
)  # fmt: skip
def test_attributes_of_rules_that_do_nothing_are_noted(attributes, idle):
    grammar = Grammar("grammar", f'start: a "b"\na[{attributes}]: /[ac]+/')
    noted = notes_on(grammar, COMPILER.compile(grammar))
    assert noted == [f"grammar: these attributes of rules do nothing here: {idle}"] * bool(idle)


@pytest.mark.parametrize(
    ("attributes", "text", "longer"),
    [
        ('stop="x"', b"ax!", b"axx!"), ('suffix="x"', b"ax!", b"axx!"),
        ("max_tokens=2", b"aa!", b"aaa!"), ("lazy", b"a!", b"aa!"),
    ],
)  # fmt: skip
def test_attributes_of_rules_that_end_them_do_so(attributes, text, longer):
    grammar = Grammar("grammar", f'start: a "!"\na[{attributes}]: /[a-z]+/')
    assert can_write(grammar, text) and not can_write(grammar, longer)


def test_what_llguidance_quotes_steers_no_terminal():
    assert reason("required property 'a\0\x1b[2J' is unsatisfiable") == (
        r": required property 'a\x00\x1b[2J' is unsatisfiable",
    )


def test_where_a_grammar_is_wrong_is_apart_from_why():
    assert reason("at 1(7): unexpected\n  token") == (": line 1, column 7", ": unexpected token")


def test_a_file_that_cannot_be_read_is_one_plain_sentence(tmp_path):
    with pytest.raises(InputError, match=r"missing\.json: No such file or directory$"):
        sources.json_schema(tmp_path / "missing.json")
    (tmp_path / "latin.gbnf").write_bytes(b'root ::= "\xe9"')
    with pytest.raises(InputError, match=r"latin\.gbnf is not UTF-8 \(byte 10\)$"):
        sources.grammar(tmp_path / "latin.gbnf")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="/dev/zero")
@pytest.mark.parametrize("read", [sources.json_schema, sources.grammar])
def test_a_file_without_an_end_is_refused_when_it_is_too_large(read):
    with pytest.raises(InputError, match=r"/dev/zero has more than 262144 bytes$"):
        read(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("gbnf", "text", "other"),
    [
        (r"root ::= [\u0391-\u03a9]+", "ΑΩ", "a"),
        (r"root ::= [^\u0041-\u005a]+ ", "aé", "aB"),
        (r'root ::= "\u0391\x42\u0022\U0001F600"', 'ΑB"😀', "ΑB😀"),
        (r'root ::= "\\u0391"', r"\u0391", "Α"),
        (r"root ::= [\U0001F600-\U0001F64F]", "😀", "é"),
    ],
)
def test_characters_of_gbnf_by_their_codes(gbnf, text, other):
    assert can_write(Grammar("grammar", gbnf), text.encode())
    assert not can_write(Grammar("grammar", gbnf), other.encode())


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        (Grammar("regex", "a++a"), "regex: 'a\\+\\+' repeats a repetition"),
        (Grammar("regex", r"[+]\++(b|c){2,3}+"), "regex: .* repeats a repetition"),
        (Grammar("regex", "a?+b", thought='start: "t" answer'), "regex: 'a\\?\\+' repeats"),
        (Grammar("json_schema", '{"pattern":"^a*+$"}'), "json_schema: pattern: .* repeats"),
        (Grammar("json_schema", '{"not":{"patternProperties":{"a{2}+":{}}}}'), "repeats"),
        (Grammar("grammar", 'start: a "b"\na[lazy]: /.*/'), "grammar: a rule that is lazy may be"),
        (Grammar("grammar", r'root ::= "\ud800"'), r"grammar: \\ud800 is no character"),
    ],
)
def test_what_would_be_read_as_something_else_is_refused(grammar, said):
    with pytest.raises(InputError, match=said) as raised:
        COMPILER.compile(grammar)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("regex", ["a+?", r"a\++", "[+*]+", "(?:a+)+", "(?i)a+", "a{2}b+", r"\?+"])
def test_other_repetitions_are_taken(regex):
    COMPILER.compile(Grammar("regex", regex))


# -- a text that is there already --------------------------------------------------------------

EXPRESSION = "(é|ab)+c?"
SCHEMA = {
    "type": "object", "properties": {"a": {"enum": ["é", 1]}, "b": {"type": "boolean"}},
    "required": ["a"], "additionalProperties": False,
}  # fmt: skip


def test_the_place_is_a_character_and_not_a_byte():
    grammar = Grammar("regex", "ééa?")
    assert accepts("éé", grammar) == Accepted(True, None) and accepts("éé", grammar)
    assert accepts("é", grammar) == Accepted(False, None) and not accepts("é", grammar)
    assert accepts("ééb", grammar) == Accepted(False, 2)
    assert accepts("éè", grammar) == Accepted(False, 1)  # whose first byte is the same
    assert accepts("ééaa", grammar) == Accepted(False, 3)


@given(st.text("éabc", max_size=6))
def test_it_is_what_python_says_of_an_expression(text):
    def can_begin(part):
        return any(re.fullmatch(EXPRESSION, part + more) for more in ("", "b", "ab", "c"))

    found = accepts(text, Grammar("regex", EXPRESSION))
    good = max(n for n in range(len(text) + 1) if can_begin(text[:n]))
    assert found.whole == bool(re.fullmatch(EXPRESSION, text))
    assert found.at == (None if good == len(text) else good)


@given(
    st.dictionaries(st.sampled_from("abc"), st.sampled_from(["é", 1, True, 2]), max_size=3),
    st.integers(0, 30),
)
def test_it_is_what_a_validator_says_of_a_schema(value, length):
    text = json.dumps(dict(sorted(value.items())), ensure_ascii=False)
    found = accepts(text, Grammar("json_schema", json.dumps(SCHEMA)))
    assert found.whole == Draft202012Validator(SCHEMA).is_valid(value)
    if found:
        part = text[:length]
        assert accepts(part, Grammar("json_schema", json.dumps(SCHEMA))).at is None


def test_keywords_that_are_checked_count():
    grammar = Grammar(
        "json_schema", '{"type":"array","items":{"type":"integer"},"uniqueItems":true}'
    )
    assert accepts("[1, 12]", grammar)
    assert accepts("[1, 1]", grammar).at == 5
    assert accepts("[1, 1", grammar) == Accepted(False, None)


@pytest.mark.parametrize("text", [b"a", 5, None])
def test_only_text_can_be_asked_about(text):
    with pytest.raises(InputError, match="text must be a string"):
        accepts(text, Grammar("regex", "a"))


def test_an_object_may_have_many_properties_that_may_be_left_out():
    """Whose keys are all looked at in one step."""
    properties = {f"p{i}": {"type": "string"} for i in range(1500)}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    grammar = Grammar("json_schema", json.dumps(schema))
    assert accepts('{"p1": "a", "p977": "b"}', grammar)
    assert accepts('{"p1": "a", "q', grammar).at == 13


# -- compile sandbox -------------------------------------------------------------------------------

# The process that compiles a stranger's grammar first.


FINE = [
    Grammar("json_schema", '{"type":"array"}', compact=True), Grammar("regex", "a\nb"),
    Grammar("choice", '["é","\\""]'), Grammar("grammar", 'root ::= "a" | "b" root'),
]  # fmt: skip
PATTERNS = [{"type": "string", "pattern": f"x{i}.*y{i}"} for i in range(40)]
DEADLY = [
    Grammar("json_schema", json.dumps({"allOf": PATTERNS})),
    Grammar("grammar", "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(9999))),
]


@pytest.fixture(scope="module")
def trial():
    trial = CompileSandbox()
    yield trial
    trial.close()


@pytest.mark.parametrize("grammar", FINE)
def test_it_reads_as_this_process_does(trial, grammar):
    assert trial.source_of(grammar) == source_of(grammar)


@pytest.mark.parametrize("grammar", DEADLY, ids=["hours", "stack"])
def test_what_kills_it_is_refused_and_the_next_is_read(trial, grammar):
    with pytest.raises(InputError, match=f"^{grammar.kind}: compiling it takes more than"):
        trial.source_of(grammar)
    assert trial.source_of(FINE[0]) == source_of(FINE[0])


def test_what_it_refuses_it_says_as_this_process_does(trial):
    for grammar in Grammar("regex", "(a"), Grammar("grammar", "root ::= ("):
        with pytest.raises(InputError, match=f"^{grammar.kind}: "):
            trial.source_of(grammar)


def test_a_process_that_does_not_run_is_no_fault_of_the_grammar(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(CutawayError, match="does not run") as raised:
        CompileSandbox().source_of(FINE[0])
    assert not isinstance(raised.value, InputError)


def test_where_no_file_can_be_opened_the_same_request_may_be_sent_later():
    """As in a server with as many connections as it may have files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.dup(0)
    os.close(spare)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
    try:
        with pytest.raises(QueueFullError, match="send the request again later"):
            CompileSandbox().source_of(FINE[0])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
