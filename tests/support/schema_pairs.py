"""Random pairs of a schema and a text that is often nearly valid, and jsonschema's verdict.

Patterns, numbers and formats are most frequent, since masks have their own rules for them.
"""

import json
import random
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import ValidationError

from cutaway.text.grammar.json_values import CALENDAR_FITS

Rng = random.Random
ALPHABET = '"\\abAz/-[]05.@ \n\t\x00\x1f\x7fé😀'
_CLASSES = [
    '[^"]', r"[^\\]", r'[^"\\]', r"[^A-z]", "[^!-/]", "[A-z]", "[!-/]", r'[^\\/:*?"<>|]', "[^a]",
    r"[^\x00-\x1f]", r"[\x00-\x1f]", r"[^\n]", r'[^\n"]', "[ab]", r"\d", r"\w", r"[^\w]", ".", "a",
    "b", r"\\", '"', "/", r"\.", "[-a]", r"[\]\"]", r"[^\]]", "é", r"\u00e9", r"[\u0000-b]",
]  # fmt: skip
_BOUNDS = [
    0, 0, 1, -1, 2, 10, -10, 0.5, -0.5, 1.5, -1.5, 0.1, 0.3, 10.3, 99, 100, 0.05, 1e-3, 4, -4, 1e22,
    2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**63, -(2**63), 2**64 - 1, 123456789012345678,
]  # fmt: skip
_MULTIPLES = [1, 2, 3, 0.5, 0.1, 0.25, 7, 0.01, 100, 1.5]
_KEYS = ["a", "b", "ab", 'q"', "w\\", "é"]


# -- schemas --------------------------------------------------------------------------------------


def _pattern(rng: Rng) -> str:
    def part(depth: int) -> str:
        piece = rng.choice(_CLASSES)
        if depth and rng.random() < 0.25:
            piece = f"({'|'.join(part(depth - 1) for _ in range(rng.randint(1, 3)))})"
        return piece + rng.choice(["", "", "", "*", "+", "?", "{2}", "{1,2}"])

    middle = "".join(part(1) for _ in range(rng.randint(1, 3)))
    return rng.choice(["^", "^", ""]) + middle + rng.choice(["$", "$", ""])


def _string(rng: Rng) -> dict[str, Any]:
    string_schema: dict[str, Any] = {"type": "string"}
    if rng.random() < 0.8:
        string_schema["pattern"] = _pattern(rng)
    if rng.random() < 0.2:
        string_schema["minLength"] = rng.randint(0, 2)
    if rng.random() < 0.2:
        string_schema["maxLength"] = rng.randint(1, 4)
    return string_schema


def _draw_format(rng: Rng) -> dict[str, Any]:
    return {"type": "string", "format": rng.choice(["date", "time", "date-time", "uuid", "ipv4"])}


def _bounds(rng: Rng) -> dict[str, Any]:
    bounds: dict[str, Any] = {}
    low, high = sorted([rng.choice(_BOUNDS), rng.choice(_BOUNDS)])
    if rng.random() < 0.4:  # near one another
        low = rng.choice(_BOUNDS)
        high = low + rng.choice([0.25, 0.5, 1, 0.3])
        low, high = rng.choice([(low, high), (-high, -low)])
    if rng.random() < 0.75:
        bounds[rng.choice(["minimum", "exclusiveMinimum"])] = low
    if rng.random() < 0.75:
        bounds[rng.choice(["maximum", "exclusiveMaximum"])] = high
    return bounds


def _number(rng: Rng) -> dict[str, Any]:
    number_schema: dict[str, Any] = {
        "type": rng.choice(["number", "number", "integer"]),
        **_bounds(rng),
    }
    if rng.random() < 0.15:
        number_schema["multipleOf"] = rng.choice(_MULTIPLES)
    if rng.random() < 0.2:
        number_schema["allOf"] = [_bounds(rng)]
    return number_schema


def _draw_choices(rng: Rng) -> dict[str, Any]:
    values = [rng.choice([*_BOUNDS, "a", 'q"', None, True, [1], {"a": 2**53 + 1}]) for _ in "123"]
    return rng.choice([{"const": values[0]}, {"enum": values}])


def _object(rng: Rng, depth: int) -> dict[str, Any]:
    keys = rng.sample(_KEYS, rng.randint(0, 2))
    object_schema: dict[str, Any] = {"type": "object"}
    if keys:
        object_schema["properties"] = {key: schema(rng, depth - 1) for key in keys}
        object_schema["required"] = [key for key in keys if rng.random() < 0.6]
    if rng.random() < 0.3:
        object_schema["patternProperties"] = {_pattern(rng): schema(rng, depth - 1)}
    if rng.random() < 0.3:
        object_schema["additionalProperties"] = rng.choice([False, True, schema(rng, depth - 1)])
    if rng.random() < 0.1:
        object_schema["propertyNames"] = _string(rng)
    return object_schema


