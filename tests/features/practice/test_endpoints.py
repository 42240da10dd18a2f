"""/page/practice: what a practice asks and judges, no solution before its time; and lessons."""

import json
from dataclasses import asdict

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway import LLM
from cutaway.features.practice.cells import SAMPLE_CELLS, cell_exercises
from cutaway.features.practice.endpoints import router
from cutaway.features.practice.exercises import comparison, exercises
from cutaway.features.practice.lessons import possible, scene
from cutaway.features.practice.start import SAMPLE, from_trace
from cutaway.server.http.refusals import install
from cutaway.text.characters import printable
from cutaway.trace import Trace
from support.asgi_client import post
from support.inside_asked import asked_about
from support.random_llama import write_tiny_llama
from support.served import serve

BIG = 2**64 - 1


@pytest.fixture(scope="module")
def app():
    made = FastAPI()
    made.include_router(router)
    install(made, retry_after=lambda: 1)
    return made


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("practised")
    llm = LLM(str(write_tiny_llama(folder / "tiny.gguf")), threads=1)
    ways = [{"temperature": 1.5, "seed": 3}, {"temperature": 0}, {"seed": BIG, "forced": (5, 5)}]
    for n, way in enumerate(ways):
        llm.generate("ab", max_tokens=8, trace=folder / f"{n}.trace", **way)
    return [Trace.read(folder / f"{n}.trace") for n in range(len(ways))]


def sent(trace, index):
    """A step's start as the page sends it."""
    step, run = trace.steps[index], from_trace(trace, index).run
    return {
        "text": trace.head.prompt + "".join(s.text for s in trace.steps[:index]),
        "token_ids": [c.id for c in step.observed.candidates],
        "names": [trace.name_of(c.id) for c in step.observed.candidates],
        "logits": [c.logit for c in step.observed.candidates],
        "seed": trace.head.seed,
        "position": step.position,
        "run": {"step": index, "log_sum_exp": step.observed.log_sum_exp,
                "chain": run.chain, "own": step.sampled_id,
                "drawn": trace.name_of(step.sampled_id)},
    }  # fmt: skip


def told(app, path, body):
    answer = post(app, body, path=f"/page/practice{path}")
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


def plain(block):
    """As JSON has it."""
    return block if isinstance(block, str) else json.loads(json.dumps(asdict(block)))


def check(app, start, body):
    """All that the endpoints tell of a start is what cutaway.features.practice tells."""
    every, page = exercises(start), told(app, "", body)
    assert (page["text"], page["names"]) == (start.text, list(start.names))
    assert (page["seed"], page["position"]) == (str(start.seed), start.position)
    assert page["run"] == (start.run and {
        "step": start.run.step, "left_out": start.left_out, "chain": start.run.chain,
        "drawn": start.run.drawn,
    })  # fmt: skip
    assert len(page["exercises"]) == len(every) == 12
    for index, (asked, exercise) in enumerate(zip(page["exercises"], every, strict=True)):
        assert asked["given"] == plain(exercise.given_table)
        for name in ("topic", "question", "hint"):
            assert asked[name] == getattr(exercise, name)
        check_judgement(app, body, index, exercise, asked)
    assert told(app, "/comparison", body) == plain(comparison(start))


def check_judgement(app, body, index, exercise, asked):
    open_ = {"solution": exercise.answer.solution, "arithmetic": [*map(plain, exercise.arithmetic)]}
    shut = {"solution": None, "arithmetic": []}

    def judged(**said):
        return told(app, "/answer", {**body, "index": index, **said})

    assert judged(answer=exercise.answer.solution) == {"right": True, "remark": "Right.", **open_}
    wrong = wrong_answer(exercise, asked)
    verdict = exercise.answer.judge(wrong)
    remark = {"right": False, "remark": verdict.remark}
    assert judged(answer=wrong) == {**remark, **shut}
    assert judged(answer=wrong, reveal=True) == {**remark, **open_}
    assert judged(reveal=True) == {"right": None, "remark": "", **open_}
    unread = judged(answer="what?")
    assert unread["right"] is None and unread["remark"].startswith("That cannot be read: write ")
    assert unread == {**unread, **shut}


