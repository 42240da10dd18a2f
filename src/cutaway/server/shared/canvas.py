"""The field ``denoise`` of requests: a rule's name or its settings."""

from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from cutaway.engine.canvas import RULES, SETTING_WORDS, Setting, read_rule
from cutaway.errors import InputError
from cutaway.server.body import refused

_TYPES = {int: "integer", float: "number", bool: "boolean", str: "string"}


def _checked(value: Any) -> Any:
    """The rule unchanged; false means none."""
    if value is False:
        return None
    try:
        read_rule(value)
    except InputError as error:
        said = str(error).removeprefix("denoise: ").removeprefix("denoise ")
        raise refused(f"{{field}}: {said}") from error
    return value


def _property(setting: Setting) -> dict[str, Any]:
    if setting.type is tuple:
        cell = {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 3}
        schema: dict[str, Any] = {"type": "array", "items": cell}
    else:
        schema = {"type": _TYPES[setting.type]}
        schema |= {"enum": list(setting.choices)} if setting.choices else {}
    return {**schema, "description": setting.help}


_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "boolean"},
        {"enum": list(RULES)},
        {
            "type": "object",
            "properties": {name: _property(each) for name, each in SETTING_WORDS.items()},
            "additionalProperties": False,
        },
    ]
}

Denoised = Annotated[
    Any,
    BeforeValidator(_checked),
    WithJsonSchema(_SCHEMA),
]
