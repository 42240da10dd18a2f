"""JSON asked for in OpenAI's forms and in ours; what a schema throws is its own answer."""

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from pydantic import BaseModel

from cutaway.methods.importance import estimate, resample
from cutaway.requests.generation import Generation
from cutaway.text.grammar import Grammar
from cutaway.text.grammar.schema_checks import SchemaCheck
from support.responses_client import client_of

SAID = [{"role": "user", "content": "a"}]


class Pair(BaseModel):
    """No text of it is long."""

    first: bool
    second: bool | None


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int
    is_alive: bool


SCHEMA = {
    "type": "object", "properties": {"b": {"type": "boolean"}, "a": {"enum": [1, "x"]}},
    "required": ["b", "a"], "additionalProperties": False,
}  # fmt: skip
NAMED = {"name": "pair", "schema": SCHEMA, "strict": True}
CHAT = {"type": "json_schema", "json_schema": NAMED}
FLAT = {"type": "json_schema", **NAMED}


def chat(strict_client, **fields):
    fields = {"max_completion_tokens": 100, "seed": 3, "temperature": 1, **fields}
    return strict_client.chat.completions.create(model="tiny", messages=SAID, **fields)


# -- OpenAI's forms --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_a_chat_is_parsed_into_a_class(strict_client, seed):
    answer = strict_client.chat.completions.parse(
        model="tiny", messages=SAID, response_format=Pair, seed=seed, temperature=1
    ).choices[0]
    assert isinstance(answer.message.parsed, Pair)
    assert answer.finish_reason == "stop"
    assert answer.cutaway["finish_reason"] == "constraint"


def test_a_streamed_chat_is_parsed_into_the_same(strict_client):
    asked = {"model": "tiny", "messages": SAID, "response_format": Pair, "seed": 1}
    with strict_client.chat.completions.stream(**asked, temperature=1) as stream:
        streamed = stream.get_final_completion().choices[0].message
    whole = strict_client.chat.completions.parse(**asked, temperature=1).choices[0].message
    assert streamed.parsed == whole.parsed
    assert streamed.content == whole.content


@pytest.mark.parametrize("seed", range(5))
def test_a_response_is_parsed_into_a_class(strict_client, seed):
    asked = {"model": "tiny", "input": "a", "text_format": Pair, "temperature": 1}
    response = strict_client.responses.parse(**asked, extra_body={"seed": seed})
    assert isinstance(response.output_parsed, Pair)
    assert response.status == "completed"
    assert response.text.format.schema_["required"] == ["first", "second"]


def test_smollm2_fills_a_class(smollm2):
    with client_of(smollm2) as client:
        answer = client.chat.completions.parse(
            model="smollm2", response_format=Person, seed=1, temperature=0,
            messages=[{"role": "user", "content": "Who was Ada Lovelace? Answer as JSON."}],
        )  # fmt: skip
        person = answer.choices[0].message.parsed
        assert isinstance(person, Person) and person.name


def test_a_json_object_is_any_object(strict_client):
    for seed in range(8):
        choice = chat(strict_client, response_format={"type": "json_object"}, seed=seed).choices[0]
        assert choice.message.content[0] == "{"
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)
    text = strict_client.responses.create(
        model="tiny", input="a", max_output_tokens=9, text={"format": {"type": "json_object"}}
    )
    assert text.output_text[0] == "{" and text.text.format.type == "json_object"


def test_the_first_message_has_the_schema_unless_it_is_not_wanted(strict_client):
    ids = {"return_token_ids": True}
    said = "a\n\nAnswer in JSON of this schema:\n" + json.dumps(SCHEMA, separators=(",", ":"))
    shown = chat(strict_client, response_format=CHAT, extra_body=ids)
    hidden = chat(
        strict_client, response_format=CHAT, extra_body={**ids, "schema_in_prompt": False}
    )
    by_hand = strict_client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": said}], max_tokens=1, extra_body=ids
    )
    plain = chat(strict_client, max_completion_tokens=1, extra_body=ids)
    assert shown.cutaway["schema_in_prompt"] and not hidden.cutaway["schema_in_prompt"]
    assert shown.choices[0].prompt_token_ids == by_hand.choices[0].prompt_token_ids
    assert hidden.choices[0].prompt_token_ids == plain.choices[0].prompt_token_ids
    response = strict_client.responses.create(model="tiny", input="a", text={"format": FLAT},
                                       extra_body=ids)  # fmt: skip
    assert response.cutaway["schema_in_prompt"]
    assert response.prompt_token_ids == shown.choices[0].prompt_token_ids


