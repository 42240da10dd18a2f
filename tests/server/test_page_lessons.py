"""/page/practice on the inside of a step: what cutaway practice asks, beside those who write."""

import httpx
import pytest

from cutaway import LLM
from cutaway.features.practice.lessons import possible, scene
from support.inside_asked import asked_about
from support.served import serve

STEP = 6


@pytest.fixture(scope="module")
def here(tiny_path, trace):
    return scene(LLM(tiny_path, threads=1), trace, STEP)


@pytest.fixture(scope="module")
def inside(trace):
    return asked_about(trace, STEP)


@pytest.fixture(scope="module")
def told(tiny_path):
    with serve(LLM(tiny_path, threads=1)) as served, httpx.Client(base_url=served.url) as client:
        yield lambda path, **body: client.post(f"/page/practice{path}", json=body, timeout=60)
        assert served.free()


def test_all_that_there_is_to_ask(told, here, inside):
    asked, expected = told("", inside=inside).json(), possible(here)
    assert asked["introduction"] == here.introduction
    assert asked["text"] == here.text
    assert [each["question"] for each in asked["exercises"]] == [e.question for e in expected]
    topics = [each["topic"] for each in asked["exercises"]]
    assert {"mask", "attention", "lens", "induction"} <= {*topics}
    assert "experts" not in topics
    assert "solution" not in str(asked)


def test_answers_are_judged(told, here, inside):
    for index, exercise in enumerate(possible(here)):
        solution = exercise.answer.solution
        right = told("/answer", inside=inside, index=index, answer=solution).json()
        assert (right["right"], right["solution"]) == (True, solution)
        assert len(right["arithmetic"]) == len(exercise.arithmetic)
        wrong = told("/answer", inside=inside, index=index, answer="?").json()
        assert (wrong["right"], wrong["solution"]) == (None, None)
        shown = told("/answer", inside=inside, index=index, reveal=True).json()
        assert shown["solution"] == solution


def test_a_step_of_another_model(told, inside):
    answer = told("", inside=inside | {"row": "0" * 16})
    assert answer.status_code == 409
    assert "other logits" in answer.json()["error"]["message"]
    answer = told("", inside=inside | {"step": 9})
    assert answer.status_code == 400
