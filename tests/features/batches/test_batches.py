"""/v1/files and /v1/batches through OpenAI's own client: answered on disk, whatever happens."""

import errno
import json
import os
import threading
from contextlib import contextmanager

import httpx
import openai
import pytest
from openai import OpenAI

from cutaway import LLM
from cutaway.errors import InputError
from cutaway.features.batches import runner
from cutaway.features.batches.folder import BatchFolder
from cutaway.features.batches.runner import AT_ONCE, BatchRunner
from cutaway.server.http.settings import ServerSettings
from support.served import serve

KEY = "sesame"
CHATS, TEXTS, VECTORS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
BODIES = {
    CHATS: {"messages": [{"role": "user", "content": "b"}], "max_tokens": 4, "seed": 3},
    TEXTS: {"prompt": "ab", "max_tokens": 4, "seed": 3},
    VECTORS: {"input": "ab"},
    "/v1/responses": {"input": "b", "max_output_tokens": 4, "seed": 3},
}
ENDED = ("completed", "failed", "cancelled")


def line(id, endpoint=TEXTS, **body):
    body = BODIES[endpoint] | body
    return {"custom_id": id, "method": "POST", "url": endpoint, "body": body}


def written(*lines):
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


class Asker:
    """OpenAI's client, and short words for what tests do with it."""

    def __init__(self, served):
        self.client = OpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0)
        self.batches, self.files = self.client.batches, self.client.files

    def upload(self, data):
        return self.files.create(file=("in.jsonl", data), purpose="batch").id

    def create(self, *lines, endpoint=TEXTS, **more):
        return self.batches.create(
            input_file_id=self.upload(written(*lines)), endpoint=endpoint,
            completion_window="24h", **more,
        )  # fmt: skip

    def end_of(self, batch):
        ended = []

        def has_ended():
            ended[:] = [self.batches.retrieve(batch.id)]
            return ended[0].status in ENDED

        until_true(has_ended)
        return ended[0]

    def records(self, id):
        return [json.loads(text) for text in self.files.content(id).content.splitlines()]


def until_true(holds):
    pause = threading.Event()
    for _ in range(1200):
        if holds():
            return
        pause.wait(0.05)
    raise AssertionError("it has not come to an end in a minute")


@contextmanager
def asker(path, folder, **more):
    settings = ServerSettings(batches=folder, api_key=KEY, names=["tiny"], **more)
    with serve(LLM(path, threads=1), settings) as served:
        yield Asker(served)


@pytest.fixture(scope="module")
def ask(tiny_path, tmp_path_factory):
    with asker(tiny_path, tmp_path_factory.mktemp("batches")) as ask:
        yield ask


# -- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", BODIES)
def test_each_line_has_the_answer_that_the_request_has(ask, endpoint):
    lines = [line("first", endpoint), line("second", endpoint)]
    batch = ask.create(*lines, endpoint=endpoint, metadata={"a": "b"})
    assert (batch.status, batch.endpoint, batch.metadata) == ("validating", endpoint, {"a": "b"})
    ended = ask.end_of(batch)
    assert (ended.status, ended.error_file_id, ended.errors) == ("completed", None, None)
    assert ended.request_counts.to_dict() == {"total": 2, "completed": 2, "failed": 0}
    assert ended.created_at <= ended.in_progress_at <= ended.finalizing_at <= ended.completed_at
    records = ask.records(ended.output_file_id)
    assert {one["custom_id"] for one in records} == {"first", "second"}
    alone = ask.client.post(endpoint.removeprefix("/v1"), body=BODIES[endpoint], cast_to=object)
    for one in records:
        assert (one["error"], one["response"]["status_code"]) == (None, 200)
        assert lasting(one["response"]["body"]) == lasting(alone)


def lasting(answer):
    """What a text or vector is, without when and for whom."""
    if answer["object"] == "list":
        return answer["data"]
    if answer["object"] == "response":
        return answer["output"][0]["content"], answer["cutaway"]["fingerprint"]
    [choice] = answer["choices"]
    return choice.get("text", choice.get("message")), choice["cutaway"]["fingerprint"]