HIDDEN = {"schema_in_prompt": False}


def test_every_way_to_ask_for_a_schema_writes_the_same(strict_client):
    texts = {
        chat(strict_client, response_format=CHAT, extra_body=HIDDEN).choices[0].message.content,
        chat(strict_client, extra_body={"json_schema": SCHEMA}).choices[0].message.content,
        strict_client.responses.create(
            model="tiny",
            input="a",
            text={"format": FLAT},
            temperature=1,
            extra_body={"seed": 3, **HIDDEN},
        ).output_text,
    }
    [text] = texts
    assert [*json.loads(text)] == ["b", "a"]


def test_text_is_what_it_is_without_a_format(strict_client):
    plain = chat(strict_client).choices[0].message.content
    assert chat(strict_client, response_format={"type": "text"}).choices[0].message.content == plain


# -- ours ------------------------------------------------------------------------------------------

OURS = [
    ({"regex": "[0-9]{3}-[ab]+c"}, "[0-9]{3}-[ab]+c"),
    ({"choice": ["north", "south"]}, "north|south"),
    ({"grammar": 'start: "a" | "b" start'}, "b*a"),
    ({"grammar": 'root ::= "a" | "b" root'}, "b*a"),
    ({"json_schema": SCHEMA, "json_compact": True}, r'\{"b":(true|false),"a":(1|"x")\}'),
]


@pytest.mark.parametrize(("fields", "expression"), OURS, ids=str)
def test_our_fields_hold_both_kinds_of_completion(strict_client, fields, expression):
    said = chat(strict_client, extra_body=fields).choices[0]
    plain = strict_client.completions.create(
        model="tiny", prompt="a", max_tokens=100, seed=3, temperature=1, extra_body=fields
    ).choices[0]
    for choice, text in (said, said.message.content), (plain, plain.text):
        if choice.finish_reason == "stop":
            assert re.fullmatch(expression, text)
        assert choice.cutaway["finish_reason"] in ("constraint", "end_token", "max_tokens")
    assert "stop" in (said.finish_reason, plain.finish_reason)


def test_the_settings_in_force_can_be_sent_again(strict_client):
    answer = chat(strict_client, response_format=CHAT, extra_body=HIDDEN)
    again = {"json_schema": answer.cutaway["params"]["json_schema"]}
    assert again["json_schema"] == SCHEMA
    assert chat(strict_client, extra_body=again).choices[0].message == answer.choices[0].message


def test_the_document_has_the_forms(client):
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    assert {"name", "schema", "strict"} <= schemas["NamedSchema"]["properties"].keys()
    for kind in ("ChatRequest", "CompletionRequest"):
        fields = schemas[kind]["properties"].keys()
        assert {"json_schema", "json_compact", "regex", "grammar", "choice"} <= fields


# -- refusals --------------------------------------------------------------------------------------

BAD = {"type": "object", "unevaluatedItems": False}


