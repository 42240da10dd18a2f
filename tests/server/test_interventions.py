"""Interventions over HTTP: for a request's own texts, where the server was started so."""

import json

import httpx
import numpy as np
import pytest

from cutaway import LLM
from cutaway.engine.interventions import add
from cutaway.server.http.settings import ServerSettings
from cutaway.trace import Trace
from support.served import serve

HOW = {"max_tokens": 8, "seed": 5, "ignore_eos": True}
ASK = {"prompt": "ab ba"} | HOW
INTERVENTIONS = ["L0.H1 x 0", "knock_out 1", add("L0", np.ones(32), 0.1).to_json()]


def post(served, path="/v1/completions", **fields):
    body = fields if path != "/v1/completions" else ASK | fields
    return httpx.post(served.url + path, json=body, timeout=60)


@pytest.fixture(scope="module")
def allowed(tiny_path):
    with serve(LLM(tiny_path, threads=1), ServerSettings(allow_interventions=True)) as served:
        yield served


def test_a_server_takes_none_unless_it_was_started_so(tiny):
    answer = post(tiny, interventions=INTERVENTIONS)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == (
        "interventions: not allowed here; start the server with --allow-interventions"
    )
    assert answer.json()["error"]["param"] == "interventions"
    for none in ([], None):
        assert post(tiny, interventions=none).status_code == 200


def test_they_are_those_of_the_engine_and_in_the_trace(allowed, tiny_alone, tmp_path):
    answer = post(allowed, interventions=INTERVENTIONS, trace=True).json()
    done = tiny_alone.generate(ASK["prompt"], interventions=INTERVENTIONS, **HOW)
    plain = post(allowed).json()
    [choice] = answer["choices"]
    assert choice["cutaway"]["fingerprint"] == done.fingerprint
    assert plain["choices"][0]["cutaway"]["fingerprint"] != done.fingerprint
    lines = "".join(f"{json.dumps(line)}\n" for line in choice["cutaway"]["trace"])
    trace = Trace.parse(lines.encode())
    texts = [*INTERVENTIONS[:2], INTERVENTIONS[2]["text"]]
    assert [str(one) for one in trace.head.interventions] == texts
    again = post(allowed, interventions=answer["cutaway"]["params"]["interventions"])
    assert again.json()["choices"][0]["cutaway"]["fingerprint"] == done.fingerprint


def test_in_a_chat_and_in_a_response(allowed):
    messages = [{"role": "user", "content": "ab"}]
    for path, body in (
        ("/v1/chat/completions", {"messages": messages, "max_tokens": 4}),
        ("/v1/responses", {"input": "ab", "max_output_tokens": 4}),
    ):
        both = (body, body | {"interventions": INTERVENTIONS})
        found = [post(allowed, path, seed=3, **one).json() for one in both]
        ours = [
            one["cutaway"] if path == "/v1/responses" else one["choices"][0]["cutaway"]
            for one in found
        ]
        assert ours[0]["fingerprint"] != ours[1]["fingerprint"]


@pytest.mark.parametrize(
    ("interventions", "sentence"),
    [("L0 x 0", "interventions"), ([5], "interventions"), (["L0"], "interventions[0]: write"),
     (["L9 x 0"], "no L9"),
     ([{"kind": "add"}], "a place is"), (["L0 x 0"] * 1025, "more than 1024"),
     ([{"kind": "scale", "where": "L0", "more": 1}], "object with kind")],
)  # fmt: skip
def test_what_is_refused(allowed, interventions, sentence):
    answer = post(allowed, interventions=interventions)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert sentence in error["message"] and error["param"].startswith("interventions")


def test_a_look_has_the_changes_of_its_text(allowed, tiny):
    answer = post(allowed, interventions=INTERVENTIONS, trace=True).json()
    head, *lines = answer["choices"][0]["cutaway"]["trace"]
    steps = [line for line in lines if line["kind"] == "step"]
    ask = {
        "prompt": head["prompt_token_ids"], "generated": [s["token_id"] for s in steps], "step": 4,
        "row": steps[4]["logits_hash"], "drawn": steps[4]["sampled_id"],
        "settings": head["params"] | {"seed": head["seed"]}, "format": "json",
    }  # fmt: skip
    found = post(allowed, "/v1/inside", **ask, interventions=head["interventions"])
    assert (found.status_code, found.json()["as_run"]) == (200, True)
    assert "L0.intervention" in found.json()["logit_attribution"]["parts"]
    assert found.json()["lens"][-1]["drawn"] == steps[4]["sampled_id"]
    free = post(
        allowed, "/v1/inside", **ask | {"row": None}, interventions=head["interventions"]
    ).json()
    assert (free["row"], free["as_run"]) == (steps[4]["logits_hash"], None)
    assert post(allowed, "/v1/inside", **ask).status_code == 409
    refused = post(tiny, "/v1/inside", **ask, interventions=head["interventions"])
    assert refused.json()["error"]["param"] == "interventions"


def test_by_the_earlier_name(tiny, allowed):
    done, same = (
        post(allowed, **one).json()["choices"][0]["cutaway"]["fingerprint"]
        for one in ({"changes": ["L0.H1 x 0", "blind 1"]}, {"interventions": INTERVENTIONS[:2]})
    )
    assert done == same
    assert post(tiny, changes=["L0.H1 x 0"]).json()["error"]["param"] == "interventions"
    both = post(allowed, changes=["L0 x 0"], interventions=["L0 x 0"])
    assert "changes is the earlier name of interventions" in both.json()["error"]["message"]
