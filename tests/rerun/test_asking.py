"""What commands ask servers over HTTP: a key goes to the server that was named, and no further."""

import json
import re
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from cutaway import LLM
from cutaway.errors import CutawayError
from cutaway.rerun import asking, resume_at
from cutaway.rerun.asking import RefusedError, Server, UnansweredError
from cutaway.trace import Trace
from support.cut_traces import cut_at

SOURCE = Path(asking.__file__).parents[1]


@contextmanager
def listening(answer):
    """A server that answers all requests so; the address, and the headers that it was sent."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(dict(self.headers))
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer(self)

        do_POST = do_GET

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", seen
        server.shutdown()


def sending(data, status=200, **headers):
    def answer(handler):
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)

    return answer


STOLEN = sending(b'data: {"choices": []}\n\n{}')


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("way", ["get", "post", "events", "resume"])
def test_a_redirect_is_not_followed(way, status, request):
    with (
        listening(STOLEN) as (elsewhere, stolen),
        listening(sending(b"", status, Location=f"{elsewhere}/stolen")) as (url, seen),
        pytest.raises(RefusedError, match=f"it redirects to {elsewhere}/stolen, which is not foll"),
    ):
        match way:
            case "get":
                Server(url, "sesame").get("/")
            case "post":
                Server(url, "sesame").post("/", {})
            case "events":
                [*Server(url, "sesame").events("/", {})]
            case "resume":
                cut = request.getfixturevalue("cut")
                [*resume_at([url], Trace.read(cut), "sesame")]
    assert stolen == []
    assert [headers["Authorization"] for headers in seen] == ["Bearer sesame"]


@pytest.fixture
def cut(tiny_path, tmp_path):
    with LLM(tiny_path, threads=1, progress=False) as llm:
        yield cut_at(llm, tmp_path / "run.jsonl", 0.5)


def test_an_answer_that_would_fill_the_memory_is_refused(monkeypatch):
    monkeypatch.setattr(asking, "MOST_BYTES", 1000)
    document = json.dumps("a" * 998).encode()
    with listening(sending(document)) as (url, _):
        assert Server(url).get("/").text == "a" * 998
    for data in (document + b" ", b"data: " + document):
        with listening(sending(data)) as (url, _):
            server = Server(url)
            with pytest.raises(CutawayError, match=r"its answer is larger than 1\.0 kB"):
                [*server.events("/", {})] if data[:4] == b"data" else server.get("/")


def test_an_answer_that_is_cut_is_told_from_a_refusal():
    with listening(sending(b"{", **{"Content-Length": "9"})) as (url, _):
        for ask in (Server(url).get, lambda path: Server(url).post(path, {})):
            with pytest.raises(UnansweredError, match="its answer was cut"):
                ask("/")


def test_nothing_else_opens_a_url():
    """Hugging Face's files are their own library's."""
    client = re.compile(r"^\s*(from|import) (urllib\.request|http\.client|httpx|requests)\b", re.M)
    others = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if client.search(path.read_text())
    }
    assert others == {"rerun/asking.py"}


RECORDS = {
    "no object": 7,
    "no record": {"kind": "x"},
    "a kind that is a list": {"kind": []},
    "a version that is a list": {"kind": "tok", "version": []},
    "a head that is none": {"kind": "head"},
    "a token that is none": {"kind": "tok", "id": "x", "text": "a"},
    "a step that is none": {"kind": "step", "index": 0},
    "an end that is none": {"kind": "end", "reason": "aborted"},
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_server_that_goes_on_with_no_trace_is_one_sentence(cut, name):
    event = json.dumps({"choices": [{"cutaway": {"trace": [RECORDS[name]]}}]}).encode()
    with (
        listening(sending(b"data: " + event + b"\n\n")) as (url, _),
        pytest.raises(CutawayError, match=r"/v1/completions\.choices\[0\]\.cutaway\.trace"),
    ):
        [*resume_at([url], Trace.read(cut))]


@pytest.mark.parametrize("event", ['"x"', "null", '{"error": "x"}', '{"choices": null}', "{"])
def test_an_event_of_another_form_is_one_sentence(cut, event):
    with (
        listening(sending(f"data: {event}\n\n".encode())) as (url, _),
        pytest.raises(CutawayError, match=f"{url}/v1/completions"),
    ):
        [*resume_at([url], Trace.read(cut))]
