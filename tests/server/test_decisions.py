"""POST /v1/decisions: probabilities of whole answers, each by the logits; OpenAI's own client."""

from collections import Counter
from math import exp, log
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import BadRequestError

from cutaway.methods.decision import lead_of
from cutaway.text import ChatTemplate
from support.served import TEMPLATE

PREDICATE = {"type": "predicate", "name": "p", "instructions": "b?"}
CHOICE = {
    "type": "choice",
    "instructions": "which",
    "choices": [{"value": "a"}, {"value": "ab", "description": "both"}, {"value": True}],
}
SCORE = {
    "type": "score",
    "name": "s",
    "instructions": "how",
    "levels": [{"label": "low"}, {"label": "mid"}, {"label": "high"}],
}
SAID = {
    "predicate": "b?\nAnswer Yes or No.",
    "choice": "which\n- a\n- ab: both\n- true\nAnswer with one of these.",
    "score": "how\n- low\n- mid\n- high\nAnswer with one of these.",
}
ANSWERS = {
    "predicate": ["Yes", "No"],
    "choice": ["a", "ab", "true"],
    "score": ["low", "mid", "high"],
}


@pytest.fixture
def post(client):
    return lambda **body: client.post("/v1/decisions", json=body)


def by_definition(llm, messages, answers):
    """Of each answer and the end of the turn, in float64, by all logits."""
    prompt = llm.chat_ids(messages)
    found = []
    for answer in answers:
        ids = llm.tokenizer.encode(answer, goes_on=True)
        rows = llm.logits([*prompt, *ids])[len(prompt) - 1 :].astype(np.float64)
        rows -= rows.max(axis=1, keepdims=True)
        logprobs = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
        total = logprobs[range(len(ids)), ids].sum()
        found.append(total + log(sum(exp(logprobs[-1][end]) for end in llm.tokenizer.end_ids)))
    weights = np.exp(np.array(found))
    return weights / weights.sum(), weights.sum()


def test_openai_s_client_has_the_probabilities_of_whole_answers(openai_client, tiny_alone):
    answer = openai_client.decisions.create(
        model=tiny_alone.name, input="ab", questions=[PREDICATE, CHOICE, SCORE]
    )
    expected = {
        kind: by_definition(
            tiny_alone, [{"role": "user", "content": f"ab\n\n{SAID[kind]}"}], ANSWERS[kind]
        )
        for kind in SAID
    }
    predicate, choice, score = answer.answers
    assert (predicate.type, predicate.name) == ("predicate", "p")
    assert predicate.probability == pytest.approx(expected["predicate"][0][0], rel=1e-9)
    assert (choice.type, choice.name) == ("choice", None)
    assert [one.value for one in choice.probabilities] == ["a", "ab", True]
    found = [one.probability for one in choice.probabilities]
    np.testing.assert_allclose(found, expected["choice"][0], rtol=1e-9)
    best = max(choice.probabilities, key=lambda one: one.probability)
    assert (choice.choice, choice.confidence) == (best.value, best.probability)
    found = [one.probability for one in score.probabilities]
    np.testing.assert_allclose(found, expected["score"][0], rtol=1e-9)
    assert [(one.value, one.label) for one in score.probabilities] == [
        (0, "low"), (1, "mid"), (2, "high"),
    ]  # fmt: skip
    assert score.score == pytest.approx(expected["score"][0] @ [0, 1, 2], rel=1e-9)
    assert score.confidence == max(found)
    for one in answer.answers:
        covered = one.model_extra["cutaway"]["covered"]
        assert covered == pytest.approx(expected[one.type][1], rel=1e-9)
    assert answer.usage.output_tokens == 0
    assert answer.usage.input_tokens > 0


def test_each_question_is_asked_for_itself(post):
    alone = [post(input="ab", questions=[one]).json()["answers"][0] for one in (CHOICE, SCORE)]
    together = post(input="ab", questions=[PREDICATE, SCORE, CHOICE]).json()["answers"]
    assert together[1:] == alone[::-1]


