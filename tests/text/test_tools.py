"""Tools and choices as clients send them: what is read, and what each refusal says."""

from enum import Enum
from typing import Annotated, Any, Literal, Optional

import pytest

from cutaway.errors import InputError
from cutaway.text.tools import Tool, ToolChoice, parse_choice, parse_tools, tool_of

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **fields}}


def custom(**fields: Any) -> dict[str, Any]:
    return {"type": "custom", "custom": {"name": "c", **fields}}


def test_functions_in_the_forms_of_chat_and_of_responses() -> None:
    fields = {"description": "d", "parameters": SCHEMA, "strict": True}
    expected = (Tool("f", "d", SCHEMA, strict=True),)
    assert parse_tools([function(**fields)]) == expected
    assert parse_tools([{"type": "function", "name": "f", **fields}]) == expected
    assert parse_tools([function()]) == (Tool("f"),)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (None, ("text", "")),
        ({"type": "text"}, ("text", "")),
        (
            {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: A"}},
            ("lark", "start: A"),
        ),
        ({"type": "grammar", "syntax": "regex", "definition": "a+"}, ("regex", "a+")),
    ],
)
def test_custom_tools(form: Any, expected: tuple[str, str]) -> None:
    [tool] = parse_tools([custom(format=form)])
    assert (tool.format, tool.definition) == expected
    assert parse_tools([{"type": "custom", "name": "c", "format": form}]) == (tool,)


def test_a_custom_tool_is_described_as_a_function_of_one_string() -> None:
    [tool] = parse_tools(
        [custom(format={"type": "grammar", "syntax": "regex", "definition": "a+"})]
    )
    described = tool.describe()["function"]
    assert described["parameters"]["required"] == ["input"]
    assert described["parameters"]["properties"]["input"]["description"].endswith("a+")


def test_arguments_keep_to_the_schema_whatever_strict_says() -> None:
    [tool] = parse_tools([function(parameters=SCHEMA, strict=False)])
    assert tool.schema() == SCHEMA


def test_what_arguments_must_be() -> None:
    assert Tool("f", "", SCHEMA).schema() == SCHEMA
    assert Tool("f", "", {"properties": {}}).schema() == {"type": "object", "properties": {}}
    assert Tool("f").schema()["additionalProperties"] is False


def deep(levels: int) -> Any:
    return {"a": deep(levels - 1)} if levels else {}


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ("f", "tools must be a list of tools, not 'f'"),
        (
            [function(name=f"f{i}") for i in range(2049)],
            "tools holds 2049 tools; give at most 2048",
        ),
        (["f"], r"tools\[0\] must be an object"),
        ([{"type": "web_search"}], r"tools\[0\]\.type must be one of function, custom"),
        ([{"type": "function", "function": 1}], r"tools\[0\]\.function must be an object"),
        ([function(colour=1)], r"tools\[0\]\.function\.colour is not known; leave it out"),
        ([{**function(), "x": 1}], r"tools\[0\]\.x is not known"),
        ([function(name="a b")], r"tools\[0\]\.function\.name must be 1 to 128 letters"),
        ([function(name="a" * 129)], "name must be 1 to 128 letters"),
        ([function(name="f\n")], "name must be 1 to 128 letters"),
        ([{"type": "function", "name": None}], r"tools\[0\]\.name must be"),
        ([function(description=1)], "description must be a string"),
        ([function(strict="yes")], "strict must be true or false"),
        ([function(strict=1)], "strict must be true or false"),
        ([function(parameters=[])], "parameters must be a JSON schema"),
        ([function(parameters={"type": "string"})], "parameters must describe an object"),
        ([function(), function()], r'tools\[1\] is a second tool named "f"; rename one'),
        ([function(parameters=deep(70))], "must not nest deeper than 64 levels"),
        ([function(description="x" * 1_000_000)], "bytes of JSON; give at most 1000000"),
        ([dict.fromkeys(map(str, range(500_001)))], "tools is at least 1000002 bytes of JSON"),
        ([function(parameters={"default": float("nan")})], "tools must be JSON"),
        ([function(parameters={"default": b"x"})], "tools must be JSON"),
        ([custom(format="text")], r"custom\.format must be an object"),
        ([custom(format={"type": "xml"})], r"custom\.format\.type must be one of text, grammar"),
        ([custom(format={"type": "grammar", "grammar": 1})], "format.grammar must be an object"),
        (
            [custom(format={"type": "grammar", "syntax": "gbnf"})],
            "syntax must be one of lark, regex",
        ),
        (
            [custom(format={"type": "grammar", "syntax": "lark"})],
            "definition must be the grammar's text",
        ),
    ],
)
def test_bad_tools_get_one_sentence(tools: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_tools(tools)


F, C = Tool("f"), Tool("c", format="text")
TOOLS = (F, C)


@pytest.mark.parametrize(
    ("value", "expected", "allowed"),
    [
        (None, ToolChoice("auto"), TOOLS),
        ("auto", ToolChoice("auto"), TOOLS),
        ("none", ToolChoice("none"), ()),
        ("required", ToolChoice("required"), TOOLS),
        (function(), ToolChoice("required", frozenset("f"), is_named=True), (F,)),
        (
            {"type": "function", "name": "f"},
            ToolChoice("required", frozenset("f"), is_named=True),
            (F,),
        ),
        (custom(), ToolChoice("required", frozenset("c"), is_named=True), (C,)),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [function()]}},
            ToolChoice("auto", frozenset("f")),
            (F,),
        ),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "custom", "name": "c"}],
            },
            ToolChoice("required", frozenset("c")),
            (C,),
        ),
    ],
)
def test_choices(value: Any, expected: ToolChoice, allowed: tuple[Tool, ...]) -> None:
    choice = parse_choice(value, TOOLS)
    assert choice == expected
    assert choice.allowed_tools(TOOLS) == allowed


