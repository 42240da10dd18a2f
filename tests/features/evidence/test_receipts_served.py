"""A server that signs: a receipt of each text of each answer, and a log that has them all."""

import httpx
import pytest

from cutaway import LLM
from cutaway.errors import FormatError, InputError
from cutaway.features.evidence.receipt import Receipt
from cutaway.features.evidence.receipt_check import check_all
from cutaway.features.evidence.receipt_log import check_inclusion, check_log
from cutaway.features.evidence.signing_keys import PrivateKey
from cutaway.server.http.settings import ServerSettings
from support.served import serve

pytest.importorskip("cryptography", reason="the extra 'receipt' is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("signing")
    PrivateKey.create(folder / "key.pem")
    return folder


@pytest.fixture(scope="module")
def signing(tiny_path, folder):
    settings = ServerSettings(receipts=folder / "log", receipt_key=folder / "key.pem")
    with (
        serve(LLM(tiny_path, threads=1), settings) as served,
        httpx.Client(base_url=served.url, timeout=60) as client,
    ):
        yield client
    assert check_log(folder / "log")  # closed, and whole


def proven(client, name):
    """The receipts of an answer, of which the log has every one."""
    answer = client.get(f"/v1/receipts/{name}").raise_for_status().json()
    receipts = [Receipt.from_json(one["receipt"]) for one in answer["data"]]
    for receipt, one in zip(receipts, answer["data"], strict=True):
        check_inclusion(receipt, one["log"])
    return receipts


def test_each_text_of_an_answer_has_a_receipt(signing, tiny):
    asked = {"prompt": ["ab", "c"], "n": 2, "max_tokens": 6, "seed": 1}
    answer = signing.post("/v1/completions", json=asked).raise_for_status().json()
    receipts = proven(signing, answer["id"])
    assert [each.text for each in receipts] == [each["text"] for each in answer["choices"]]
    assert all(check_all(tiny, each).same for each in receipts)


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/completions", {"prompt": "ab", "max_tokens": 4, "stream": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}),
        ("/v1/responses", {"input": "a", "max_output_tokens": 4}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}),
    ],
)
def test_every_form_of_an_answer_has_one(signing, tiny, path, asked):
    with signing.stream("POST", path, json=asked) as response:
        body = response.read()
    assert response.status_code == 200, body
    [receipt] = proven(signing, response.headers["x-request-id"])
    if not asked.get("stream"):
        assert proven(signing, response.json()["id"]) == [receipt]
    assert check_all(tiny, receipt).same


def test_a_text_that_was_chosen_among_others_has_none(signing):
    """Of a suffix, by a model without tokens for it: nobody could draw it from its own seed."""
    asked = {"prompt": "ab", "suffix": "cd", "max_tokens": 8, "seed": 1}
    answer = signing.post("/v1/completions", json=asked).raise_for_status().json()
    assert signing.get(f"/v1/receipts/{answer['id']}").status_code == 404


def test_whoever_knows_a_request_id_has_no_receipt_by_it(signing):
    headers = {"x-request-id": "mine"}
    answers = [
        signing.post("/v1/completions", json={"prompt": "ab", "max_tokens": 1}, headers=headers)
        for _ in range(2)
    ]
    assert signing.get("/v1/receipts/mine").status_code == 404
    for answer in answers:
        assert len(proven(signing, answer.json()["id"])) == 1


def test_the_log_grows_and_its_head_is_signed(signing):
    before = signing.get("/v1/receipts").json()
    signing.post("/v1/completions", json={"prompt": "ab", "max_tokens": 1})
    after = signing.get("/v1/receipts").json()
    assert after["size"] == before["size"] + 1
    assert after["root"] != before["root"]


def test_what_has_none(signing, tiny_path, folder):
    assert signing.get("/v1/receipts/cmpl-nothing").status_code == 404
    with serve(LLM(tiny_path, threads=1)) as served:
        refused = httpx.get(f"{served.url}/v1/receipts/cmpl-nothing")
    assert refused.status_code == 404
    assert "--receipts FOLDER" in refused.json()["error"]["message"]
    with pytest.raises(InputError, match="belong together"):
        ServerSettings(receipts=folder)


def test_a_changed_receipt_of_a_server_is_found(signing):
    answer = signing.post("/v1/completions", json={"prompt": "ab", "max_tokens": 3}).json()
    [one] = signing.get(f"/v1/receipts/{answer['id']}").json()["data"]
    with pytest.raises(FormatError, match="changed after"):
        Receipt.from_json(one["receipt"] | {"text": "nothing"})


def test_a_full_disk_costs_receipts_and_no_answers(tiny_path, folder):
    """What is lost is a gap that the log's key signed, and the server starts again."""
    resource = pytest.importorskip("resource", reason="Windows has no limit of a file's size")
    settings = ServerSettings(receipts=folder / "full", receipt_key=folder / "key.pem")
    asked, before = {"prompt": "ab", "max_tokens": 1}, resource.getrlimit(resource.RLIMIT_FSIZE)

    def ask(client):
        answer = client.post("/v1/completions", json=asked).raise_for_status().json()
        return len(client.get(f"/v1/receipts/{answer['id']}").json().get("data", ()))

    for sitting in range(2):
        with (
            serve(LLM(tiny_path, threads=1), settings) as served,
            httpx.Client(base_url=served.url, timeout=60) as client,
        ):
            assert ask(client) == 1
            size = (folder / "full" / "receipts.jsonl").stat().st_size
            try:
                resource.setrlimit(resource.RLIMIT_FSIZE, (size + 1000, before[1]))
                assert [ask(client), ask(client)] == [0, 0]
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
            if sitting == 0:
                assert ask(client) == 1
    assert [entry.lost_count for entry in check_log(folder / "full")] == [0, 2, 0, 0, 2]
