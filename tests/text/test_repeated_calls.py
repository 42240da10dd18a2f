"""Where an answer must call a tool, a call that it repeats is its last."""

import pytest

from cutaway.text.grammar import Grammar
from cutaway.text.grammar.compiler import GrammarCompiler, notes_on
from cutaway.text.grammar.matcher import Matcher
from cutaway.text.tools import Tool, ToolChoice, grammar
from support.chat_templates import FORMS, NAMES, dialect
from support.mock_backend import Words

COMPILER = GrammarCompiler(Words())
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = (Tool("get_weather", "", CITY | {"additionalProperties": False}), Tool("now"))
ROME, OSLO = ("get_weather", '{"city": "Rome"}'), ("get_weather", '{"city": "Oslo"}')
NOW = ("now", "{}")

families = pytest.mark.parametrize(
    "name", [name for name in (*NAMES, *FORMS) if dialect(name, False).many]
)


def written(name: str, calls: list[tuple[str, str]], mode: str = "required") -> Matcher:
    """The state of an answer behind its last call, without what closes them all."""
    form = dialect(name, False)
    text = form.write([(*call, f"abcdefgh{i}") for i, call in enumerate(calls)])
    lark = grammar(form, TOOLS, ToolChoice(mode))
    matcher = COMPILER.matcher(Grammar("grammar", lark))
    for byte in text.removesuffix(form.end).encode():
        assert not matcher.is_over
        matcher.accept(byte)
    return matcher


@families
@pytest.mark.parametrize("calls", [[ROME, ROME], [NOW, NOW], [ROME, OSLO, ROME], [ROME, NOW, NOW]])
def test_an_answer_is_over_behind_a_call_that_it_has_already(
    name: str, calls: list[tuple[str, str]]
) -> None:
    assert written(name, calls).is_over
    assert written(name, calls).fork().is_over


@families
def test_calls_that_differ_may_go_on(name: str) -> None:
    assert not written(name, [ROME, OSLO, NOW]).is_over


@families
def test_a_model_that_may_also_speak_may_repeat_a_call(name: str) -> None:
    assert not written(name, [ROME, ROME], "auto").is_over


def test_no_note_speaks_of_how_a_grammar_marks_calls() -> None:
    calls = Grammar("grammar", grammar(dialect("qwen3", False), TOOLS, ToolChoice("required")))
    assert notes_on(calls, COMPILER.compile(calls)) == []