def test_without_tools_nothing_is_called() -> None:
    assert parse_choice(None, ()) == ToolChoice("none")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("any", "tool_choice must be one of none, auto, required"),
        (1, "tool_choice must be a string or an object"),
        ({"type": "tool"}, r"tool_choice\.type must be one of function, custom, allowed_tools"),
        (function(name="g"), 'tool_choice names "g", which is not among the tools'),
        ({"type": "function"}, r"tool_choice\.name must be"),
        ({"type": "allowed_tools"}, r"tool_choice\.mode must be one of auto, required"),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, "at least one tool"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [1]}, r"tools\[0\] must be an object"),
    ],
)
def test_bad_choices_get_one_sentence(value: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_choice(value, TOOLS)


def test_a_call_cannot_be_required_without_tools() -> None:
    with pytest.raises(InputError, match="no tools are given"):
        parse_choice("required", ())


# -- a Python function as a tool ---------------------------------------------------------------


class Unit(Enum):
    CELSIUS = "C"
    FAHRENHEIT = "F"


def weather(
    city: str, days: int = 1, unit: Unit = Unit.CELSIUS, *, near: list[str] | None = None
) -> str:
    """Says how warm
    it is.

    More words.

    city: where, which may
        take two lines
    days: how many
    :param unit: of the scale
    """
    return f"{city}{days}{unit}{near}"


def test_a_signature_becomes_a_schema() -> None:
    tool = tool_of(weather)
    assert (tool.name, tool.description) == ("weather", "Says how warm it is.")
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "where, which may take two lines"},
            "days": {"type": "integer", "description": "how many"},
            "unit": {"enum": ["C", "F"], "description": "of the scale"},
            "near": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
        },
        "required": ["city"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (list, {"type": "array"}),
        (
            list[list[int]],
            {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
        ),
        (dict, {"type": "object"}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Literal["a", 1], {"enum": ["a", 1]}),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045
        (Annotated[int, "a count"], {"type": "integer", "description": "a count"}),
        (Any, {}),
    ],
)
def test_types(hint: Any, schema: dict[str, Any]) -> None:
    def tool(x): ...

    tool.__annotations__ = {"x": hint}
    described = tool_of(tool).parameters
    assert described is not None
    assert described["properties"] == {"x": schema}


def test_docstrings_of_numpy_and_google() -> None:
    def numpy(a: int, b: int) -> None:
        """Add.

        Parameters
        ----------
        a : int
            The first.
        b : int, optional
            The second
            of two.

        Returns
        -------
        None
        """

    def google(a: int, b: int) -> None:
        """Add.

        Args:
            a (int): The first.
            b: The second
                of two.

        Returns:
            Nothing.
        """

    for function in (numpy, google):
        described = tool_of(function).parameters
        assert described is not None
        said = {name: schema.get("description") for name, schema in described["properties"].items()}
        assert said == {"a": "The first.", "b": "The second of two."}, function


def without_type(x): ...
def several(*x: int): ...
def keywords(**x: int): ...
def positional(x: int, /): ...
def of_bytes(x: bytes): ...
def of_object(x: object): ...
def of_keys(x: dict[int, int]): ...
def of_literal(x: Literal[b"x"]): ...
def unknown(x: "Nowhere"): ...  # noqa: F821


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (without_type, "parameter x of without_type has no type"),
        (several, "parameter x of several cannot be given by name"),
        (keywords, "parameter x of keywords cannot be given by name"),
        (positional, "parameter x of positional cannot be given by name"),
        (of_bytes, "parameter x of of_bytes has the type .*bytes.*, which JSON cannot say"),
        (of_object, "which JSON cannot say"),
        (of_keys, "which JSON cannot say"),
        (of_literal, "offers values that are no JSON"),
        (unknown, "signature of unknown is unknown: name 'Nowhere'"),
        (3, "signature of 3 is unknown"),
        (lambda: 1, "name must be 1 to 128 letters"),
    ],
)
def test_what_cannot_be_said_is_named(function: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        tool_of(function)
