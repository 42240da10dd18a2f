r"""Keys of JSON objects: schemas under which llguidance takes each in one spelling alone.

llguidance excludes the keys that a schema names from "any other key" as they are written, not as a
parser reads them: ``"\u0072ole"`` would pass beside a typed ``role``.
"""

import re
from collections.abc import Mapping
from typing import Any

from cutaway.errors import InputError
from cutaway.text.grammar.subschemas import mapped, subschemas

WITHOUT_U = r"\"nrbtf"
"""Escapes of strings where no other way is left: of control characters, only those with a name."""

_SEVERAL = re.compile(r"[\x00-\x1f\x7f]")  # characters that are written in more than one way


def one_spelling(schema: Any) -> Any:
    """The same schema with "any other key" as a pattern, which llguidance matches decoded."""
    if not isinstance(schema, dict):
        return schema
    made = mapped(schema, one_spelling)
    if _names(schema) and _rest(schema) is True and "patternProperties" not in schema:
        return {**made, "patternProperties": {"": True}, "additionalProperties": False}
    return made


def has_several(schema: Any) -> bool:
    """Whether llguidance takes a named key in another spelling, after ``one_spelling``, too."""
    if not isinstance(schema, dict):
        return False
    among = bool(_names(schema) or schema.get("patternProperties"))
    if (among and _rest(schema) is not False) or any(map(_SEVERAL.search, _names(schema))):
        return True
    return any(has_several(one) for _, one in subschemas(schema))


def check_counts(schema: Any) -> None:
    """InputError where llguidance would count a key twice that is written twice."""
    if not isinstance(schema, dict):
        return
    least = schema.get("minProperties", 0)
    if isinstance(least, int) and least > 1 and is_open(schema):
        raise InputError(
            "json_schema: minProperties above 1 must be checked token by token, which is only "
            "possible without tools and thinking"
        )
    for _, one in subschemas(schema):
        check_counts(one)


def is_open(schema: Mapping[str, Any]) -> bool:
    """Whether an object may have keys that the schema does not name."""
    return _rest(schema) is not False or bool(schema.get("patternProperties"))


def _names(schema: Mapping[str, Any]) -> set[str]:
    own, required = schema.get("properties", {}), schema.get("required", [])
    names = {*own} if isinstance(own, dict) else set()
    if isinstance(required, list):
        names |= {name for name in required if isinstance(name, str)}
    return names


def _rest(schema: Mapping[str, Any]) -> Any:
    rest = schema.get("additionalProperties", True)
    return True if rest == {} else rest
