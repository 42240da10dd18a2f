"""A step in a notebook: its candidates by name, as they are in the record."""

import asyncio
import pickle

import pytest

from cutaway import LLM, AsyncLLM, Step

OPTIONS = {"seed": 1, "max_tokens": 2, "logprobs": 5, "top_k": 2, "ledger": True}


@pytest.fixture(scope="module")
def llm():
    with LLM("toy-writer", progress=False) as llm:
        yield llm


def test_a_step_shows_its_candidates_by_name(llm):
    step = llm.generate("The ", **OPTIONS).steps[0]
    shown = step._repr_html_()
    for candidate in step.observed.candidates:
        assert f"<td>{candidate.id}</td>" in shown
    assert shown.count("<tr>") == len(step.observed.candidates) + 1
    assert shown.count("<td>top-k 2</td>") == sum(
        c.final_logprob is None for c in step.observed.candidates
    )
    assert f"<td>&#x27;{llm.detokenize([step.observed.candidates[0].id])}&#x27;</td>" in shown
    assert "→" in shown


def test_without_candidates_it_says_how_to_have_them(llm):
    shown = llm.generate("The ", seed=1, max_tokens=1).steps[0]._repr_html_()
    assert "ledger=True or logprobs=5" in shown
    assert "<table" not in shown


def test_it_is_the_step_itself(llm):
    done = llm.generate("The ", **OPTIONS)
    step, _ = llm.stream("The ", **OPTIONS)
    assert "<table" in step._repr_html_()
    assert isinstance(step, Step)
    assert step.observed == done.steps[0].observed
    copy = pickle.loads(pickle.dumps(step))
    assert type(copy) is Step
    assert copy == step
    assert repr(step) == repr(copy)


def test_a_stream_of_an_event_loop_has_them(llm):
    async def first():
        async with AsyncLLM("toy-writer") as other:
            steps = [step async for step in other.stream("The ", **OPTIONS)]
            return steps[0]

    assert "<table" in asyncio.run(first())._repr_html_()
