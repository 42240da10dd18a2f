"""Write a grammar in llguidance's notation, and turn llguidance's errors into one sentence.

Knows llguidance's notations and limits, and where release 1.9.1 deviates from JSON Schema.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from functools import partial
from math import inf, nextafter, ulp
from typing import TYPE_CHECKING, Any

from cutaway.base.checks import shown
from cutaway.errors import InputError
from cutaway.text.characters import printable
from cutaway.text.grammar import Grammar
from cutaway.text.grammar.exact_integers import exact_rules
from cutaway.text.grammar.json_values import (
    CALENDAR_PATTERNS,
    is_exact,
    is_maskable_step,
    is_number,
)
from cutaway.text.grammar.patterns.look_around import (
    as_single_pattern,
    lark_of_regex,
    patterns_of,
)
from cutaway.text.grammar.patterns.sets import check_repetition, make_quotable
from cutaway.text.grammar.patterns.witness import with_witness
from cutaway.text.grammar.rewriting import rewrite
from cutaway.text.grammar.schema_checks import ANSWER, JUDGED, Judge, judge_of, judge_of_rules
from cutaway.text.grammar.schemas import (
    WITHOUT_U,
    check_counts,
    check_values,
    has_several,
    map_subschemas,
    one_spelling,
    without_custom_formats,
)

if TYPE_CHECKING:
    from llguidance import LLParserLimits
    from llguidance._lib import JsonCompileOptions


# -- the source --------------------------------------------------------------------------------

_SPACE = r" |\n[ \t]{0,20}"
"""White space between the parts of JSON: bounded, so that no model writes it endlessly."""
_LONGEST_QUOTE = 120
_GBNF_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)")
_LAZY_AND_EMPTY = "has_lowest_match"
_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"')


def limits() -> "LLParserLimits":
    """Return the limits on the work of a compilation and of a step.

    The cost of a step depends on the steps before it. So a text that reaches a limit ends with an
    error, never with another mask.
    """
    from llguidance import LLParserLimits

    return LLParserLimits(
        step_lexer_fuel=400_000,
        step_max_items=50_000,
        max_items_in_row=50_000,  # four of each optional property
        max_lexer_states=50_000,
        verbose_errors=False,
    )


def source_of(grammar: Grammar) -> str:
    """Return a grammar's source for llguidance; InputError if it cannot be converted."""
    from llguidance import LLMatcher

    if (lark := lark_of(grammar)) is not None:
        return LLMatcher.grammar_from_lark(judge_of_rules(lark)[0])
    if grammar.kind == "json_schema":
        schema, rules = _schema_and_rules(json.loads(grammar.text), grammar.compact)
        return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=rules)
    if grammar.kind == "regex":
        check_repetition("regex", grammar.text)
        if regex := lark_of_regex(grammar.text):
            return LLMatcher.grammar_from_lark(_lark_of_text(regex))
        return LLMatcher.grammar_from_regex(grammar.text)
    texts = json.loads(grammar.text)
    return LLMatcher.grammar_from_lark(_lark_of_text(" | ".join(map(json.dumps, texts))))


def _lark_of_text(terminal: str) -> str:
    return f"start: TEXT\nTEXT: {terminal}"


def lark_of(grammar: Grammar) -> str | None:
    """Return a grammar in Lark if it is Lark, or a thought may precede its text; else None."""
    if grammar.thought:
        return "\n".join(["%llguidance {}", grammar.thought, f"{ANSWER}: {_nest_in_lark(grammar)}"])
    return _lark(grammar.text) if grammar.kind == "grammar" else None


def judge_for(grammar: Grammar) -> Judge | None:
    """Return the judge of a grammar's texts; None where no schema constrains them."""
    if grammar.thought or "%json" in grammar.text or JUDGED in grammar.text:
        return judge_of_rules(lark_of(grammar) or "")[1]
    return judge_of(json.loads(grammar.text)) if grammar.kind == "json_schema" else None


def nested_json(schema: Any, *, compact: bool = False) -> str:
    """Return the Lark expression that matches JSON of a schema."""
    check_values(schema)
    check_counts(schema)
    rewritten = rewrite(without_custom_formats(schema))
    exact = exact_rules(rewritten, partial(_json, compact=compact), "" if compact else _SPACE)
    if exact is None:
        return _json(rewritten, compact=compact)
    return f"%lark {{\n{JUDGED}{json.dumps(rewritten)}\n{exact}\n}}"


def _json(rewritten: Any, *, compact: bool) -> str:
    schema, rules = _readable(rewritten, compact)
    return f"%json {json.dumps({**schema, 'x-guidance': rules})}"


def _schema_and_rules(schema: Any, compact: bool) -> "tuple[dict[str, Any], JsonCompileOptions]":
    check_values(schema)
    check_counts(schema)
    return _readable(rewrite(without_custom_formats(schema)), compact)