def _array(rng: Rng, depth: int) -> dict[str, Any]:
    array_schema: dict[str, Any] = {"type": "array", "items": schema(rng, depth - 1)}
    if rng.random() < 0.3:
        array_schema["prefixItems"] = [schema(rng, depth - 1)]
    if rng.random() < 0.3:
        array_schema[rng.choice(["minItems", "maxItems"])] = rng.randint(0, 2)
    if rng.random() < 0.1:
        array_schema["uniqueItems"] = True
    return array_schema


def _draw_combination(rng: Rng, depth: int) -> dict[str, Any]:
    parts = [schema(rng, depth - 1) for _ in range(rng.randint(1, 2))]
    name = rng.choice(["anyOf", "anyOf", "allOf", "oneOf", "not", "if", "$ref"])
    if name == "not":
        return {"type": rng.choice(["string", "number", "integer"]), "not": parts[0]}
    if name == "if":
        return {"if": parts[0], "then": parts[-1], "type": rng.choice(["string", "number"])}
    if name == "$ref":
        return {"$ref": "#/$defs/d"}
    return {name: parts}


def schema(rng: Rng, depth: int = 2) -> Any:
    """Return a schema, most often of one string or number."""
    leaves: list[Callable[[Rng], Any]] = (
        [_string] * 5 + [_number] * 5 + [_draw_format, _draw_choices]
    )
    deep: list[Callable[[Rng, int], Any]] = [_object, _array, _draw_combination, _draw_combination]
    if depth and rng.random() < 0.4:
        return rng.choice(deep)(rng, depth)
    return rng.choice(leaves)(rng)


# -- texts ----------------------------------------------------------------------------------------


def _text_of_string(rng: Rng, value: str) -> str:
    def spelt(character: str) -> str:
        if rng.random() < 0.03:
            return f"\\u{ord(character):04x}" if ord(character) < 65536 else character
        return json.dumps(character, ensure_ascii=False)[1:-1].replace("\x7f", r"\u007f")

    return f'"{"".join(map(spelt, value))}"'


def _some_string(rng: Rng, subschema: Any) -> str:
    formats = ["2024-02-29", "2025-02-29", "1900-02-29", "0000-01-01", "2025-04-31", "2025-12-31"]
    times = ["23:59:60Z", "12:00:60Z", "12:00:00+01:00", "24:00:00Z", "23:59:60+01:00", "00:00:00z"]
    if isinstance(subschema, dict) and "format" in subschema:
        other = [rng.choice(formats) + rng.choice("Tt ") + rng.choice(times), "127.0.0.1", "1.1.1"]
        return rng.choice([rng.choice(formats), rng.choice(times), rng.choice(other)])
    return "".join(rng.choice(ALPHABET) for _ in range(rng.randint(0, 4)))


def _some_number(rng: Rng, subschema: Any) -> str:
    near = [value for value in subschema.values() if isinstance(value, (int, float))]
    near += [value for part in subschema.get("allOf", ()) for value in part.values()]
    value = Decimal(repr(rng.choice(near or _BOUNDS)))
    value += Decimal(rng.choice(["0", "0", "0", "1", "-1", "0.1", "-0.1", "0.01", "0.25", "-0.5"]))
    text = format(value, "f")
    change = rng.random()
    if change < 0.1:
        return text + ("0" if "." in text else ".0")
    if change < 0.15:
        return f"{text}e{rng.choice(['0', '1', '-1'])}"
    return f"-{text.lstrip('-')}" if change < 0.2 else text


def text(rng: Rng, subschema: Any, root: Any, depth: int = 4) -> str:
    """Return JSON that may be valid under the schema."""
    if not isinstance(subschema, dict) or depth == 0 or rng.random() < 0.04:
        return rng.choice(["null", "true", "0", '"a"', "{}", "[]"])
    if "$ref" in subschema:
        return text(rng, root["$defs"]["d"], root, depth - 1)
    for name in ("anyOf", "oneOf", "allOf"):
        if name in subschema and "type" not in subschema:
            return text(rng, rng.choice(subschema[name]), root, depth - 1)
    if "const" in subschema or "enum" in subschema:
        value = rng.choice(subschema.get("enum") or [subschema["const"]])
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return _some_number(rng, {"minimum": value})
        return json.dumps(value, ensure_ascii=False)
    kind = subschema.get("type")
    if kind == "string":
        return _text_of_string(rng, _some_string(rng, subschema))
    if kind in ("number", "integer"):
        return _some_number(rng, subschema)
    if kind == "array":
        places = [*subschema.get("prefixItems", ())]
        count = rng.randint(0, 3)
        parts = [places[i] if i < len(places) else subschema["items"] for i in range(count)]
        return f"[{', '.join(text(rng, part, root, depth - 1) for part in parts)}]"
    return _some_object(rng, subschema, root, depth)


