"""The tools that a client offers, and its choice of those that the model may call.

Knows OpenAI's forms, nested in chat and flat in responses, the limits on size and depth, and how a
Python function becomes a tool.
"""

import inspect
import json
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from cutaway.base.checks import check_bool, check_choice, shown
from cutaway.errors import InputError, Name
from cutaway.text.grammar.rewriting import rewrite

MAX_TOOLS = 2048  # agents send the tools of all their servers; OpenAI takes 128
MAX_DEPTH = 64
MAX_BYTES = 1_000_000  # of all tools, as JSON

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_FUNCTION = ("name", "description", "parameters", "strict")
_CUSTOM = ("name", "description", "format")
INPUT = "input"  # a model sees this as the only argument of a custom tool


@dataclass(frozen=True)
class Tool:
    """One tool: a function, which takes a JSON object, or a custom tool, which takes a text.

    parameters: a JSON schema of the arguments; None for a function without arguments
    format:     None for a function, else the format of the text: "text", "regex" or "lark"
    definition: the regular expression or the grammar; "" for "text"
    strict:     whether calls must keep to all of ``parameters``, whatever that costs
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    format: str | None = None
    definition: str = ""
    strict: bool = False

    def describe(self) -> dict[str, Any]:
        """Return the tool as chat templates take it; a custom tool is a function of one string."""
        parameters = {"type": "object", "properties": {}, **(self.parameters or {})}
        if self.format is not None:
            text = {"type": "string", "description": self._expected_text()}
            properties = {"properties": {INPUT: text}, "required": [INPUT]}
            parameters = {"type": "object", **properties}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def as_data(self) -> dict[str, Any]:
        """Return the tool in the form of OpenAI's chat, which ``parse_tools`` reads."""
        fields: dict[str, Any] = {"name": self.name, "description": self.description}
        if self.format is None:
            fields |= {"parameters": self.parameters, "strict": self.strict}
            return {"type": "function", "function": fields}
        if self.format != "text":
            grammar = {"syntax": self.format, "definition": self.definition}
            fields["format"] = {"type": "grammar", "grammar": grammar}
        return {"type": "custom", "custom": fields}

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema that the arguments of a call must satisfy."""
        if self.parameters is None:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        return {"type": "object", **self.parameters}

    def parameters_schema(self) -> dict[str, Any]:
        """Return ``schema()``, its parameters in keywords that forms without JSON can enforce.

        For a custom tool, return a schema with its text as the only parameter.
        """
        if self.format is None:
            schema = self.schema()
            properties = schema.get("properties")
            if not isinstance(properties, dict):
                return schema
            return {**schema, **rewrite({"properties": properties})}
        text = {"type": "string"}
        if self.format == "regex":
            text["pattern"] = f"^(?:{self.definition})$"
        closed = {"required": [INPUT], "additionalProperties": False}
        return {"type": "object", "properties": {INPUT: text}, **closed}

    def _expected_text(self) -> str:
        if self.format == "text":
            return "any text"
        language = "regular expression" if self.format == "regex" else "Lark grammar"
        return f"text that matches this {language}: {self.definition}"


@dataclass(frozen=True)
class ToolChoice:
    """Which tools may be called, and whether one must be.

    mode:  "none", "auto" or "required"
    names: the tools that may be called; None for all
    is_named: whether the client named the function to call; the finish reason is then "stop"
    """

    mode: str = "auto"
    names: frozenset[str] | None = None
    is_named: bool = False

    def allowed_tools(self, tools: Sequence[Tool]) -> tuple[Tool, ...]:
        """Return the tools that may be called, in their order."""
        if self.mode == "none":
            return ()
        return tuple(tool for tool in tools if self.names is None or tool.name in self.names)

    def require_tools(self, tools: Sequence[Tool]) -> tuple[Tool, ...]:
        """Return the tools that may be called; InputError where there are none."""
        if allowed := self.allowed_tools(tools):
            return allowed
        raise InputError("tool_choice", " allows no tool; give tools, or generate without")


def parse_tools(value: Any, field: str = "tools") -> tuple[Tool, ...]:
    """Parse the tools of a client's JSON; InputError names the wrong field."""
    if not isinstance(value, (list, tuple)):
        raise InputError(field, f" must be a list of tools, not {shown(value)}")
    if len(value) > MAX_TOOLS:
        raise InputError(field, f" holds {len(value)} tools; give at most {MAX_TOOLS}")
    _check_size(value, field)
    tools = tuple(_tool(item, Name(field, index)) for index, item in enumerate(value))
    check_names(tools, field)
    return tools


def check_names(tools: Sequence[Tool], field: str = "tools") -> None:
    """Raise InputError if two tools have the same name."""
    names: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in names:
            raise InputError(
                Name(field, index), f' is a second tool named "{tool.name}"; rename one'
            )
        names.add(tool.name)