def wrong_answer(exercise, asked):
    if asked["kind"] == "token":
        return str(2 if exercise.answer.row == 0 else 1)
    assert len(asked["labels"]) == len(exercise.answer.values)
    return " ".join(["-7"] * len(asked["labels"]))


def test_the_sample(app):
    check(app, SAMPLE, {})
    assert told(app, "", {"start": None}) == told(app, "", {})


def test_no_question_tells_its_solution(app):
    for asked, exercise in zip(told(app, "", {})["exercises"], exercises(SAMPLE), strict=True):
        assert asked.keys() - {"labels", "example", "names"} == {
            "topic", "question", "given", "hint", "kind",
        }  # fmt: skip
        if asked["kind"] == "numbers" and exercise.topic != "thousand":
            assert exercise.answer.solution not in json.dumps(asked, ensure_ascii=False)


@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_a_step_of_a_run(app, traces, data):
    trace = data.draw(st.sampled_from(traces))
    index = data.draw(st.integers(0, len(trace.steps) - 1))
    start = from_trace(trace, index)
    body = {"start": sent(trace, index)}
    assert told(app, "", body)["run"]["left_out"] == start.left_out
    check(app, start, body)


def test_seeds_keep_all_their_bits(app, traces):
    assert told(app, "", {"start": sent(traces[2], 0)})["seed"] == str(BIG)


def test_values_without_a_run(app, traces):
    start = sent(traces[0], 2)
    del start["run"]
    page = told(app, "", {"start": start})
    assert page["run"] is None
    best = sorted(zip(start["logits"], start["names"], strict=True), reverse=True)[:6]
    assert [printable(name) for _, name in best] == page["names"]


WRONG = [
    ({"token_ids": [1]}, "token_ids must have two tokens or more, not 1"),
    ({"token_ids": [1, 1]}, "token_ids names a token twice; name each once"),
    ({"token_ids": [1, -2]}, "token_ids must be between 0 and 524287, not -2"),
    ({"token_ids": [1, 2**40]}, f"token_ids must be between 0 and 524287, not {2**40}"),
    ({"token_ids": [1, 2, 3]}, "names must have one for each of the 3 token_ids"),
    ({"names": ["a"]}, "names must have one for each of the 2 token_ids"),
    ({"logits": [1.0]}, "logits must have one for each of the 2 token_ids"),
    ({"logits": [1.0, 1e5]}, "logits must lie between -10000 and 10000"),
    ({"logits": [1.0, "2"]}, "start.logits[1] must be a number, not a string"),
    ({"seed": -1}, f"seed must be between 0 and {BIG}, not -1"),
    ({"seed": BIG + 1}, f"seed must be between 0 and {BIG}, not {BIG + 1}"),
    ({"position": 2**32}, f"position must be between 0 and {2**32 - 1}, not {2**32}"),
    ({"position": 1.5}, "start.position must be a whole number, not 1.5"),
    ({"texts": "a"}, "unknown field 'start.texts'; did you mean 'text'?"),
    ({"run": {"step": 0}}, "start.run.log_sum_exp is missing; add it"),
    ({"run": {"step": -1, "log_sum_exp": 1, "chain": "", "own": 1, "drawn": "a"}},
     "step must be 0 or more, not -1"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "sentence"), WRONG)
