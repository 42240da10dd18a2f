"""What is left out of a tool's schema: no more than need be, and never so that less is allowed."""

import random
from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from cutaway.errors import CompileLimitError, InputError, Name
from cutaway.text.grammar import Grammar
from cutaway.text.grammar.compiler import check_compiles
from cutaway.text.grammar.llguidance_source import source_of
from cutaway.text.tools import Dialect, Tool, ToolChoice, enforced, grammar, loosening
from cutaway.text.tools.dialect import DEFAULT_DIALECT
from cutaway.text.tools.enforced import EnforcedTools
from cutaway.text.tools.loosening import Loosened, Trials
from cutaway.text.tools.loosening import loosen as loosen_within
from support.chat_templates import FORMS, NAMES, dialect
from support.mcp_tools import TOOLS


def loosen(schema: Any, enforce: Any, trials: Trials | None = None) -> Loosened:
    return loosen_within(schema, enforce, trials or Trials(1))


def refusing(*keywords: str):
    """Enforces every schema but those that have one of these keywords."""

    def enforce(schema: Any) -> None:
        for name in keywords:
            if name in _keywords(schema):
                raise InputError("json_schema", f": no {name}")

    return enforce


def _keywords(value: Any) -> set[str]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {*(value if isinstance(value, dict) else ())}.union(*map(_keywords, inner))


def test_a_schema_that_can_be_enforced_is_left_as_it_is() -> None:
    for schema in TOOLS.values():
        assert loosen(schema, refusing()) == Loosened(schema)


def test_only_the_keyword_at_fault_is_left_out() -> None:
    schema = {
        "type": "object", "required": ["a"], "properties": {
            "a": {"type": "array", "uniqueItems": True, "items": {"enum": ["x", "y"]}},
            "b": {"$ref": "#/$defs/b"},
        }, "$defs": {"b": {"anyOf": [{"pattern": "a", "type": "string"}, {"$ref": "#/$defs/c"}]},
                     "c": {"type": "integer"}},
    }  # fmt: skip
    left = loosen(schema, refusing("uniqueItems", "pattern"))
    places = ["properties.a.uniqueItems", "$defs.b.anyOf[0].pattern"]
    assert sorted(place for place, _ in left.left_out) == sorted(places)
    assert left.left_out[0][1] == ": no " + left.left_out[0][0].rpartition(".")[2]
    del schema["properties"]["a"]["uniqueItems"]  # type: ignore[index, misc]
    del schema["$defs"]["b"]["anyOf"][0]["pattern"]  # type: ignore[index, misc]
    assert left.schema == schema


def test_a_keyword_goes_with_what_it_would_be_stricter_without() -> None:
    closed = {
        "type": "object", "patternProperties": {"^a": {}, "^b": {}}, "additionalProperties": False,
        "properties": {"x": {"prefixItems": [{}], "items": False}},
        "if": {"required": ["x"]}, "then": {"required": ["y"]},
    }  # fmt: skip
    left = loosen(closed, refusing("^a", "prefixItems", "if"))
    assert left.schema == {
        "type": "object", "patternProperties": {"^b": {}}, "properties": {"x": {}},
    }  # fmt: skip
    assert {place for place, _ in left.left_out} == {
        "patternProperties.^a", "properties.x.prefixItems", "if",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("most", "words"), [("_MOST_TRIALS", "too many"), ("_LONGEST_S", "more than 0 s")]
)
def test_what_takes_too_long_is_an_error_and_never_looser(
    monkeypatch: pytest.MonkeyPatch, most: str, words: str
) -> None:
    monkeypatch.setattr(loosening, most, 0)
    trials = Trials(1)
    with pytest.raises(CompileLimitError, match=words):
        loosen({"minLength": 1, "pattern": "a"}, refusing("pattern"), trials)


def test_what_cannot_be_tried_is_not_left_out() -> None:
    def enforce(schema: Any) -> None:
        raise CompileLimitError("grammar", ": compiling it takes more than 3 s")

    with pytest.raises(CompileLimitError, match="3 s"):
        loosen({"pattern": "a"}, enforce)


def _offer(*tools: Tool) -> EnforcedTools:
    names = [Name("tools", i, "parameters") for i in range(len(tools))]
    return EnforcedTools(tools, names, DEFAULT_DIALECT, source_of)


def _lists(i: int) -> Tool:
    inner = {f"p{i}_{j}": {"type": "array", "uniqueItems": True} for j in range(3)}
    return Tool(f"f{i}", "", {"type": "object", "properties": inner})