def parse_choice(value: Any, tools: Sequence[Tool], field: str = "tool_choice") -> ToolChoice:
    """Parse a client's choice among ``tools``; None is "auto"."""
    if value is None:
        return ToolChoice("auto" if tools else "none")
    if isinstance(value, str):
        mode = check_choice(field, value, ("none", "auto", "required"))
        return _check_offered(ToolChoice(mode), tools, field)
    if not isinstance(value, Mapping):
        raise InputError(field, f" must be a string or an object, not {shown(value)}")
    kind = check_choice(
        Name(field, "type"), value.get("type"), ("function", "custom", "allowed_tools")
    )
    if kind != "allowed_tools":
        return _check_offered(
            ToolChoice("required", frozenset([_named_tool(value, field)]), True), tools, field
        )
    inner, place = _inner(value, kind, field)
    mode = check_choice(Name(place, "mode"), inner.get("mode"), ("auto", "required"))
    items = inner.get("tools")
    if not isinstance(items, (list, tuple)) or not items:
        raise InputError(Name(place, "tools"), " must be a list of at least one tool")
    names = [_named_tool(item, Name(place, "tools", index)) for index, item in enumerate(items)]
    return _check_offered(ToolChoice(mode, frozenset(names)), tools, field)


def _check_offered(choice: ToolChoice, tools: Sequence[Tool], field: str) -> ToolChoice:
    missing = (choice.names or frozenset()) - {tool.name for tool in tools}
    if missing:
        raise InputError(field, f' names "{min(missing)}", which is not among the tools')
    if choice.mode == "required" and not tools:
        raise InputError(field, " requires a call, but no tools are given; give tools")
    return choice


def _named_tool(value: Any, field: str) -> str:
    if not isinstance(value, Mapping):
        raise InputError(field, " must be an object with a type and a name")
    kind = check_choice(Name(field, "type"), value.get("type"), ("function", "custom"))
    inner, place = _inner(value, kind, field)
    return _name(inner.get("name"), place)


def _tool(value: Any, field: str) -> Tool:
    if not isinstance(value, Mapping):
        raise InputError(field, ' must be an object with "type": "function" or "custom"')
    kind = check_choice(Name(field, "type"), value.get("type"), ("function", "custom"))
    inner, place = _inner(value, kind, field)
    _check_fields(inner, _FUNCTION if kind == "function" else _CUSTOM, place)
    name, description = _name(inner.get("name"), place), inner.get("description") or ""
    if not isinstance(description, str):
        raise InputError(Name(place, "description"), f" must be a string, not {shown(description)}")
    if kind == "custom":
        return Tool(name, description, None, *_format(inner.get("format"), place))
    if (strict := inner.get("strict")) is not None:
        check_bool(Name(place, "strict"), strict)
    parameters = _parameters(inner.get("parameters"), place)
    return Tool(name, description, parameters, strict=strict is True)


def _inner(value: Mapping[str, Any], kind: str, field: str) -> tuple[Mapping[str, Any], str]:
    """Return a tool's fields and their place: chat nests them by type, responses does not."""
    if kind not in value:
        return {key: item for key, item in value.items() if key != "type"}, field
    inner = value[kind]
    if not isinstance(inner, Mapping):
        raise InputError(Name(field, kind), f" must be an object, not {shown(inner)}")
    _check_fields(value, ("type", kind), field)
    return inner, Name(field, kind)


def _check_fields(value: Mapping[str, Any], names: Iterable[str], field: str) -> None:
    unknown = sorted(set(value) - set(names))
    if unknown:
        raise InputError(Name(field, unknown[0]), " is not known; leave it out")


def _name(value: Any, field: str) -> str:
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    raise InputError(
        Name(field, "name"),
        f" must be 1 to 128 letters, digits, underscores or hyphens, not {shown(value)}",
    )