def test_lines_that_fail_are_in_a_file_of_their_own(ask):
    lines = [line("good"), line("bad", max_tokens=-1), line("none", model="no_such")]
    ended = ask.end_of(ask.create(*lines))
    assert ended.request_counts.to_dict() == {"total": 3, "completed": 1, "failed": 2}
    assert [one["custom_id"] for one in ask.records(ended.output_file_id)] == ["good"]
    failed = {one["custom_id"]: one["response"] for one in ask.records(ended.error_file_id)}
    assert {id: one["status_code"] for id, one in failed.items()} == {"bad": 400, "none": 404}
    assert "max_tokens" in failed["bad"]["body"]["error"]["message"]


def test_more_lines_than_are_asked_at_once_are_all_answered(ask):
    lines = [line(f"{i}", max_tokens=1) for i in range(3 * AT_ONCE + 1)]
    ended = ask.end_of(ask.create(*lines))
    answered = sorted(int(one["custom_id"]) for one in ask.records(ended.output_file_id))
    assert answered == [*range(3 * AT_ONCE + 1)]


def test_other_requests_go_first(ask):
    ended = ask.end_of(ask.create(line("later"), line("now", priority=-1)))
    told = {one["custom_id"]: one["response"]["body"] for one in ask.records(ended.output_file_id)}
    given = {id: body["cutaway"]["params"]["priority"] for id, body in told.items()}
    assert given == {"later": 100, "now": -1}


# -- inputs ---------------------------------------------------------------------------------------

GOOD = line("a")
EXPIRES = {"anchor": "created_at", "seconds": 3600}
WRONG = [
    (b"", "empty_file", None, None),
    (b"\n \n", "empty_file", None, None),
    (b"{", "invalid_json_line", 1, None),
    (b'{"a": 1, "a": 2}', "invalid_json_line", 1, None),
    (b"[]", "invalid_request", 1, None),
    (written(GOOD, {**line("b"), "more": 1}), "invalid_request", 2, "more"),
    (written({**GOOD, "custom_id": 5}), "invalid_request", 1, "custom_id"),
    (written({**GOOD, "method": "GET"}), "invalid_request", 1, "method"),
    (written({**GOOD, "url": CHATS}), "invalid_request", 1, "url"),
    (written({**GOOD, "body": "ab"}), "invalid_request", 1, "body"),
    (written({**GOOD, "body": None}), "invalid_request", 1, "body"),
    (written(line("a", stream=True)), "invalid_request", 1, "body.stream"),
    (b"\n" + written(GOOD, GOOD), "duplicate_custom_id", 3, "custom_id"),
]


@pytest.mark.parametrize(("data", "code", "number", "param"), WRONG)
def test_a_file_that_is_wrong_is_refused_whole(ask, data, code, number, param):
    file = ask.upload(data)
    made = ask.batches.create(input_file_id=file, endpoint=TEXTS, completion_window="24h")
    ended = ask.end_of(made)
    assert (ended.status, ended.output_file_id) == ("failed", None)
    [fault] = ended.errors.data
    assert (fault.code, fault.line, fault.param) == (code, number, param)
    assert (param or "").rpartition(".")[2] in fault.message


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"input_file_id": "../../etc/passwd"}, "input_file_id"),
        ({"endpoint": "/v1/score"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"output_expires_after": EXPIRES}, "output_expires_after"),
        ({"metadata": {"k": 1}}, "metadata.k"),
        ({"extra_body": {"more": 1}}, "more"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(ask, more, param):
    given = {"input_file_id": ask.upload(written(GOOD)), "endpoint": TEXTS,
             "completion_window": "24h"}  # fmt: skip
    with pytest.raises(openai.APIStatusError) as refused:
        ask.batches.create(**given | more)
    assert refused.value.status_code in (400, 404)
    assert refused.value.param == param


# -- files ----------------------------------------------------------------------------------------


def test_a_file_is_kept_until_it_is_deleted(ask):
    data = bytes(range(256)) + b"\r\n--\r\n\n"
    file = ask.files.create(file=('ä"b/c.jsonl', data), purpose="batch")
    assert (file.bytes, file.purpose, file.filename) == (len(data), "batch", "c.jsonl")
    assert ask.files.content(file.id).content == data
    assert ask.files.retrieve(file.id) == file
    assert file in [*ask.files.list(purpose="batch")]
    assert ask.files.delete(file.id).deleted
    for gone in (ask.files.retrieve, ask.files.content, ask.files.delete):
        with pytest.raises(openai.NotFoundError, match="there is no file"):
            gone(file.id)


def test_lists_come_in_pages(ask):
    ids = [ask.upload(b"x") for _ in range(5)]
    assert [one.id for one in ask.files.list(limit=2)][:5] == ids[::-1]
    page = ask.files.list(limit=2, after=ids[4])
    assert ([one.id for one in page.data], page.has_more) == ([ids[3], ids[2]], True)
    assert [one.id for one in ask.files.list(order="asc")][-5:] == ids
    made = [ask.end_of(ask.create(line("a", max_tokens=1))).id for _ in range(3)]
    assert [one.id for one in ask.batches.list(limit=1)][:3] == made[::-1]
    with pytest.raises(openai.NotFoundError):
        ask.batches.list(after="none")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"data": {"purpose": "fine-tune"}}, "purpose must be batch"),
        ({"data": {}}, "purpose is missing"),
        ({"files": {}, "data": {"purpose": "batch"}}, "multipart/form-data"),
        ({"files": {"file": (None, b"x")}}, "with a filename"),
        ({"data": {"purpose": "batch", "expires_after[seconds]": "9"}}, "do not expire"),
        ({"data": {"purpose": "batch", "other": "9"}}, "other: unknown field"),
        ({"headers": {"origin": "http://evil.example"}}, "--cors"),
    ],
)
def test_forms_that_cannot_be_are_refused(ask, more, said):
    url, headers = f"{ask.client.base_url}files", {"authorization": f"Bearer {KEY}"}
    given = {"files": {"file": ("a", b"x")}, "data": {"purpose": "batch"}, **more}
    answer = httpx.post(url, **given | {"headers": headers | more.get("headers", {})})
    assert answer.status_code in (400, 415)
    assert said in answer.json()["error"]["message"]