def _some_object(rng: Rng, subschema: dict[str, Any], root: Any, depth: int) -> str:
    properties = subschema.get("properties", {})
    members = {
        k: text(rng, v, root, depth - 1) for k, v in properties.items() if rng.random() < 0.8
    }
    for part in subschema.get("patternProperties", {}).values():
        members.setdefault(_some_string(rng, None), text(rng, part, root, depth - 1))
    if rng.random() < 0.3:
        rest = subschema.get("additionalProperties", True)
        members.setdefault(_some_string(rng, None), text(rng, rest, root, depth - 1))
    written_pairs = (f"{_text_of_string(Rng(0), key)}: {value}" for key, value in members.items())
    return f"{{{', '.join(written_pairs)}}}"


def pairs(seed: int, count: int, texts_of_each: int = 8) -> Iterator[tuple[Any, list[str]]]:
    """Yield schemas, each with ``texts_of_each`` texts; ``count`` texts in all."""
    rng = Rng(seed)
    for _ in range(-(-count // texts_of_each)):
        root = schema(rng)
        definition = schema(rng, 1)
        root["$defs"] = {"d": _string(rng) if "$ref" in json.dumps(definition) else definition}
        yield root, [text(rng, root, root) for _ in range(texts_of_each)]


def arguments(rng: Rng) -> tuple[Any, Callable[[], str]]:
    """Return (schema of a strict tool's arguments, function that gives possible arguments)."""
    kinds: list[Callable[[Rng], Any]] = [
        _string,
        _string,
        _number,
        _number,
        _draw_format,
        _draw_choices,
    ]
    keys = rng.sample(["a", "b", "ab"], rng.randint(1, 2))
    properties = {key: rng.choice(kinds)(rng) for key in keys}
    if rng.random() < 0.2:
        properties[keys[0]] = {"type": "array", "items": rng.choice(kinds)(rng)}
    keywords = {"properties": properties, "required": keys, "additionalProperties": False}

    def some() -> str:
        written_pairs = (
            f'"{key}": {text(rng, value_schema, None)}' for key, value_schema in properties.items()
        )
        return f"{{{', '.join(written_pairs)}}}"

    return {"type": "object", **keywords}, some


# -- jsonschema -----------------------------------------------------------------------------------


_CHECKER = Draft202012Validator.FORMAT_CHECKER


def _pattern_is_found(validator: Any, pattern: str, instance: Any, _: Any) -> Iterator[Any]:
    if validator.is_type(instance, "string") and not _search(pattern, instance):
        yield ValidationError("pattern")


def _search(pattern: str, instance: str) -> bool:
    """Search as ECMA 262 does: ``$`` matches only the end, ``\\d`` and ``\\w`` are ASCII."""
    whole = re.sub(r"(?<!\\)\$$", r"\\Z", pattern)
    return re.search(whole, instance, re.ASCII) is not None


def _properties_fit(validator: Any, by_pattern: Any, instance: Any, _: Any) -> Iterator[Any]:
    for pattern, below in by_pattern.items():
        for key, value in instance.items() if validator.is_type(instance, "object") else ():
            if _search(pattern, key):
                yield from validator.descend(value, below, path=key, schema_path=pattern)


def _others_fit(validator: Any, below: Any, instance: Any, subschema: Any) -> Iterator[Any]:
    properties, patterns = subschema.get("properties", {}), subschema.get("patternProperties", {})
    for key, value in instance.items() if validator.is_type(instance, "object") else ():
        if key not in properties and not any(_search(pattern, key) for pattern in patterns):
            yield from validator.descend(value, below, path=key)


def _format_fits(validator: Any, name: str, instance: Any, _: Any) -> Iterator[Any]:
    fits = CALENDAR_FITS.get(name) or (lambda text: _CHECKER.conforms(text, name))
    if isinstance(instance, str) and not fits(instance):
        yield ValidationError("format")


def _is_integer(_: Any, instance: Any) -> bool:
    if isinstance(instance, Decimal):
        return instance == instance.to_integral_value()
    return isinstance(instance, int) and not isinstance(instance, bool)


_Validator = validators.extend(
    Draft202012Validator,
    {
        "pattern": _pattern_is_found,
        "patternProperties": _properties_fit,
        "additionalProperties": _others_fit,
        "format": _format_fits,
    },
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer),
)


def is_valid(root: Any, json_text: str) -> bool:
    """Return jsonschema's verdict, with all numbers as exact decimals."""
    by_digits = json.loads(json.dumps(root), parse_float=Decimal)
    return bool(_Validator(by_digits).is_valid(json.loads(json_text, parse_float=Decimal)))