def _parameters(value: Any, field: str) -> Mapping[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InputError(
            Name(field, "parameters"), f" must be a JSON schema, an object, not {shown(value)}"
        )
    if value.get("type", "object") != "object":
        raise InputError(
            Name(field, "parameters"), ' must describe an object: give "type": "object"'
        )
    return value


def _format(value: Any, field: str) -> tuple[str, str]:
    """Return (format, definition) of a custom tool."""
    place = Name(field, "format")
    if value is None:
        return "text", ""
    if not isinstance(value, Mapping):
        raise InputError(place, f" must be an object, not {shown(value)}")
    if check_choice(Name(place, "type"), value.get("type"), ("text", "grammar")) == "text":
        return "text", ""
    nested = "grammar" in value
    grammar = value["grammar"] if nested else value
    place = Name(place, "grammar") if nested else place
    if not isinstance(grammar, Mapping):
        raise InputError(place, f" must be an object, not {shown(grammar)}")
    syntax = check_choice(Name(place, "syntax"), grammar.get("syntax"), ("lark", "regex"))
    definition = grammar.get("definition")
    if not isinstance(definition, str) or not definition:
        raise InputError(Name(place, "definition"), " must be the grammar's text, a string")
    return syntax, definition


def _check_size(value: Any, field: str) -> None:
    """Raise InputError for a value that is not JSON, too deep or too large."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [child for parent in level for child in _children(parent)]
        if (least := 2 * len(level)) > MAX_BYTES:  # each has a byte, and a separator or bracket
            raise InputError(field, f" is at least {least} bytes of JSON; give at most {MAX_BYTES}")
    if level:
        raise InputError(field, f" must not nest deeper than {MAX_DEPTH} levels")
    try:
        size = len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
    except (TypeError, ValueError) as error:
        raise InputError(field, f" must be JSON: {error}") from None
    if size > MAX_BYTES:
        raise InputError(field, f" is {size} bytes of JSON; give at most {MAX_BYTES}")


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):  # JSON has no other mapping
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()


# -- a tool made of a function -----------------------------------------------------------------
# The signature becomes a JSON schema. The docstring, in one of the common forms, becomes the
# descriptions. A type that a schema cannot express is an InputError that names the parameter:
# nothing is guessed.

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_LINE = re.compile(r"(?::param\s+)?\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")


def tool_of(function: Callable[..., Any]) -> Tool:
    """Return a tool whose arguments are the keyword arguments of ``function``.

    The docstring's first paragraph describes the tool; a line "name: …" (or numpy's "name : type"
    with a paragraph below) describes a parameter.
    InputError: a parameter whose type is missing or cannot be expressed in JSON.
    """
    name = getattr(function, "__name__", None) or shown(function)
    try:
        signature = inspect.signature(function)
        hints = get_type_hints(function, include_extras=True)
    except Exception as error:  # evaluating an annotation may fail in any way
        raise InputError("tools", f": the signature of {name} is unknown: {error}") from None
    words = inspect.cleandoc(function.__doc__ or "")
    descriptions = _descriptions(words, set(signature.parameters))
    properties: dict[str, Any] = {}
    required = []
    for parameter in signature.parameters.values():
        place = f": parameter {parameter.name} of {name}"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InputError(
                "tools", f"{place} cannot be given by name; make it an ordinary parameter"
            )
        if parameter.name not in hints:
            raise InputError("tools", f"{place} has no type; annotate it")
        schema = _schema(hints[parameter.name], place)
        if parameter.name in descriptions:
            schema["description"] = descriptions[parameter.name]
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
    definition = {"name": name, "description": first, "parameters": parameters}
    return parse_tools([{"type": "function", "function": definition}])[0]


def _schema(hint: Any, place: str) -> dict[str, Any]:
    if isinstance(hint, type) and hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum([member.value for member in hint], place)
    if hint is Any:
        return {}
    return _generic_schema(hint, get_origin(hint) or hint, get_args(hint), place)


def _generic_schema(hint: Any, origin: Any, inner: tuple[Any, ...], place: str) -> dict[str, Any]:
    """Return the schema of a generic type, such as ``list[int]``."""
    if origin is Annotated:
        text = next((note for note in inner[1:] if isinstance(note, str)), None)
        return _schema(inner[0], place) | ({"description": text} if text else {})
    if origin is Literal:
        return _enum(list(inner), place)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(option, place) for option in inner]}
    if origin in (list, Sequence):
        return {"type": "array"} | ({"items": _schema(inner[0], place)} if inner else {})
    if origin in (dict, Mapping) and (not inner or inner[0] is str):
        return {"type": "object"} | (
            {"additionalProperties": _schema(inner[1], place)} if inner else {}
        )
    raise InputError(
        "tools",
        f"{place} has the type {hint}, which JSON cannot say; use str, int, float, bool, list, "
        "dict, Literal, an Enum or Optional",
    )


def _enum(values: list[Any], place: str) -> dict[str, Any]:
    if not values or not all(isinstance(value, (str, int, float, type(None))) for value in values):
        raise InputError("tools", f"{place} offers values that are no JSON; use strings or numbers")
    return {"enum": values}


def _descriptions(words: str, names: set[str]) -> dict[str, str]:
    """Map each parameter to the text after "name:", up to the next name or an unindented line."""
    descriptions: dict[str, list[str]] = {}
    current, indent = "", 0
    for line in words.splitlines()[1:]:
        here = len(line) - len(line.lstrip())
        match = _LINE.match(line.strip())
        if match and match[1] in names:
            current, indent = match[1], here
            numpy = " : " in line
            descriptions[current] = [] if numpy else [match[2]]
        elif current and line.strip() and here > indent:
            descriptions[current].append(line.strip())
        else:
            current = ""
    return {name: text for name, parts in descriptions.items() if (text := " ".join(parts).strip())}