def test_the_tools_of_a_request_share_their_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enforced, "_CACHE", enforced._Cache())
    monkeypatch.setattr(loosening, "_MOST_TRIALS", 20)
    tools = [_lists(i) for i in range(20)]
    _offer(*tools[:1]).loosen(tools[:1], ready=False)
    offer = _offer(*tools)
    with pytest.raises(InputError, match=r"^tools\[[1-9]\]\.parameters of f[1-9]: .* fewer tools$"):
        offer.loosen(tools, ready=False)


def test_tools_that_are_all_enforced_need_one_trial_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enforced, "_CACHE", enforced._Cache())
    monkeypatch.setattr(loosening, "_MOST_TRIALS", 0)
    tools = [Tool(f"f{i}", "", {"type": "object"}) for i in range(5)]
    _offer(*tools).loosen(tools, ready=False)


def test_the_kept_schemas_are_of_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enforced, "_MOST_CACHED", 1000)
    cache, form = enforced._Cache(), DEFAULT_DIALECT
    tools = [Tool(f"f{i}", "", {"description": str(i) * 300}) for i in range(5)]
    for tool in (*tools, tools[-1]):
        cache.put(form, tool, Loosened(tool.schema()))
    kept = [cache.find(form, tool) is not None for tool in tools]
    assert kept == [False, False, False, True, True]
    cache.put(form, tools[0], Loosened({"description": "x" * 2000}))
    assert cache.find(form, tools[0]) is None


_NAMES = ("uniqueItems", "pattern", "items", "prefixItems", "required", "type", "enum", "anyOf",
          "additionalProperties", "patternProperties", "not", "if", "$ref", "minItems", "$defs",
          "properties", "allOf", "^a", "a")  # fmt: skip


def _random_schema(rng: random.Random, depth: int = 3) -> Any:
    def below() -> Any:
        return _random_schema(rng, depth - 1) if depth else rng.choice([True, {}])

    makers: dict[str, Any] = {
        "type": lambda: rng.choice(["object", "array", "integer", "string", ["array", "object"]]),
        "properties": lambda: {"a": below(), "b": below()},
        "patternProperties": lambda: {"^a": below()},
        "additionalProperties": lambda: rng.choice([False, below()]),
        "required": lambda: rng.sample(["a", "b"], rng.randint(0, 2)),
        "items": lambda: rng.choice([False, below()]), "prefixItems": lambda: [below(), below()],
        "minItems": lambda: rng.randint(0, 2), "uniqueItems": lambda: True,
        "anyOf": lambda: [below(), below()], "allOf": lambda: [below()], "not": below,
        "enum": lambda: rng.sample([1, "a", [], {}, [1]], 3), "if": below, "then": below,
        "pattern": lambda: rng.choice(["a", "^b$"]),
    }  # fmt: skip
    chosen = rng.sample([*makers], rng.randint(1, 5))
    return {name: makers[name]() for name in chosen}


def _random_value(rng: random.Random, depth: int = 3) -> Any:
    kind = rng.randrange(4 if depth else 2)
    if kind == 0:
        return rng.choice([1, 2, None, True])
    if kind == 1:
        return rng.choice(["a", "b", ""])
    if kind == 2:
        return [_random_value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    keys = rng.sample(["a", "b", "ab", "c"], rng.randint(0, 3))
    return {key: _random_value(rng, depth - 1) for key in keys}


def test_what_the_schema_allows_the_loosened_one_allows() -> None:
    rng, seen, loose = random.Random(4), 0, 0
    for _ in range(1500):
        schema = _random_schema(rng)
        enforce = refusing(*rng.sample(_NAMES, rng.randint(1, 4)))
        left = loosen(schema, enforce)
        enforce(left.schema)
        whole, looser = Draft202012Validator(schema), Draft202012Validator(left.schema)
        loose += left.schema != schema
        for value in (_random_value(rng) for _ in range(20)):
            if whole.is_valid(value):
                seen += 1
                assert looser.is_valid(value), (schema, left, value)
    assert loose > 1000
    assert seen > 3000


@pytest.mark.parametrize("name", [*NAMES, *FORMS])
def test_the_tools_of_ten_servers_can_be_offered_in_every_dialect(name: str) -> None:
    form: Dialect = replace(dialect(name), control={})
    for title, schema in TOOLS.items():
        tool = Tool(title, "", schema)

        def enforce(part: Any, tool: Tool = tool) -> None:
            calls = grammar(form, (replace(tool, parameters=part),), ToolChoice("required"))
            check_compiles(Grammar("grammar", calls), source_of)

        left = loosen(tool.schema(), enforce)
        enforce(left.schema)
        assert left.schema["type"] == "object"
        assert left.schema.get("required") == tool.schema().get("required")
        kept = left.schema.get("properties", {})
        assert [*kept] == [*schema.get("properties", {})]
