"""A Python function as a tool: what its signature and docstring say, and what they cannot."""

from enum import Enum
from typing import Annotated, Any, Literal, Optional

import pytest

from cutaway.errors import InputError
from cutaway.text.tools import tool_of


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
