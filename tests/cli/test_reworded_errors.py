"""Errors are data: whatever an InputError says, the command line and Python name the same field."""

import ast
import re
from pathlib import Path

import pytest

import cutaway
from cutaway import LLM, SamplingParams
from cutaway.cli.main import main
from cutaway.errors import InputError, TooLongError
from cutaway.requests.keywords import KEYWORDS
from support.reworded import reword

TYPED = [  # what is typed, and the option that the sentence is about
    (["--top-p", "3"], "--top-p"),
    (["--stop", ""], "--stop"),
    (["--logit-bias", "5=200"], "--logit-bias"),
    (["--logit-bias", "99999=2"], "--logit-bias"),
    (["--chain", "top-k"], "--chain"),
    (["--preset", "no"], "--preset"),
    (["--preset", "vllm", "--chain", "top_k"], "--preset"),
    (["--json-compact"], "--json-compact"),
    (["--regex", "("], "--regex"),
    (["--regex", "a", "--choice", "b"], "--regex"),
    (["--grammar", "no such"], "--grammar"),
    (["--grammar", 'start: "a" |||'], "--grammar"),
    (["--json-schema", '{"type": "no"}'], "--json-schema"),
    (["--align"], "--align"),
    (["--max-tokens", "0"], "--max-tokens"),
    (["--max-tokens", "-3"], "--max-tokens"),
    (["--intervention", "L0"], "--intervention"),
    (["--speculate", "eagle:/no"], "--speculate"),
    (["--kv", "f8"], "--kv"),
    (["--backend", "no"], "--backend"),
    (["--lora", "/no"], "--lora"),
    (["--context", "0"], "--context"),
    (["--trace", "/no/no"], "--trace"),
]


@pytest.mark.parametrize(("typed", "option"), TYPED, ids=str)
def test_an_option_is_named_whatever_is_said_of_it(capsys, tiny_path, typed, option):
    def said():
        code = main(["generate", "a", "-m", str(tiny_path), *typed])
        return code, capsys.readouterr().err.removeprefix("cutaway: error: ")

    code, sentence = said()
    with reword():
        again, other = said()
    assert sentence.startswith((f"{option}:", f"{option} ")), sentence
    assert (code, again) == (2, 2)
    assert other.startswith(f"{option} 7"), other


CALLED = [
    (lambda llm: SamplingParams(top_p=3), "top_p", None),
    (lambda llm: SamplingParams(logit_bias={5: 200}), "logit_bias", 5),
    (lambda llm: llm.generate("a", min_p=-1), "min_p", None),
    (lambda llm: llm.generate("a", replay=[1], n=2), "replay", None),
    (lambda llm: llm.generate("a" * 9999), "prompt", None),
    (lambda llm: llm.generate("a", interventions=["L0 x 1", "L0"]), "interventions", 1),
    (lambda llm: llm.generate("a", regex="("), "regex", None),
    (lambda llm: llm.score("a", ["b", "b" * 9999]), "prompt", None),
    (lambda llm: llm.score("a", ["b", 5]), "answers", 1),
    (lambda llm: llm.embed(["a", 5]), "texts", 1),
    (lambda llm: llm.rerank("a", ["b", 5]), "documents", 1),
    (lambda llm: llm.chat([{"role": "user"}]), "messages", 0),
    (lambda llm: llm.accepts("a", top_p=1), "top_p", None),
]


@pytest.mark.parametrize(("call", "field", "index"), CALLED)
def test_an_error_carries_its_field_and_the_index(tiny_path, call, field, index):
    llm = LLM(tiny_path, threads=1, progress=False)
    with pytest.raises(InputError) as plain:
        call(llm)
    with reword(), pytest.raises(InputError) as other:
        call(llm)
    for error in (plain.value, other.value):
        assert (error.field, error.index) == (field, index)
        assert isinstance(error, TooLongError) == isinstance(plain.value, TooLongError)


def _sentences():
    """Where an error has one sentence and no field -> what it begins with."""
    for file in Path(cutaway.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(func=ast.Name("InputError" | "TooLongError"), args=[first]):
                    literal = first.values[0] if isinstance(first, ast.JoinedStr) else first
                    if isinstance(literal, ast.Constant):
                        yield f"{file.name}:{node.lineno}", str(literal.value)


def test_no_sentence_hides_the_keyword_that_it_is_about():
    begins = re.compile(rf"({'|'.join(KEYWORDS)})(:| must | is | has | needs )")
    assert [place for place, sentence in _sentences() if begins.match(sentence)] == []
