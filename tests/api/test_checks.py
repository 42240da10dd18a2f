"""Checked schemas, arithmetic and healing on SmolLM2."""

import json

import pytest
from jsonschema.validators import validator_for

from cutaway import LLM

pytestmark = pytest.mark.model
_SHORT = {"type": "string", "maxLength": 10}
_ODD = {"type": "integer", "not": {"multipleOf": 2}}
SCHEMAS = {
    "not": {"type": "object", "properties": {"name": _SHORT, "n": _ODD}, "required": ["name", "n"]},
    "uniqueItems": {
        "type": "array", "minItems": 3, "uniqueItems": True,
        "items": {"enum": ["red", "green", "blue", "cyan", "pink", "grey", "gold"]},
    },
    "oneOf": {
        "type": "object", "properties": {"card": _SHORT, "iban": _SHORT},
        "oneOf": [{"required": ["card"], "minProperties": 1}, {"required": ["iban"]}],
    },
    "if": {
        "type": "object", "required": ["country", "zip"],
        "properties": {"country": {"enum": ["US", "NL"]}, "zip": _SHORT},
        "if": {"properties": {"country": {"const": "US"}}, "minProperties": 2},
        "then": {"properties": {"zip": {"pattern": "^[0-9]{5}$"}}},
        "else": {"properties": {"zip": {"pattern": "^[0-9]{4}[A-Z]{2}$"}}},
    },
    "contains": {
        "type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99},
        "contains": {"minimum": 50}, "maxItems": 100,  # too many places for a mask
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def llm(smollm2_path):
    with LLM(smollm2_path) as made:
        yield made


@pytest.mark.parametrize("keyword", SCHEMAS)
def test_what_is_written_is_valid_and_says_what_was_checked(llm, keyword):
    schema = {**SCHEMAS[keyword], "additionalProperties": False}
    for seed in range(3):
        done = llm.generate(
            "Here is some JSON:\n", json_schema=schema, json_compact=True, temperature=0.7,
            seed=seed, max_tokens=100,
        )  # fmt: skip
        if done.finish_reason != "max_tokens":
            validator_for(schema)(schema).validate(json.loads(done.text))
        assert any("checked token by token" in note and keyword in note for note in done.notes)


def test_the_calculator_is_right_where_the_model_is_not(llm):
    free = llm.generate("12*13=", temperature=0, max_tokens=4)
    held = llm.generate("12*13=", temperature=0, max_tokens=4, check="arithmetic")
    assert not free.text.startswith("156") and held.text.startswith("156")


def test_a_prompt_that_ends_within_a_word_is_healed(llm):
    prompt = "The website is http:"
    free = llm.generate(prompt, temperature=0, max_tokens=6)
    healed = llm.generate(prompt, temperature=0, max_tokens=6, heal=True)
    assert healed.text.startswith("//") and not free.text.startswith("//")
    assert healed.usage.prompt_tokens == free.usage.prompt_tokens - 1