@pytest.mark.parametrize("path", ["", "/answer", "/comparison"])
def test_wrong_starts(app, path, change, sentence):
    good = {"text": "x", "token_ids": [1, 2], "names": ["a", "b"], "logits": [1.0, 2],
            "seed": 3, "position": 4}  # fmt: skip
    index = {"index": 0, "reveal": True} if path == "/answer" else {}
    assert told(app, path, {"start": good, **index})
    answer = post(app, {"start": {**good, **change}, **index}, path=f"/page/practice{path}")
    assert (answer.status, answer.error()["message"]) == (400, sentence)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [({}, "index is missing; add it"),
     ({"index": 12}, "index must be between 0 and 11, not 12"),
     ({"index": -1}, "index must be between 0 and 11, not -1"),
     ({"index": 0, "answer": 3}, "answer must be a string, not 3"),
     ({"index": 0, "answer": "9" * 1001}, "answer must have at most 1000 characters")],
)  # fmt: skip
def test_wrong_answers(app, said, sentence):
    answer = post(app, said, path="/page/practice/answer")
    assert answer.status == 400
    assert answer.error()["message"].startswith(sentence)


def test_the_cells_of_a_canvas_are_practised(app):
    page = told(app, "", {"cells": True})
    every = cell_exercises(SAMPLE_CELLS)
    assert [one["question"] for one in page["exercises"]] == [one.question for one in every]
    for index, exercise in enumerate(every):
        reply = told(
            app, "/answer", {"cells": True, "index": index, "answer": exercise.answer.solution}
        )
        assert reply["right"]
    own = {
        "text": "x", "best": ["a", "b"], "drawn": ["b", "b"], "p": [0.4, 0.6], "second": [0.2, 0.1],
        "p_drawn": [0.2, 0.6], "entropy": [1.0, 0.5], "made": 3,
    }  # fmt: skip
    assert "pass 4 of your run" in told(app, "", {"cells": own})["introduction"]
    assert told(app, "/answer", {"cells": own, "index": 0, "answer": "b"})["right"]
    refused = post(app, {"cells": own | {"p": [0.4]}}, path="/page/practice")
    assert refused.status == 400
    assert b"p must have one for each" in refused.body


# -- lessons on the inside of a step -----------------------------------------------------------


STEP = 6


@pytest.fixture(scope="module")
def here(tiny_path, trace):
    return scene(LLM(tiny_path, threads=1), trace, STEP)


@pytest.fixture(scope="module")
def inside(trace):
    return asked_about(trace, STEP)


@pytest.fixture(scope="module")
def told_lessons(tiny_path):
    with serve(LLM(tiny_path, threads=1)) as served, httpx.Client(base_url=served.url) as client:
        yield lambda path, **body: client.post(f"/page/practice{path}", json=body, timeout=60)
        assert served.free()


def test_all_that_there_is_to_ask(told_lessons, here, inside):
    asked, expected = told_lessons("", inside=inside).json(), possible(here)
    assert asked["introduction"] == here.introduction
    assert asked["text"] == here.text
    assert [each["question"] for each in asked["exercises"]] == [e.question for e in expected]
    topics = [each["topic"] for each in asked["exercises"]]
    assert {"mask", "attention", "lens", "induction"} <= {*topics}
    assert "experts" not in topics
    assert "solution" not in str(asked)


def test_answers_are_judged(told_lessons, here, inside):
    for index, exercise in enumerate(possible(here)):
        solution = exercise.answer.solution
        right = told_lessons("/answer", inside=inside, index=index, answer=solution).json()
        assert (right["right"], right["solution"]) == (True, solution)
        assert len(right["arithmetic"]) == len(exercise.arithmetic)
        wrong = told_lessons("/answer", inside=inside, index=index, answer="?").json()
        assert (wrong["right"], wrong["solution"]) == (None, None)
        shown = told_lessons("/answer", inside=inside, index=index, reveal=True).json()
        assert shown["solution"] == solution


def test_a_step_of_another_model(told_lessons, inside):
    answer = told_lessons("", inside=inside | {"row": "0" * 16})
    assert answer.status_code == 409
    assert "other logits" in answer.json()["error"]["message"]
    answer = told_lessons("", inside=inside | {"step": 9})
    assert answer.status_code == 400
