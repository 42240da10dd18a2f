"""/v1/inside and what it leaves out, over HTTP, beside those who write; and interventions."""

import asyncio
import base64
import gzip
import json
from threading import Event

import httpx
import numpy as np
import pytest

from cutaway import LLM
from cutaway.api.async_llm import Guests
from cutaway.engine.interventions import add
from cutaway.features.inside import endpoints as endpoint
from cutaway.features.inside import summary
from cutaway.features.inside.ablate import ablate
from cutaway.features.inside.look import inside
from cutaway.features.inside.summary import to_dict
from cutaway.server.http.settings import ServerSettings
from cutaway.trace import Trace
from support.inside_asked import asked_about
from support.served import serve

STEP = 6
NO_ROW = "0" * 16


@pytest.fixture(scope="module")
def forced_trace(tiny_path, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run.jsonl"
    options = {"max_tokens": 12, "seed": 2**63 + 9, "ignore_eos": True, "logit_bias": {70: 2.0}}
    LLM(tiny_path, threads=1).generate("ab a\x1b", trace=path, forced=(5, 6), **options)
    return Trace.read(path)


@pytest.fixture(scope="module")
def look(tiny_path, forced_trace):
    return inside(LLM(tiny_path, threads=1), forced_trace, STEP)


@pytest.fixture(scope="module")
def body(forced_trace):
    return asked_about(forced_trace, STEP)


@pytest.fixture
def asked(client, body):
    return lambda _headers=None, **more: client.post(
        "/v1/inside", json=body | more, headers=_headers
    )


def plain(data):
    return json.loads(json.dumps(data))


def test_every_figure_is_that_of_a_look(asked, look, tiny_alone):
    answer = asked(rival=9).json()
    maps = answer.pop("maps")["weights"]
    name = tiny_alone.tokenizer.token_name
    assert answer == plain(to_dict(look, look.logit_attribution(9), look.lens(1), name))
    assert answer["as_run"] is True and answer["draw_settled"] is not None
    bytes_ = np.frombuffer(base64.b64decode(maps["data"]), np.uint8).reshape(maps["shape"])
    near = np.abs(bytes_ / maps["scale"] - np.sqrt(look.weights)).max()
    assert near <= 0.5 / maps["scale"]


@pytest.mark.parametrize("how", [{"format": "safetensors"}, {"_headers": {"accept": "*/*, "
                                 "application/octet-stream"}}])  # fmt: skip
def test_the_file_has_the_same(asked, look, how):
    answer = asked(**how)
    assert answer.headers["content-type"] == "application/octet-stream"
    start = 8 + int.from_bytes(answer.content[:8], "little")
    header = json.loads(answer.content[8:start])
    told, found, lens = header.pop("__metadata__"), look.logit_attribution(), look.lens(1)
    expected = summary.page_arrays(look, found, lens)
    assert header.keys() == expected.keys()
    for name, array in expected.items():
        begin, end = header[name]["data_offsets"]
        got = np.frombuffer(answer.content[start + begin : start + end], array.dtype)
        np.testing.assert_array_equal(got.reshape(header[name]["shape"]), array, name)
    assert (told["row"], told["as_run"]) == (f"{look.row_hash:016x}", "true")
    assert (int(told["token"]), int(told["rival"])) == (found.token, found.rival)
    assert set(json.loads(told["names"])) >= {str(i) for i in lens.ids[:, 0]}


def test_what_is_not_wanted_is_left_out(asked):
    assert {"lens", "maps"} & {*asked(want=[]).json()} == set()
    assert "lens" not in asked(want=["maps"]).json()
    assert "maps" not in asked(want=["lens"]).json()


def test_without_a_record_nothing_is_said_to_be_on_record(asked, body, look):
    answer = asked(row=None, settings=None, drawn=None).json()
    assert (answer["row"], answer["as_run"]) == (f"{look.row_hash:016x}", None)
    assert {row["drawn"] for row in answer["lens"]} == {None}
    text = asked(prompt="ab a\x1b", generated=body["generated"][: STEP + 1]).json()
    assert text["row"] == answer["row"]


def test_the_answer_is_packed_where_that_is_read(asked):
    assert asked().headers["content-encoding"] == "gzip"
    bare = asked(_headers={"accept-encoding": "identity"})
    assert "content-encoding" not in bare.headers and len(gzip.compress(bare.content)) < 1e5


@pytest.mark.parametrize(
    ("more", "status", "param", "words"),
    [
        ({"row": NO_ROW}, 409, "row", "gives other logits"),
        ({"row": "f438"}, 400, "row", "16 hexadecimal digits"),
        ({"row": "+438785d5cc9f79a"}, 400, "row", "16 hexadecimal digits"),
        ({"step": 12}, 400, "step", "between 0 and 11"),
        ({"step": -1}, 400, "step", "between 0 and 11"),
        ({"generated": []}, 400, "generated", "empty"),
        ({"prompt": []}, 400, "prompt", "empty"),
        ({"generated": [10**6]}, 400, "generated", "a token id must be between 0"),
        ({"generated": ["a"]}, 400, "generated[0]", "whole number"),
        ({"prompt": 7}, 400, "prompt", "prompt"),
        ({"rival": -1}, 400, "rival", "between 0"),
        ({"rival": "no token at all"}, 400, "rival", "is not one token"),
        ({"rival": 1.5}, 400, "rival", "rival"),
        ({"drawn": -3}, 400, "drawn", "between 0"),
        ({"settings": {"heat": 1}}, 400, "settings", "unknown name 'heat'"),
        ({"settings": {"top_p": 7}}, 400, "settings", "top_p"),
        ({"settings": {"seed": "a"}}, 400, "settings", "seed"),
        ({"want": ["without end"]}, 400, "want[0]", "lens"),
        ({"format": "xml"}, 400, "format", "safetensors"),
        ({"model": "other"}, 404, "model", "is not here"),
        ({"generated": [70] * 5000, "step": 4999}, 400, "generated", "room for"),
    ],
)
def test_refusals_name_the_field(asked, more, status, param, words):
    answer = asked(**more)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param), error
    assert words in error["message"]