def test_a_page_of_this_server_may_send_a_form(ask):
    url = httpx.URL(str(ask.client.base_url))
    own = f"http://{url.host}:{url.port}"
    headers = {"authorization": f"Bearer {KEY}", "origin": own}
    form = {"files": {"file": ("a", b"x")}, "data": {"purpose": "batch"}}
    assert httpx.post(f"{own}/v1/files", headers=headers, **form).status_code == 200


def test_a_server_without_a_folder_says_so(client):
    answer = client.get("/v1/batches")
    assert answer.status_code == 404
    assert "--batches" in answer.json()["error"]["message"]


# -- the end, and what is left --------------------------------------------------------------------

LONG = {"max_tokens": 400, "ignore_eos": True, "seed": 1}


def test_a_cancelled_batch_keeps_what_was_answered(ask):
    lines = [line("short", max_tokens=1), *(line(f"{i}", **LONG) for i in range(200))]
    batch = ask.create(*lines)
    until_true(lambda: ask.batches.retrieve(batch.id).request_counts.completed)
    with pytest.raises(openai.BadRequestError, match="reads it"):
        ask.files.delete(batch.input_file_id)
    assert ask.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    ended = ask.end_of(batch)
    assert ended.status == "cancelled" and ended.cancelling_at <= ended.cancelled_at
    assert 0 < ended.request_counts.completed < 201
    assert len(ask.records(ended.output_file_id)) == ended.request_counts.completed
    with pytest.raises(openai.BadRequestError, match="cannot be cancelled"):
        ask.batches.cancel(batch.id)
    assert ask.end_of(ask.create(line("next"))).status == "completed"


def test_a_batch_that_waits_can_be_cancelled_at_once(ask):
    first = ask.create(*(line(f"{i}", **LONG) for i in range(200)))
    second = ask.create(line("a"))
    assert ask.batches.cancel(second.id).status == "cancelled"
    ask.batches.cancel(first.id)
    ended = ask.end_of(second)
    assert (ended.status, ended.output_file_id) == ("cancelled", None)
    ask.end_of(first)


