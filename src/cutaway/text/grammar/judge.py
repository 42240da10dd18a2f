"""The second judge of a text under schemas: whether it keeps to them, once it is whole.

It shares nothing with masks but how patterns and most formats are read. A text that it refuses
must not end.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from cutaway.text.grammar.json_values import parsed
from cutaway.text.grammar.partial_json import MAX_DEPTH
from cutaway.text.grammar.partial_validator import PartialValidator
from cutaway.text.grammar.subschemas import mapped, without_own_formats

WHOLE, ANSWER = "", "answer"
"""The whole text, and the rule of what follows a thought."""

_RULE = re.compile(r"^([a-z_]\w*): %json (\{.*\})$", re.MULTILINE)
_LATER = {
    "draft-04": ("const", "contains", "propertyNames", "if", "then", "else", "prefixItems"),
    "draft-06": ("if", "then", "else", "prefixItems"),
    "draft-07": ("prefixItems",),
    "2019-09": ("prefixItems",),
}
"""Draft -> keywords of later ones, which mean nothing in it."""


class Judge:
    """Whether what was written under schemas keeps to them.

    names  of the rules that have schemas, or WHOLE
    """

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self.names = frozenset(schemas)
        self._schemas = {name: _of_its_draft(schema) for name, schema in schemas.items()}

    def takes(self, name: str, text: bytes) -> bool:
        """Whether a text keeps to the schema of this name, where there is one."""
        if name not in self._schemas:
            return True
        try:
            value = parsed(text.decode())
        except (ValueError, RecursionError):
            return False
        if _is_deeper(value, MAX_DEPTH):
            return False
        return PartialValidator(self._schemas[name]).judge(value) is True


def judge_of(schema: Any) -> Judge:
    """The judge of whole texts of a schema."""
    return Judge({WHOLE: without_own_formats(schema)})


def judge_of_rules(lark: str) -> tuple[str, Judge | None]:
    """Lark whose rules of nothing but a schema are captured, and the judge of what is captured."""
    schemas = {name: _schema(text) for name, text in _RULE.findall(lark)}
    known = {name: schema for name, schema in schemas.items() if {*schema} - {"x-guidance"}}
    if not known:
        return lark, None
    captured = _RULE.sub(
        lambda rule: rule[0].replace(":", "[capture]:", 1) if rule[1] in known else rule[0], lark
    )
    return captured, Judge(known)


def _schema(text: str) -> dict[str, Any]:
    """Empty where the line says more than a schema."""
    try:
        return cast("dict[str, Any]", json.loads(text))
    except ValueError:
        return {}


def _of_its_draft(schema: Any) -> Any:
    """A schema without keywords that its draft does not have."""
    named = schema.get("$schema") if isinstance(schema, dict) else None
    later = next((names for draft, names in _LATER.items() if draft in str(named)), ())

    def without(one: Any) -> Any:
        if not isinstance(one, dict):
            return one
        return {name: value for name, value in mapped(one, without).items() if name not in later}

    return without(schema) if later else schema


def _is_deeper(value: Any, levels: int) -> bool:
    level = [value]
    for _ in range(levels + 1):
        level = [one for parent in level for one in _children(parent)]
        if not level:
            return False
    return True


def _children(value: Any) -> Iterator[Any]:
    among = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (one for one in among if isinstance(one, (dict, list)))