def test_the_token_that_came_is_no_rival(asked, forced_trace):
    answer = asked(rival=forced_trace.steps[STEP].token_id)
    assert answer.json()["error"]["param"] == "rival"


# -- one at a time, beside others, for those who wait ---------------------------------------------


def test_who_leaves_is_not_looked_for(tiny_path, body, monkeypatch):
    begun, go, ends, real = Event(), Event(), [], endpoint._answer
    unwanted, guest = [], Guests.guest

    def slow(llm, asked, binary):
        begun.set()
        assert go.wait(300)
        try:
            return real(llm, asked, binary)
        except Exception as error:
            ends.append(str(error))
            raise
        finally:
            ends.append("")

    monkeypatch.setattr(endpoint, "_answer", slow)

    def counted(guests, flag):
        unwanted.append(flag)
        return guest(guests, flag)

    monkeypatch.setattr(Guests, "guest", counted)

    async def main(served):
        queue = served.service.llm._calling

        async def until(condition):
            async with asyncio.timeout(300):
                while not condition():
                    await asyncio.sleep(0.005)

        async with httpx.AsyncClient(base_url=served.url, timeout=300) as client:
            first = asyncio.create_task(client.post("/v1/inside", json=body))
            assert await asyncio.to_thread(begun.wait, 300)
            second = asyncio.create_task(client.post("/v1/inside", json=body))
            text = await client.post("/v1/completions", json={"prompt": "ab", "max_tokens": 3})
            assert text.status_code == 200  # others write meanwhile
            await until(lambda: queue._waiting)
            second.cancel()  # while it waits for the first
            await until(lambda: not queue._waiting)
            first.cancel()
            await until(unwanted[0].is_set)
            third = asyncio.create_task(client.post("/v1/inside", json=body))
            await until(lambda: len(unwanted) == 2)
            go.set()
            assert (await third).status_code == 200

    with serve(LLM(tiny_path, threads=1), piped=False) as served:  # what is watched is local
        asyncio.run(main(served))
        assert served.free()
    assert ends == ["nobody waits for this any more", "", ""]


@pytest.mark.model
def test_a_long_text_fits_the_wire(smollm2, smollm2_path):
    ids = LLM(smollm2_path, threads=1).tokenize("One, two, three, four, five. " * 300)[:2049]
    body = {"prompt": ids[:-1], "generated": ids[-1:], "step": 0, "format": "safetensors"}
    with httpx.stream("POST", f"{smollm2.url}/v1/inside", json=body, timeout=120) as answer:
        sent = sum(map(len, answer.iter_raw()))
    assert answer.status_code == 200 and sent <= 600_000


# -- /v1/inside/ablate -------------------------------------------------------------------------


ABLATED = 6


@pytest.fixture(scope="module")
def asked_to_ablate(tiny_path, trace):
    body = asked_about(trace, ABLATED)
    with serve(LLM(tiny_path, threads=1)) as served, httpx.Client(base_url=served.url) as client:
        yield lambda **more: client.post("/v1/inside/ablate", json=body | more, timeout=60)
        assert served.free()


@pytest.mark.parametrize(
    "how", [{}, {"by": "word", "how": "knock_out"}, {"how": "other", "other": 7, "rival": 9}]
)
def test_it_is_what_python_finds(asked_to_ablate, tiny_path, trace, how):
    llm = LLM(tiny_path, threads=1)
    found = ablate(llm, trace, ABLATED, **how).to_dict(llm.tokenizer.token_name)
    assert asked_to_ablate(**how).json() == json.loads(json.dumps(found))


def test_a_budget(asked_to_ablate):
    some = asked_to_ablate(budget_s=1e-6).json()
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
def test_what_is_refused(asked_to_ablate, wrong, status, words):
    answer = asked_to_ablate(**wrong)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]


# -- interventions: for a request's own texts, where the server was started so -----------------


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


@pytest.mark.elsewhere
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
def test_which_interventions_are_refused(allowed, interventions, sentence):
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