def _readable(rewritten: Any, compact: bool) -> "tuple[dict[str, Any], JsonCompileOptions]":
    """Return (a rewritten schema as llguidance reads it rightly, llguidance's settings for it)."""
    schema = one_spelling(maskable(rewritten))
    rules: JsonCompileOptions = {"lenient": False}
    if compact:
        rules["whitespace_flexible"] = False
    else:
        rules["whitespace_pattern"] = _SPACE
    if has_several(schema):
        rules["json_allowed_escapes"] = WITHOUT_U
    return {} if schema is True else schema, rules  # llguidance requires an object


def _nest_in_lark(grammar: Grammar) -> str:
    """Return a grammar as a part of a Lark grammar."""
    from llguidance import regex_to_lark

    if grammar.kind == "json_schema":
        return nested_json(json.loads(grammar.text), compact=grammar.compact)
    if grammar.kind == "regex":
        check_repetition("regex", grammar.text)
        if regex := lark_of_regex(grammar.text):
            return f"%lark {{\n{_lark_of_text(regex)}\n}}"
        return f"/{regex_to_lark(grammar.text, '')}/"
    if grammar.kind == "choice":
        return " | ".join(map(json.dumps, json.loads(grammar.text)))
    return f"%lark {{\n{_lark(grammar.text)}\n}}"


def _lark(text: str) -> str:
    if text.lstrip().startswith("{"):  # llguidance would read it as its own JSON form
        raise InputError("grammar", " must be in Lark's notation or in GBNF, not JSON")
    if "::=" not in text:
        return text
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return any_to_lark(_GBNF_ESCAPE.sub(_character, text))
    except RecursionError:
        raise InputError("grammar", ": it is nested too deep; make it flatter") from None
    except Exception as error:  # llguidance raises its own types
        raise InputError("grammar", *reason(str(error))) from None


