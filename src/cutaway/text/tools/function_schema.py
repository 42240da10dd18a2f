"""A tool made of a Python function: its signature as a JSON schema, its docstring as words.

Knows annotations and the common forms of docstrings. Refuses to guess: what a schema cannot say
is an InputError that names the parameter.
"""

import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from cutaway.base.checks import shown
from cutaway.errors import InputError
from cutaway.text.tools.tool import Tool, parse_tools

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_LINE = re.compile(r"(?::param\s+)?\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")


def tool_of(function: Callable[..., Any]) -> Tool:
    """The tool that calls ``function`` with keywords.

    The docstring's first paragraph describes it; a line "name: …" (or numpy's "name : type"
    with a paragraph below) describes a parameter.
    InputError: a parameter whose type is missing or cannot be said in JSON.
    """
    name = getattr(function, "__name__", None) or shown(function)
    try:
        signature = inspect.signature(function)
        hints = get_type_hints(function, include_extras=True)
    except Exception as error:  # an annotation is evaluated, and may fail in any way
        raise InputError(f"tools: the signature of {name} is unknown: {error}") from None
    words = inspect.cleandoc(function.__doc__ or "")
    said = _descriptions(words, set(signature.parameters))
    properties: dict[str, Any] = {}
    required = []
    for parameter in signature.parameters.values():
        where = f"tools: parameter {parameter.name} of {name}"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InputError(f"{where} cannot be given by name; make it an ordinary parameter")
        if parameter.name not in hints:
            raise InputError(f"{where} has no type; annotate it")
        schema = _schema(hints[parameter.name], where)
        if parameter.name in said:
            schema["description"] = said[parameter.name]
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        properties[parameter.name] = schema
    parameters = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    first = " ".join(words.split("\n\n", 1)[0].split())
    described = {"name": name, "description": first, "parameters": parameters}
    return parse_tools([{"type": "function", "function": described}])[0]


def _schema(hint: Any, where: str) -> dict[str, Any]:
    if isinstance(hint, type) and hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum([member.value for member in hint], where)
    if hint is Any:
        return {}
    return _combined(hint, get_origin(hint) or hint, get_args(hint), where)


def _combined(hint: Any, origin: Any, inner: tuple[Any, ...], where: str) -> dict[str, Any]:
    """Of a type that is made of others."""
    if origin is Annotated:
        text = next((note for note in inner[1:] if isinstance(note, str)), None)
        return _schema(inner[0], where) | ({"description": text} if text else {})
    if origin is Literal:
        return _enum(list(inner), where)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(one, where) for one in inner]}
    if origin in (list, Sequence):
        return {"type": "array"} | ({"items": _schema(inner[0], where)} if inner else {})
    if origin in (dict, Mapping) and (not inner or inner[0] is str):
        return {"type": "object"} | (
            {"additionalProperties": _schema(inner[1], where)} if inner else {}
        )
    raise InputError(
        f"{where} has the type {hint}, which JSON cannot say; use str, int, float, bool, list, "
        "dict, Literal, an Enum or Optional"
    )


def _enum(values: list[Any], where: str) -> dict[str, Any]:
    if not values or not all(isinstance(value, (str, int, float, type(None))) for value in values):
        raise InputError(f"{where} offers values that are no JSON; use strings or numbers")
    return {"enum": values}


def _descriptions(words: str, names: set[str]) -> dict[str, str]:
    """Per parameter: what follows "name:", up to the next one or a line that is not indented."""
    found: dict[str, list[str]] = {}
    current, indent = "", 0
    for line in words.splitlines()[1:]:
        here = len(line) - len(line.lstrip())
        match = _LINE.match(line.strip())
        if match and match[1] in names:
            current, indent = match[1], here
            numpy = " : " in line
            found[current] = [] if numpy else [match[2]]
        elif current and line.strip() and here > indent:
            found[current].append(line.strip())
        else:
            current = ""
    return {name: text for name, parts in found.items() if (text := " ".join(parts).strip())}