def of(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


REFUSED = [
    ("response_format", {"response_format": of(BAD)}, "unevaluatedItems"),
    ("response_format", {"response_format": of({"type": "odd"})}, "odd"),
    ("response_format", {"response_format": CHAT, "regex": "a"}, "regex exclude"),
    ("response_format", {"response_format": CHAT, "json_schema": SCHEMA}, "json_schema exclude"),
    ("response_format.type", {"response_format": {"type": "xml"}}, "json_schema"),
    ("response_format.type", {"response_format": {}}, "missing"),
    ("response_format.json_schema", {"response_format": {"type": "json_schema"}}, "missing"),
    ("response_format.json_schema.name", {"response_format": {"type": "json_schema", "json_schema":
        {"schema": {}}}}, "missing"),
    ("response_format.json_schema.name", {"response_format": {"type": "json_schema", "json_schema":
        {"name": "a b", "schema": {}}}}, "pattern"),
    ("response_format.json_schema.schema", {"response_format": {"type": "json_schema",
        "json_schema": {"name": "x"}}}, "missing"),
    ("json_schema", {"json_schema": BAD}, "unevaluatedItems"),
    ("json_schema", {"json_schema": SCHEMA, "regex": "a"}, "exclude"),
    ("json_schema", {"json_schema": False}, "allows no text"),
    ("regex", {"regex": "[a"}, "unclosed"),
    ("grammar", {"grammar": "start: other"}, "other"),
    ("grammar", {"grammar": "root ::= other"}, "other"),
    ("choice", {"choice": [""]}, "empty"),
    ("json_compact", {"json_compact": True}, "json_schema"),
]  # fmt: skip


@pytest.mark.parametrize(("param", "fields", "said"), REFUSED)
def test_a_chat_refuses_in_one_sentence(strict_client, tiny, param, fields, said):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(strict_client, extra_body=fields)
    error = caught.value
    assert error.param == param and said in error.body["message"]
    assert error.body["message"].startswith(param) and "\n" not in error.body["message"]
    assert tiny.free()


@pytest.mark.parametrize(
    ("param", "text", "said"),
    [
        (
            "text",
            {"format": {"type": "json_schema", "name": "x", "schema": BAD}},
            "unevaluatedItems",
        ),
        ("text.format.type", {"format": {"type": "xml"}}, "json_schema"),
        ("text.format.schema", {"format": {"type": "json_schema", "name": "x"}}, "missing"),
        ("text.verbosity", {"verbosity": "low"}, "leave it out"),
    ],
)
def test_a_response_refuses_in_one_sentence(strict_client, param, text, said):
    with pytest.raises(openai.BadRequestError) as caught:
        strict_client.responses.create(model="tiny", input="a", text=text)
    error = caught.value
    assert error.param == param and said in error.body["message"]
    assert "\n" not in error.body["message"]


# -- what the grammar did --------------------------------------------------------------------------

CHOICE = {"choice": ["ab", "b", "aba"]}


def test_an_answer_says_what_its_grammar_was_and_what_became_of_it(strict_client):
    whole = chat(strict_client, extra_body={"regex": "abab[ab]"})
    [ours] = [choice.cutaway["grammar"] for choice in whole.choices]
    grammar = Grammar("regex", "abab[ab]")
    assert (ours["kind"], ours["sha256"]) == (grammar.kind, grammar.sha256)
    assert ours["complete"] is True and ours["neg_log_z"] is None
    assert 0 < ours["forced"] < 5
    cut = chat(strict_client, extra_body={"regex": "[ab]{90}"}, max_completion_tokens=3)
    assert cut.choices[0].cutaway["grammar"]["complete"] is False
    text = strict_client.responses.create(model="tiny", input="a", text={"format": FLAT})
    assert text.cutaway["grammar"]["kind"] == "json_schema"
    assert "grammar" not in chat(strict_client, max_completion_tokens=2).choices[0].cutaway


def test_samples_say_what_the_model_would_do_by_itself(strict_client):
    several = chat(strict_client, n=4, top_p=1, extra_body=CHOICE)
    [said] = several.cutaway["constraint_estimates"]
    logs = [choice.cutaway["grammar"]["neg_log_z"] for choice in several.choices]
    assert said == estimate(logs).to_dict()
    one = chat(strict_client, top_p=1, extra_body=CHOICE)
    assert "constraint_estimates" not in one.cutaway


def test_samples_are_no_completions_for_their_weights(strict_client, monkeypatch):
    """Each would have all log-probabilities once more."""
    monkeypatch.delattr(Generation, "completion")
    answer = chat(strict_client, n=4, top_p=1, logprobs=True, top_logprobs=3, extra_body=CHOICE)
    assert answer.cutaway["constraint_estimates"]


@pytest.mark.parametrize("prompts", ["a", ["a", "bb"]])
def test_one_of_n_texts_is_answered_by_its_weight(strict_client, prompts):
    asked = {"model": "tiny", "prompt": prompts, "n": 5, "seed": 3, "temperature": 1, "top_p": 1}
    every = strict_client.completions.create(**asked, extra_body=CHOICE)
    taken = strict_client.completions.create(**asked, extra_body={**CHOICE, "align": True})
    assert [choice.index for choice in taken.choices] == [*range(len(every.choices) // 5)]
    for choice in taken.choices:
        own = every.choices[5 * choice.index : 5 * choice.index + 5]
        logs = [one.cutaway["grammar"]["neg_log_z"] for one in own]
        aligned = choice.cutaway["aligned"]
        assert aligned["chosen"] == resample(logs, 3) and aligned["neg_log_z"] == logs
        assert choice.text == own[aligned["chosen"]].text
    assert taken.usage.completion_tokens == every.usage.completion_tokens


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"n": 2, "stream": True}, "align: the text is chosen when all are written"),
        ({"n": 1}, "align chooses one of n texts"),
        ({"n": 2, "temperature": 0}, "align: at temperature 0"),
    ],
)
def test_what_cannot_be_aligned_is_refused(strict_client, fields, sentence):
    with pytest.raises(openai.BadRequestError, match=sentence):
        chat(strict_client, extra_body={**CHOICE, "align": True}, **fields)


