"""Which types of JSON a schema allows, and the schema of some of them.

Knows the keywords that combine schemas. A type is one of JSON Schema's, but "boolean" is "true" and
"false", and "integer" is "number".
"""

from collections.abc import Mapping, Set
from typing import Any

from cutaway.errors import InputError

STRING, NUMBER, OBJECT, ARRAY = "string", "number", "object", "array"
ANY = frozenset({STRING, NUMBER, OBJECT, ARRAY, "true", "false", "null"})
_NAMED = {"boolean": {"true", "false"}, "integer": {NUMBER}}
_DEPTH = 100


def resolved(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """The schema as an object, with what a local ``$ref`` names put in.

    root: the whole schema, whose parts references name
    InputError for a reference to nothing or elsewhere.
    """
    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    found = dict(schema)
    for _ in range(_DEPTH):
        if "$ref" not in found:
            return found
        found = {**_named(found.pop("$ref"), root), **found}
    raise InputError(f"the reference {schema['$ref']} names itself; describe the value there")


def _named(reference: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    place: Any = root
    for step in str(reference).removeprefix("#").removeprefix("/").split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if name:
            place = place.get(name) if isinstance(place, dict) else None
    if not str(reference).startswith("#") or not isinstance(place, (dict, bool)):
        raise InputError(f'the reference "{reference}" names nothing; put it under $defs')
    return resolved(place, {}) if isinstance(place, bool) else dict(place)


def types_of(schema: Any, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """The types of the values that a schema may allow."""
    if depth > _DEPTH:
        return ANY
    here = resolved(schema, root)
    if here.get("not") == {}:
        return frozenset()
    found = set(ANY)
    if "type" in here:
        named = here["type"] if isinstance(here["type"], list) else [here["type"]]
        found &= set().union(*(_NAMED.get(name, {name}) for name in named))
    for values in _listed(here):
        found &= {type_of(value) for value in values}
    for one in here.get("allOf", ()):
        found &= types_of(one, root, depth + 1)
    for name in ("anyOf", "oneOf"):
        if name in here:
            found &= set().union(*(types_of(one, root, depth + 1) for one in here[name]))
    return frozenset(found)


def _listed(schema: Mapping[str, Any]) -> list[list[Any]]:
    """The values that a schema lists, by ``enum`` and by ``const``."""
    listed = [schema["enum"]] if isinstance(schema.get("enum"), list) else []
    return [*listed, [schema["const"]]] if "const" in schema else listed


def type_of(value: Any) -> str:
    """The type of a JSON value."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    kinds = ((str, STRING), ((int, float), NUMBER), (Mapping, OBJECT))
    return next((name for kind, name in kinds if isinstance(value, kind)), ARRAY)


def narrowed(schema: Any, keep: Set[str], root: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of those of its values that have one of the types ``keep``.

    root: the whole schema, whose parts references name
    """
    types = types_of(schema, root)
    if types <= keep:
        return {**resolved(schema, root)}
    here = resolved(schema, root)
    for name in ("anyOf", "oneOf"):
        if name in here:
            ways = [one for one in here[name] if types_of(one, root) & keep]
            here[name] = [narrowed(one, keep, root) for one in ways]
    for name in ("enum", "const"):
        if name in here:
            values = here.pop(name) if name == "enum" else [here.pop(name)]
            here["enum"] = [value for value in values if type_of(value) in keep]
            return here
    if "anyOf" in here or "oneOf" in here:
        return here
    named = here.get("type", ["object", "array", "string", "number", "boolean", "null"])
    named = named if isinstance(named, list) else [named]
    here["type"] = [name for name in named if _NAMED.get(name, {name}) & keep]
    return here