def test_a_batch_survives_the_end_of_its_server(tiny_path, tmp_path):
    ids = [f"{i}" for i in range(60)]
    with asker(tiny_path, tmp_path) as ask:
        batch = ask.create(line("short", max_tokens=1), *(line(id, **LONG) for id in ids))
        until_true(lambda: ask.batches.retrieve(batch.id).request_counts.completed)
    [output] = (tmp_path / "files").glob("*_output.content")
    before = output.read_bytes()
    assert before.endswith(b"\n") and before.count(b"\n") < 61
    output.write_bytes(before + b'{"id": "batch_req_cut", "custom')  # as a kill leaves it
    with asker(tiny_path, tmp_path) as ask:
        ended = ask.end_of(batch)
        assert (ended.status, ended.created_at) == ("completed", batch.created_at)
        assert ended.request_counts.to_dict() == {"total": 61, "completed": 61, "failed": 0}
        data = ask.files.content(ended.output_file_id).content
        assert data.startswith(before)
        records = [json.loads(text) for text in data.splitlines()]
        assert sorted(one["custom_id"] for one in records) == sorted(["short", *ids])
        texts = {one["response"]["body"]["choices"][0]["text"] for one in records[-30:]}
        assert len(texts) == 1  # the same seed
    with asker(tiny_path, tmp_path) as ask:
        assert ask.batches.retrieve(batch.id) == ended
        assert ask.files.content(ended.output_file_id).content == data


def test_nobody_else_may_read_what_is_asked_and_answered(tiny_path, tmp_path):
    before = os.umask(0o022)
    try:
        with asker(tiny_path, tmp_path / "kept") as ask:
            ask.end_of(ask.create(line("a"), line("b", max_tokens=-1)))
    finally:
        os.umask(before)
    kept = [*(tmp_path / "kept").rglob("*")]
    texts = [path for path in kept if path.is_file() and path.name != "lock"]
    assert len(texts) >= 7
    assert {path.stat().st_mode & 0o777 for path in texts} == {0o600}
    folders = [tmp_path / "kept", *(path for path in kept if path.is_dir())]
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}


def test_one_server_has_a_folder(tmp_path):
    first = BatchFolder(tmp_path)
    with pytest.raises(InputError, match="another server has"):
        BatchFolder(tmp_path)
    first.close()
    BatchFolder(tmp_path).close()


def test_a_folder_with_another_s_files_is_left_alone(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "mine.json").write_text("[1, 2]")
    with pytest.raises(InputError, match=r"mine\.json is not what a server wrote"):
        BatchFolder(tmp_path)
    (tmp_path / "plain").write_text("")
    with pytest.raises(InputError, match="cannot be used"):
        BatchFolder(tmp_path / "plain")


# -- a disk that is full --------------------------------------------------------------------------


class Disk:
    """One that can be full, for what is written whole and what is appended."""

    def __init__(self, monkeypatch):
        self.full = False
        monkeypatch.setattr(os, "fsync", self._check)
        append = BatchRunner._append
        monkeypatch.setattr(
            BatchRunner, "_append", lambda *a, **k: (self._check(0), append(*a, **k))[1]
        )
        monkeypatch.setattr(runner, "AGAIN_S", 0.05)

    def _check(self, _descriptor):
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_an_upload_on_a_full_disk_says_whose_fault_it_is(tiny_path, tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    with asker(tiny_path, tmp_path) as ask:
        before = ask.upload(written(line("a")))
        disk.full = True
        for work in (lambda: ask.upload(b"{}"), lambda: create_of(ask, before)):
            with pytest.raises(openai.APIStatusError, match="disk is full") as caught:
                work()
            assert (caught.value.status_code, caught.value.code) == (507, "disk_full")
            assert str(tmp_path) not in str(caught.value)
        disk.full = False
        assert [one.id for one in ask.files.list()] == [before]
        assert not [*ask.batches.list()]
        assert ask.end_of(create_of(ask, before)).status == "completed"


def create_of(ask, file):
    return ask.batches.create(input_file_id=file, endpoint=TEXTS, completion_window="24h")


def test_a_batch_waits_for_room_and_what_it_is_said_to_be_is_on_disk(
    tiny_path, tmp_path, monkeypatch, caplog
):
    disk = Disk(monkeypatch)
    with asker(tiny_path, tmp_path) as ask:
        file = ask.upload(written(*(line(f"{i}") for i in range(3))))
        batch = create_of(ask, file)
        disk.full = True
        until_true(lambda: "waits, as nothing can be written" in caplog.text or done(ask, batch))
        told = ask.batches.retrieve(batch.id).status
        on_disk = json.loads((tmp_path / "batches" / f"{batch.id}.json").read_text())["status"]
        assert told == on_disk
        disk.full = False
        ended = ask.end_of(batch)
        assert ended.status == "completed"
        assert ended.request_counts.to_dict() == {"total": 3, "completed": 3, "failed": 0}
        assert len(ask.records(ended.output_file_id)) == 3


def done(ask, batch):
    return ask.batches.retrieve(batch.id).status in ENDED