# -- what one request's schema throws in a step is no other client's answer --------------------


TEXT = "/v1/completions"
UNIQUE = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
THROWS = {"prompt": "[1, 2,", "json_schema": UNIQUE, "seed": 3, "max_tokens": 12}
NUMBERS = range(10)
"""Of the texts beside it, of which each is written whole and streamed."""


class Panic(BaseException):
    """As a native library has it."""


THROWN = [
    ValueError("guest"), asyncio.CancelledError("guest"), Panic("guest"),
    # Slow, as engine/test_guest_code.py throws most of them in every run.
    *(pytest.param(error, marks=pytest.mark.slow) for error in (
        KeyError("guest"), MemoryError("guest"), RecursionError("guest"),
        OSError(24, "Too many open files"), StopIteration("guest"), SystemExit(1),
        KeyboardInterrupt("guest"),
    )),
]  # fmt: skip


def request(number):
    return {
        "prompt": f"neighbour {number}", "seed": number, "max_tokens": 30, "ignore_eos": True,
        "temperature": 1.0,
    }  # fmt: skip


def whole(client, number):
    answer = client.post(TEXT, json=request(number))
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["cutaway"]["fingerprint"]


def streamed(client, number):
    with client.stream("POST", TEXT, json=request(number) | {"stream": True}) as answer:
        assert answer.status_code == 200
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return json.loads(lines[-2].removeprefix("data: "))["choices"][0]["cutaway"]["fingerprint"]


@pytest.mark.elsewhere
@pytest.mark.parametrize("error", THROWN, ids=lambda error: type(error).__name__)
def test_a_check_that_throws_in_a_step(client, monkeypatch, error):
    assert client.post(TEXT, json=THROWS).status_code == 200  # nothing is wrong with it
    expected = [whole(client, number) for number in NUMBERS]

    def allows(self, text, token):
        if len(text) > 2:
            raise error
        return True

    monkeypatch.setattr(SchemaCheck, "allows", allows)
    with ThreadPoolExecutor(25) as pool:
        beside = [pool.submit(ask, client, i) for i in NUMBERS for ask in (whole, streamed)]
        bad = [pool.submit(client.post, TEXT, json=THROWS) for _ in range(3)]
        assert [answer.result().status_code for answer in bad] == [500] * 3
        fingerprints = [answer.result() for answer in beside]
    assert fingerprints[::2] == fingerprints[1::2] == expected
    message = bad[0].result().json()["error"]["message"]
    assert message == f"{type(error).__name__}: {error}"
    assert client.get("/health").status_code == 200