def test_a_conversation_is_the_input_and_its_data_is_text(post, tiny_alone):
    said = [
        {"role": "developer", "content": "s"},
        {"role": "user", "content": [{"type": "input_json", "data": {"a": [1]}}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "o"},
        {"role": "assistant", "content": "b"},
    ]
    plain = said[:2] + said[4:]
    for items in (plain, plain[:2]):
        answer = post(input=items, questions=[PREDICATE])
        messages = [
            {"role": "system", "content": "s"},
            {"role": "user", "content": '{"a": [1]}'},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": SAID["predicate"]},
        ]
        if len(items) == 2:
            messages[1:] = [{"role": "user", "content": f'{{"a": [1]}}\n\n{SAID["predicate"]}'}]
        chances, _ = by_definition(tiny_alone, messages, ANSWERS["predicate"])
        found = answer.json()["answers"][0]["probability"]
        assert found == pytest.approx(chances[0], rel=1e-9)


def test_an_answer_of_responses_is_an_input_as_it_is(client, post):
    ask = {"input": "a", "max_output_tokens": 3, "seed": 1}
    answered = client.post("/v1/responses", json=ask).json()["output"]
    text = answered[0]["content"][0]["text"]
    plain = [{"role": "user", "content": "a"}, {"role": "assistant", "content": text}]
    whole = post(input=[plain[0], *answered], questions=[PREDICATE])
    assert whole.status_code == 200, whole.text
    expected = post(input=plain, questions=[PREDICATE]).json()["answers"]
    assert whole.json()["answers"] == expected


def test_instructions_may_be_parts(post):
    parts = [{"type": "input_text", "text": "b"}, {"type": "input_json", "data": {"c": 1}}]
    question = {"type": "predicate", "instructions": parts}
    answer = post(input="a", questions=[question], trace=True).json()["answers"][0]
    assert 'a\n\nb\n{"c": 1}\nAnswer Yes or No.' in answer["cutaway"]["prompt"]


@given(st.lists(st.text("ab ,", min_size=1, max_size=5), min_size=2, max_size=6, unique=True))
@settings(deadline=None, max_examples=20)
def test_a_trace_has_all_that_the_probabilities_follow_from(tiny, values):
    question = {**CHOICE, "choices": [{"value": value} for value in values]}
    body = {"input": "a", "questions": [question], "trace": True}
    answer = httpx.post(f"{tiny.url}/v1/decisions", json=body, timeout=60)
    [told] = answer.json()["answers"]
    each = told["cutaway"]["answers"]
    assert [one["answer"] for one in each] == values
    totals = [
        sum(token["logprob"] for token in one["tokens"])
        + log(sum(exp(token["logprob"]) for token in one["ends"]))
        for one in each
    ]
    np.testing.assert_allclose([one["logprob"] for one in each], totals, rtol=0, atol=1e-9)
    weights = np.exp(totals)
    found = [one["probability"] for one in told["probabilities"]]
    np.testing.assert_allclose(found, weights / weights.sum(), rtol=1e-9)
    assert sum(found) == pytest.approx(1)
    assert told["cutaway"]["covered"] == pytest.approx(weights.sum())


@pytest.mark.parametrize(
    ("body", "sentence", "param"),
    [
        ({"input": "a"}, "questions", "questions"),
        ({"questions": [PREDICATE]}, "input", "input"),
        ({"input": [], "questions": [PREDICATE]}, "input", "input"),
        ({"input": "a", "questions": []}, "questions", "questions"),
        ({"input": "a", "questions": [PREDICATE] * 401}, "questions", "questions"),
        ({"input": "a", "questions": [{"type": "box", "instructions": "b"}]}, "box", "questions"),
        ({"input": "a", "questions": [{**CHOICE, "choices": [{"value": "a"}]}]}, "2", "questions"),
        ({"input": "a", "questions": [{**CHOICE, "choices": [{"value": "a"}] * 2}]},
         "choices[0] and choices[1] are both answered 'a'", "questions"),
        ({"input": "a", "questions": [{**CHOICE, "choices": [{"value": True}, {"value": "true"}]}]},
         "both answered 'true'", "questions"),
        ({"input": "a", "questions": [{**CHOICE, "choices": [{"value": "a"}, {"value": ""}]}]},
         "questions[0]: choices[1] has no tokens", "questions"),
        ({"input": "a", "questions": [{**CHOICE, "choices": [{"value": 1}, {"value": 2}]}]},
         "value", "questions"),
        ({"input": "a", "questions": [{**PREDICATE, "name": 3}]}, "name", "questions"),
        ({"input": "a", "questions": [{"type": "predicate", "instructions": [
            {"type": "input_image", "image_url": "x"}]}]}, "input_image", "questions"),
        ({"input": [{"role": "user", "content": [{"type": "input_json", "data": 3}]}],
          "questions": [PREDICATE]}, "data", "input"),
        ({"input": "a" * 600, "questions": [PREDICATE]}, "maximum context length is 512", None),
        ({"input": "a" * 440, "questions": [{**CHOICE, "choices": [
            {"value": "a"}, {"value": "b" * 120}]}]}, "maximum context length", None),
        ({"input": "a" * 2**15, "questions": [PREDICATE] * 200}, "characters", "questions"),
        ({"input": "a", "questions": [
            {**CHOICE, "choices": [{"value": str(i)} for i in range(250)]}] * 9},
         "at most 2048", "questions"),
        ({"input": "a", "questions": [PREDICATE], "stream": True}, "stream", "stream"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_a_sentence(post, body, sentence, param):
    answer = post(**body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert sentence in error["message"]
    if param:
        assert error["param"].partition("[")[0] == param


def test_openai_s_client_raises_what_is_refused(openai_client):
    with pytest.raises(BadRequestError, match="questions"):
        openai_client.decisions.create(model="tiny", input="a", questions=[])


@pytest.mark.model
def test_texts_that_are_drawn_come_as_often_as_their_answers_are_probable(smollm2):
    """Of 100 free answers to a question, those that are Yes and No."""
    question = {"type": "predicate", "instructions": "Does the customer want money back?"}
    text = "I was charged twice this month, please refund me."
    body = {"input": text, "questions": [question]}
    answer = httpx.post(f"{smollm2.url}/v1/decisions", json=body, timeout=60)
    [told] = answer.json()["answers"]
    content = f"{text}\n\n{question['instructions']}\nAnswer Yes or No."
    drawn = {
        "messages": [{"role": "user", "content": content}],
        "n": 100, "temperature": 1, "top_p": 1, "max_tokens": 3, "seed": 1,
    }  # fmt: skip
    chat = httpx.post(f"{smollm2.url}/v1/chat/completions", json=drawn, timeout=120).json()
    counted = Counter(
        one["message"]["content"] for one in chat["choices"] if one["finish_reason"] == "stop"
    )
    covered = told["cutaway"]["covered"]
    yes = told["probability"] * covered
    for name, chance in (("Yes", yes), ("No", covered - yes)):
        margin = 3 * (chance * (1 - chance) / 100) ** 0.5
        assert abs(counted[name] / 100 - chance) < margin, (name, chance, counted)


@pytest.mark.parametrize(
    ("template", "lead"),
    [
        ("{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}", ""),
        (TEMPLATE, ""),
        ("{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
         "{% else %} {{ m.content }}{% endif %}{% endfor %}", " "),
        ("{{ raise_exception('no') }}", ""),
    ],
)  # fmt: skip
def test_a_space_before_an_answer_is_the_template_s_own(template, lead):
    model = SimpleNamespace(template=ChatTemplate(template, "", ""))
    assert lead_of(model) == lead