def _character(escape: re.Match[str]) -> str:
    """Return the character of a GBNF escape such as ``\\u0391``; llguidance would drop zeros."""
    if not (digits := escape[1] or escape[2]):
        return escape[0]
    code = int(digits, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise InputError("grammar", f": {escape[0]} is no character")
    return f"\\x{code:02x}" if code < 128 else chr(code)


def idle_attributes(lark: str) -> list[str]:
    """Return the attributes of rules that have no effect on which tokens a matcher allows."""
    rules = re.findall(r"^[?!]*[a-z_][\w-]*\[([^\]]*)\]\s*:", _QUOTED.sub("", lark), re.M)
    names = {name for attributes in rules for name in re.findall(r"[a-z_]+", attributes)}
    return sorted(names & {"capture", "stop_capture", "temperature"})


def reason(message: str) -> tuple[str, ...]:
    """Return llguidance's message as the parts of an error: the place, if known, and the reason."""
    if _LAZY_AND_EMPTY in message:
        return (
            ": a rule that is lazy may be empty, where it would end at once: end it with what must "
            'follow, as a[lazy]: /.*/ "b"',
        )
    first = re.split(
        r"\n\s*\n|<state>|<non-verbose/>|<backtrace>|\nstack backtrace|\n +\d+ \|",
        message,
        maxsplit=1,
    )
    words = re.sub(r'^at \d+\(\d+\): invalid regex ".*" \(in regex\): ', "", first[0], flags=re.S)
    words = re.sub(r"^regex parse error:.*\n\s*error: ", "", words, flags=re.S)
    words = re.sub(r"[.;,:]? *\b(enable|try|consider)\b.*$", "", words, flags=re.S | re.I)
    words = " ".join(words.split())
    at = re.match(r"(?:at )?(\d+)\((\d+)\)(?=:)", words)
    location = f": line {at[1]}, column {at[2]}" if at else ""
    words = words[at.end() :] if at else f": {words or 'it cannot be read'}"
    words = printable(words)
    if len(location + words) > 302:
        words = f"{words[: _LONGEST_QUOTE + 2 - len(location)]}…"
    return (location, words) if location else (words,)


# -- a schema that llguidance masks correctly --------------------------------------------------
# llguidance reads numbers as float64, allows an excluded whole bound where the other bound is less
# than 1 away, and knows no calendar. Such formats, patterns and numbers are replaced by others that
# never allow more.

_LEAST = 1e-20
"""The bound that replaces an excluded 0."""
_ULPS = 8
"""Steps of float64 that an excluded bound moves: llguidance's fractions are 1 step off."""
_WHOLE = 2**53
"""The first integer after which float64 does not have every integer."""
_INT64 = 2**63
_BELOW_INT64 = int(nextafter(_INT64, 0))
_BOUNDS = (("minimum", "exclusiveMinimum", inf), ("maximum", "exclusiveMaximum", -inf))
"""(included bound, excluded bound, direction of the allowed numbers) of each side."""


def maskable(schema: Any) -> Any:
    """Return a schema that llguidance masks correctly; InputError for a number it cannot read."""
    return _make_maskable(schema, _find_near_bounds(schema))


def _make_maskable(schema: Any, near: frozenset[float]) -> Any:
    if not isinstance(schema, dict):
        return schema
    for name in ("const", "enum", "multipleOf"):
        _check_number(name, schema)
    copy = map_subschemas(schema, lambda subschema: _make_maskable(subschema, near))
    if "pattern" in copy:
        copy |= _pattern(copy.pop("pattern"), copy.get("allOf", ()))
    if "pattern" in copy and ("minLength" in copy or "maxLength" in copy):
        limit = copy.get("maxLength")
        copy["pattern"] = with_witness(copy["pattern"], copy.get("minLength", 0), limit)
    if "patternProperties" in copy:
        copy["patternProperties"] = _merge_equal_patterns(copy["patternProperties"])
    if pattern := CALENDAR_PATTERNS.get(copy.get("format", "")):
        del copy["format"]
        copy["allOf"] = [*copy.get("allOf", ()), {"pattern": f"^(?:{pattern})$"}]
    for included, excluded, inside in _BOUNDS:
        _change_bounds(copy, included, excluded, inside, near)
    return copy


def _check_number(name: str, schema: Mapping[str, Any]) -> None:
    value = schema.get(name)
    is_step = name == "multipleOf" and value is not None
    if not (is_maskable_step(value) if is_step else is_exact(value)):
        raise InputError(
            "json_schema",
            f": {name} is {shown(value)}, a number that masks do not know, which must "
            "be checked token by token; that is only possible without tools and thinking",
        )


def _pattern(pattern: str, all_of: Iterable[Any]) -> dict[str, Any]:
    """Return keywords that say what a pattern says, and what ``allOf`` says."""
    options = [[{"pattern": make_quotable(part)} for part in parts]
               for parts in patterns_of(pattern)]  # fmt: skip
    if len(options) != 1:
        any_of = {"anyOf": [{"allOf": option} for option in options]} if options else False
        return {"allOf": [*all_of, any_of]}
    (first, *more) = options[0] or [{}]
    return {**first, "allOf": [*all_of, *more]} if more or all_of else first


def _merge_equal_patterns(schemas: Mapping[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for pattern, subschema in schemas.items():
        if (single := as_single_pattern(pattern)) is None:
            continue
        name = make_quotable(single)
        merged[name] = {"allOf": [merged[name], subschema]} if name in merged else subschema
    return merged


def _change_bounds(
    schema: dict[str, Any], included: str, excluded: str, inside: float, near: frozenset[float]
) -> None:
    """Change one side's bounds to float64 numbers that allow no more than the bounds do."""
    if schema.get(excluded) is True and is_number(schema.get(included)):  # draft 4 has true
        schema[excluded] = schema.pop(included)
    bound: Any = schema.get(excluded)
    sign = 1 if inside > 0 else -1
    if is_number(bound) and (abs(bound) >= _WHOLE or (bound in near and bound * sign >= 0)):
        step: Any = _ULPS * ulp(bound) if bound else _LEAST
        new_bound = int(bound) + sign if abs(bound) >= _WHOLE else bound + sign * step
        included_bounds = [schema[included]] if is_number(schema.get(included)) else []
        del schema[excluded]
        schema[included] = sign * max(
            sign * candidate for candidate in (new_bound, *included_bounds)
        )
    if is_number(schema.get(included)):
        if schema[included] * sign >= _INT64:
            raise InputError(
                "json_schema",
                f": {included} is {shown(schema[included])}; numbers beyond 2^63 cannot "
                "be masked, which it asks for",
            )
        schema[included] = _inward(schema[included], inside, _is_of_integers(schema))


def _is_of_integers(schema: Mapping[str, Any]) -> bool:
    types = schema.get("type")
    return types == "integer" or (isinstance(types, list) and "number" not in types)


def _inward(bound: Any, inside: float, of_integers: bool) -> Any:
    """Return a bound as float64; between two such numbers, the stricter one."""
    rounded = float(bound)
    is_outer = Decimal(repr(rounded)) < bound if inside > 0 else Decimal(repr(rounded)) > bound
    if inside > 0 and rounded <= -_INT64:
        return -_BELOW_INT64
    if inside < 0 and rounded >= _INT64:  # a bound of integers is read as 2^63 - 1
        return bound if of_integers and bound >= _INT64 - 1 else _BELOW_INT64
    return int(nextafter(rounded, inside)) if isinstance(bound, int) and is_outer else bound


def _find_near_bounds(schema: Any) -> frozenset[float]:
    """Return the whole bounds less than 1 away from a bound of the other side.

    Lower bounds are only returned if they are at least 0, and upper bounds if they are at most 0.
    """
    low = {*_bounds_in(schema, "minimum", "exclusiveMinimum")}
    high = {*_bounds_in(schema, "maximum", "exclusiveMaximum")}
    near = [b for b in low if b >= 0 and any(b < other < b + 1 for other in high)]
    near += [b for b in high if b <= 0 and any(b - 1 < other < b for other in low)]
    return frozenset(b for b in near if b == int(b))


def _bounds_in(value: Any, *names: str) -> Iterator[Any]:
    """Yield bounds with these names anywhere in a schema, since a ``$ref`` may lead anywhere."""
    if isinstance(value, dict):
        yield from (value[name] for name in names if is_number(value.get(name)))
    if isinstance(value, (dict, list)):
        for child in value.values() if isinstance(value, dict) else value:
            yield from _bounds_in(child, *names)
