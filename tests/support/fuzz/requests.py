"""Parts of requests that have a language of their own: forms and grammars."""

import json
import time
from functools import cached_property
from random import Random
from typing import Any

from cutaway import LLM
from cutaway.features.batches.endpoints import read_form
from cutaway.text.grammar.compile_sandbox import CompileSandbox
from support.fuzz.format import Format
from support.fuzz.mutation import mutate_bytes, mutate_json, mutate_text
from support.random_llama import write_tiny_llama

_TYPES = (
    "multipart/form-data; boundary=b",
    'multipart/form-data; boundary="b b"',
    "multipart/form-data",
)
_FORM = (
    b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a \\" b.jsonl"\r\n'
    b'Content-Type: application/jsonl\r\n\r\n{"custom_id": "1"}\n\r\n--b--\r\n'
)
_FORM_WORDS = (
    "\r\n",
    "--b",
    "--b--",
    ";",
    '"',
    "\\",
    "=",
    "name=",
    "filename*=UTF-8''a",
    ":",
    "\0",
    "é",
    " ",
    "a" * 99,
)


class Forms(Format):
    """Bodies of multipart/form-data behind a line with their type."""

    name, inputs = "form", 300
    most_seconds = 0.5
    """The most seconds for a body of up to 400 kB: quadratic time takes longer."""

    def make(self) -> None:
        """Write no file: the form is in this module."""

    def draw(self, rng: Random) -> bytes:
        """Return a form after a few changes, some of them long."""
        body = (
            _FORM if rng.random() < 0.3 else mutate_text(rng, _FORM.decode(), _FORM_WORDS).encode()
        )
        if rng.random() < 0.02:
            word = rng.choice(_FORM_WORDS)
            body = body.replace(b"batch", (word * (100_000 // len(word))).encode())
            body = mutate_text(rng, body.decode(), (word * 2000,)).encode()
        kind = rng.choice(_TYPES)
        kind = mutate_text(rng, kind, _FORM_WORDS) if rng.random() < 0.2 else kind
        body = mutate_bytes(rng, body) if rng.random() < 0.3 else body
        return kind.replace("\n", "").encode() + b"\n" + body[:400_000]

    def use(self, data: bytes) -> None:
        """Read a form, in time that is linear in its length."""
        kind, _, body = data.partition(b"\n")
        began = time.process_time()
        try:
            read_form(kind.decode("latin-1"), body)
        finally:
            assert time.process_time() - began < self.most_seconds, "it takes too long"


_SCHEMAS: tuple[Any, ...] = (
    {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}, "b": {"enum": ["x",
    None, 2]}},
     "required": ["a"], "additionalProperties": False},
    {"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 1, "maxItems": 3,
    "uniqueItems": True,
     "$defs": {"n": {"anyOf": [{"type": "number"}, {"$ref": "#/$defs/n"}]}}},
    {"oneOf": [{"type": "string", "pattern": "^a.*b$", "maxLength": 9}, {"const": 3}],
    "not": {"const": 4}},
    {"type": "string", "format": "date-time"}, {"if": {"type": "integer"},
    "then": {"multipleOf": 3}},
    {"type": "object", "patternProperties": {"^x": {"type": "boolean"}},
    "propertyNames": {"maxLength": 4},
     "dependentRequired": {"a": ["b"]}, "minProperties": 1, "unevaluatedProperties": False},
    {"prefixItems": [{"type": "null"}], "contains": {"type": "integer"}, "maxContains": 2},
)  # fmt: skip
_WORDS = (
    "type", "integer", "object", "$ref", "#", "#/$defs/n", "minimum", "pattern", "allOf", "anyOf",
    "(a|b)*",
    "contains", "uniqueItems", "enum", "const", "x-guidance", "format", "ipv6", "uuid",
)  # fmt: skip
_REGEXES = ("[a-z]+(?:b|c){2,3}\\d*", "^a.*b$", "(\\w+)@x\\.(com|org)", "\\p{L}+", "[^\\n]{0,20}é?")
_REGEX_WORDS = (
    "(", ")", "[", "]", "{", "}", "*", "+", "?", "|",
    "\\", "^", "$", "(?=", "(?:", "(?i)", "\\b", "\\p{L}", "{9999}",
    "[^", "\\x", "\\u{1}", "-", "a{2,1}", "\\1", "é", "\0", "(?P<n>a)", ".*", "{0}", "(a*)*",
)  # fmt: skip
_GBNF = (
    'root ::= "a" [a-z]+ (b | "c")* b?\nb ::= [0-9]{1,3} "\\n" | "é"\n',
    'root ::= item ("," item)*\nitem ::= "\\"" [^"\\\\]* "\\"" # a comment\n',
)
_LARK = (
    'start: "a" word+ | NUM\nword: /[a-z]+/ ","\nNUM: /[0-9]{1,4}/\n%ignore " "\n',
    'start: x "b"*\nx[stop="c"]: /(.|\\n)*/\n',
    'start: "a" j\nj: %json {"type": "integer"}\n',
)
_GRAMMAR_WORDS = (
    "start", "root", "::=", ":", "|", "(", ")", "*", "+", "?",
    '"', "/", "[", "]", "{1,9}", "{99999}", "%ignore",
    "%json {}", "%regex {}", "%import", "%llguidance {}", "#", "\n", "<s>", "<[5]>", "@x",
    "\\", "é", "\0", "..", "~3",
    "[max_tokens=3]", '[stop=""]', "[capture]", "[temperature=0.5]", "[suffix=/a/]",
)  # fmt: skip


class Grammars(Format):
    """Grammars of all kinds, compiled as a server does, which then constrain a text."""

    name, inputs = "grammar", 25

    def make(self) -> None:
        """Write the tiny model that generates text."""
        write_tiny_llama(self.folder / "model.gguf", context=128)

    @cached_property
    def llm(self) -> LLM:
        """The model, with the process that compiles strangers' grammars first."""
        llm = LLM(self.folder / "model.gguf", threads=1, progress=False)
        llm.model.grammars.read = self._sandbox.source_of
        return llm

    @cached_property
    def _sandbox(self) -> CompileSandbox:
        return CompileSandbox()

    def close(self) -> None:
        """Close the model, and end the process."""
        super().close()
        self._sandbox.close()

    def draw(self, rng: Random) -> bytes:
        """Return the keyword and its value as JSON."""
        field = rng.choice(("json_schema", "json_schema", "regex", "grammar", "grammar"))
        if field == "json_schema":
            value: Any = mutate_json(
                rng,
                rng.choice(_SCHEMAS),
                (*_WORDS, *_SCHEMAS, True, False, 0, -1, 2**63, [], {}, 1.5),
            )
        elif field == "regex":
            value = mutate_text(rng, rng.choice(_REGEXES), _REGEX_WORDS)
        else:
            value = mutate_text(rng, rng.choice((*_GBNF, *_LARK)), _GRAMMAR_WORDS)
        return json.dumps({field: value}).encode()

    def use(self, data: bytes) -> None:
        """Generate a few tokens under the grammar."""
        self.llm.generate("a", max_tokens=12, seed=1, temperature=1.0, **json.loads(data))
