"""Twenty tests of prompts; that of London is red on purpose."""

import pytest

FRANCE = "The capital of France is"
CAT = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "maximum": 30},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("prompt", "wanted"),
    [
        (FRANCE, "Paris"),
        ("The capital of Italy is", "Rome"),
        ("The capital of Japan is", "Tokyo"),
        ("The capital of Germany is", "Berlin"),
        ("One, two, three,", "four"),
        ("The capital of Spain is", "Madrid"),
        ("A, B, C,", "D, E"),
        ("The Earth goes around the", "Sun"),
    ],
)
def test_it_knows(ask, prompt, wanted):
    ask(prompt, max_tokens=12).contains(wanted)


def test_london_which_is_red_on_purpose(ask):
    ask(FRANCE, max_tokens=8).contains("London")


@pytest.mark.parametrize("city", [" London", " Rome", " Berlin"])
def test_other_cities_are_unlikely(ask, city):
    with pytest.raises(AssertionError, match="below"):
        ask(FRANCE, max_tokens=1).probable(city, at_least=0.2)


def test_paris_is_likely(ask):
    ask(FRANCE, max_tokens=1).probable(" Paris", at_least=0.5)


def test_paris_has_a_margin(ask):
    ask(FRANCE, max_tokens=1).margin(at_least=1.0)


def test_an_answer_is_certain_enough(ask):
    ask("One, two, three, four,", max_tokens=6).certain(at_most=1.5)


def test_a_cat_is_json(ask):
    ask("A cat, as JSON: ", json_schema=CAT, max_tokens=60).has_json(CAT)


def test_a_chat_does_not_apologise(ask):
    hello = [{"role": "user", "content": "Say hello."}]
    ask(messages=hello, max_tokens=16).lacks("sorry")


@pytest.mark.parametrize("seed", [1, 2])
def test_a_drawn_text_begins_with_a_space(ask, seed):
    ask(FRANCE, temperature=0.7, seed=seed, max_tokens=8).matches(r"^ \w")


def test_nothing_has_changed_since_it_was_reviewed(ask):
    ask(FRANCE, max_tokens=8).same_bits()
