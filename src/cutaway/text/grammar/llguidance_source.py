"""A grammar in llguidance's notation, its limits, and its errors as one sentence.

Knows llguidance's notations.
"""

import json
import re
from typing import TYPE_CHECKING, Any

from cutaway.errors import InputError
from cutaway.text.grammar.json_keys import WITHOUT_U, check_counts, has_several, one_spelling
from cutaway.text.grammar.judge import ANSWER, Judge, judge_of, judge_of_rules
from cutaway.text.grammar.maskable import maskable
from cutaway.text.grammar.patterns import check_repetition
from cutaway.text.grammar.schema_values import check_values
from cutaway.text.grammar.source import Grammar
from cutaway.text.grammar.subschemas import without_own_formats
from cutaway.text.printable import printable

if TYPE_CHECKING:
    from llguidance import LLParserLimits
    from llguidance._lib import JsonCompileOptions

_SPACE = r" |\n[ \t]{0,20}"
"""White space between the parts of JSON: bounded, so that no model writes it endlessly."""
_LONGEST_QUOTE = 120
_GBNF_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)")
_LAZY_AND_EMPTY = "has_lowest_match"
_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"')


def limits() -> "LLParserLimits":
    """What a compile and a step may take.

    What a step costs depends on the steps before it, so that a limit that is met in the midst of a
    text ends it with an error, never with another mask.
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
    """As llguidance reads it; InputError where it cannot be read at all."""
    from llguidance import LLMatcher

    if (lark := lark_of(grammar)) is not None:
        return LLMatcher.grammar_from_lark(judge_of_rules(lark)[0])
    if grammar.kind == "json_schema":
        schema, rules = _schema_and_rules(json.loads(grammar.text), grammar.compact)
        return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=rules)
    if grammar.kind == "regex":
        check_repetition("regex", grammar.text)
        return LLMatcher.grammar_from_regex(grammar.text)
    texts = json.loads(grammar.text)
    return LLMatcher.grammar_from_lark("start: TEXT\nTEXT: " + " | ".join(map(json.dumps, texts)))


def lark_of(grammar: Grammar) -> str | None:
    """A grammar that is Lark, or has a thought before it, in Lark."""
    if grammar.thought:
        return "\n".join(["%llguidance {}", grammar.thought, f"{ANSWER}: {_nested(grammar)}"])
    return _lark(grammar.text) if grammar.kind == "grammar" else None


def judge_for(grammar: Grammar) -> Judge | None:
    """The judge of its texts; None where no schema binds them."""
    if grammar.thought or "%json" in grammar.text:
        return judge_of_rules(lark_of(grammar) or "")[1]
    return judge_of(json.loads(grammar.text)) if grammar.kind == "json_schema" else None


def nested_json(schema: Any, *, compact: bool = False) -> str:
    """JSON of a schema as a part of a Lark grammar."""
    schema, rules = _schema_and_rules(schema, compact)
    return f"%json {json.dumps({**schema, 'x-guidance': rules})}"


def _schema_and_rules(schema: Any, compact: bool) -> "tuple[dict[str, Any], JsonCompileOptions]":
    check_values(schema)
    check_counts(schema)
    schema = one_spelling(maskable(without_own_formats(schema)))
    rules: JsonCompileOptions = {"lenient": False}
    if compact:
        rules["whitespace_flexible"] = False
    else:
        rules["whitespace_pattern"] = _SPACE
    if has_several(schema):
        rules["json_allowed_escapes"] = WITHOUT_U
    return {} if schema is True else schema, rules  # as an object, which true is not


def _nested(grammar: Grammar) -> str:
    """As a part of a Lark grammar."""
    from llguidance import regex_to_lark

    if grammar.kind == "json_schema":
        return nested_json(json.loads(grammar.text), compact=grammar.compact)
    if grammar.kind == "regex":
        check_repetition("regex", grammar.text)
        return f"/{regex_to_lark(grammar.text, '')}/"
    if grammar.kind == "choice":
        return " | ".join(map(json.dumps, json.loads(grammar.text)))
    return f"%lark {{\n{_lark(grammar.text)}\n}}"


def _lark(text: str) -> str:
    if text.lstrip().startswith("{"):  # which llguidance takes for its own form in JSON
        raise InputError("grammar must be in Lark's notation or in GBNF, not JSON")
    if "::=" not in text:
        return text
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return any_to_lark(_GBNF_ESCAPE.sub(_character, text))
    except RecursionError:
        raise InputError("grammar: it is nested too deep; make it flatter") from None
    except Exception as error:  # its errors are its own
        raise InputError(f"grammar: {sentence(str(error))}") from None


def _character(escape: re.Match[str]) -> str:
    """What ``\\u0391`` of GBNF means; llguidance would lose its zeros."""
    if not (digits := escape[1] or escape[2]):
        return escape[0]
    code = int(digits, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise InputError(f"grammar: {escape[0]} is no character")
    return f"\\x{code:02x}" if code < 128 else chr(code)


def idle_attributes(lark: str) -> list[str]:
    """Attributes of its rules that change nothing, since a matcher only says what may follow."""
    rules = re.findall(r"^[?!]*[a-z_][\w-]*\[([^\]]*)\]\s*:", _QUOTED.sub("", lark), re.M)
    found = {name for attributes in rules for name in re.findall(r"[a-z_]+", attributes)}
    return sorted(found & {"capture", "stop_capture", "temperature"})


def sentence(said: str) -> str:
    """llguidance's own words: the reason alone, on one line."""
    if _LAZY_AND_EMPTY in said:
        return (
            "a rule that is lazy may be empty, where it would end at once: end it with what must "
            'follow, as a[lazy]: /.*/ "b"'
        )
    first = re.split(
        r"\n\s*\n|<state>|<non-verbose/>|<backtrace>|\nstack backtrace|\n +\d+ \|", said, maxsplit=1
    )
    words = re.sub(r'^at \d+\(\d+\): invalid regex ".*" \(in regex\): ', "", first[0], flags=re.S)
    words = re.sub(r"^regex parse error:.*\n\s*error: ", "", words, flags=re.S)
    words = re.sub(r"[.;,:]? *\b(enable|try|consider)\b.*$", "", words, flags=re.S | re.I)
    words = re.sub(r"^(?:at )?(\d+)\((\d+)\):", r"line \1, column \2:", " ".join(words.split()))
    words = printable(words or "it cannot be read")
    return words if len(words) <= 300 else f"{words[:_LONGEST_QUOTE]}…"
