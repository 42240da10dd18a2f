"""POST /v1/inside/ablate: what ``cutaway.features.inside.ablate`` finds, over HTTP."""

import json

import httpx
import pytest

from cutaway import LLM
from cutaway.features.inside import ablate
from support.inside_asked import asked_about
from support.served import serve

STEP = 6


@pytest.fixture(scope="module")
def asked(tiny_path, trace):
    body = asked_about(trace, STEP)
    with serve(LLM(tiny_path, threads=1)) as served, httpx.Client(base_url=served.url) as client:
        yield lambda **more: client.post("/v1/inside/ablate", json=body | more, timeout=60)
        assert served.free()


@pytest.mark.parametrize(
    "how", [{}, {"by": "word", "how": "knock_out"}, {"how": "other", "other": 7, "rival": 9}]
)
def test_it_is_what_python_finds(asked, tiny_path, trace, how):
    llm = LLM(tiny_path, threads=1)
    found = ablate(llm, trace, STEP, **how).to_dict(llm.tokenizer.token_name)
    assert asked(**how).json() == json.loads(json.dumps(found))


def test_a_budget(asked):
    some = asked(budget_s=1e-6).json()
    assert some["parts"] == []
    assert some["total"] == len(some["token_ids"])


@pytest.mark.parametrize(
    ("wrong", "status", "words"),
    [
        ({"by": "letter"}, 400, "by must be one of token, word"),
        ({"how": "hide"}, 400, "how must be one of delete"),
        ({"budget_s": 61}, 400, "budget_s"),
        ({"step": 9}, 400, "step"),
        ({"row": "0" * 16}, 409, "other logits"),
        ({"want": ["lens"]}, 400, "unknown field 'want'"),
    ],
)
def test_what_is_refused(asked, wrong, status, words):
    answer = asked(**wrong)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]
