"""Our own server's answers are all equal; of one that is wrong on purpose it is found where."""

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from xml.etree import ElementTree

import pytest

from cutaway.cli.main import main
from cutaway.features.evidence.conform import CHECKS, Client, conform
from cutaway.rerun.asking import Server
from support.served import serve

SMALL = {"max_tokens": 4, "size": 4, "prompt": "ab ba abba ab ba a b ab"}


@contextmanager
def unequal(fault, *, chat=False, lax=False):
    """A server whose answers depend on what they should not: fault is "" or a check's name.

    lax: it reads neither speculate nor n, and says nothing of that
    """
    lock, seen = Lock(), {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self._send({"data": [{"id": "m"}]})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if ("speculate" in body and not lax) or (chat != ("messages" in body)):
                self._send({"error": {"message": "no such field"}}, 400)
                return
            prompt = body.get("prompt") or body["messages"][0]["content"]
            with lock:
                before = seen.get(prompt, 0)
                seen[prompt] = before + 1
            count = body["max_tokens"]
            wrong = {
                "": False, "repeated": before > 0, "streaming": body.get("stream", False),
                "n": body.get("n", 1) > 1,
                "cut by cache": any(p != prompt and prompt.startswith(p) for p in [*seen])
                and not before,
            }[fault]  # fmt: skip
            numbers = [-0.5 - i for i in range(count)]
            if wrong:
                numbers[-1] += 2**-40
            text = "x" * count
            told = {"token_logprobs": numbers, "tokens": ["x"] * count}
            if chat:
                told = {"content": [{"token": "x", "logprob": p} for p in numbers]}
            say = {"message": {"content": text}} if chat else {"text": text}
            if body.get("stream"):
                say = {"delta": {"content": text}} if chat else say
                data = b"data: " + json.dumps({"choices": [{**say, "logprobs": told}]}).encode()
                self._bytes(data + b"\n\ndata: [DONE]\n\n")
                return
            self._send({"choices": [
                {"index": i, **say, "logprobs": told} for i in range(1 if lax else body.get("n", 1))
            ]})  # fmt: skip

        def _send(self, document, status=200):
            self._bytes(json.dumps(document).encode(), status)

        def _bytes(self, data, status=200):
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_our_own_answers_are_all_equal(tiny):
    with serve(tiny) as served:
        found = conform(Client(Server(served.url)), **SMALL)
    assert found.passed
    assert {pair.check for _, pair in found.pairs} == {*CHECKS}
    assert all(pair.same_logprobs for _, pair in found.pairs)
    assert not found.refused
    assert not found.smallest


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("fault", ["streaming", "n", "cut by cache"])
def test_the_check_that_fails_is_the_one_that_is_wrong(fault, chat):
    with unequal(fault, chat=chat) as url:
        found = conform(Client(Server(url)), **SMALL)
    assert not found.passed
    assert {check for check, _ in found.smallest} == {fault}
    assert {check for check, _ in found.refused} == {"speculation"}
    pair = found.smallest[fault, "greedy"]
    assert pair.same_text
    assert pair.same_logprobs is False
    assert pair.case.settings["max_tokens"] == 1
    if fault == "n":
        assert pair.case.size == 2


def test_what_a_server_does_not_read_is_not_said_to_be_equal():
    with unequal("", lax=True) as url:
        found = conform(Client(Server(url)), **SMALL)
    assert found.passed
    assert found.refused["speculation", "seeded"] == "it does not read the field 'speculate'"
    assert found.refused["n", "greedy"] == "it was asked for n=4 samples and wrote 1"
    assert not {"speculation", "n"} & {pair.check for _, pair in found.pairs}


def test_what_changes_when_it_is_asked_again():
    with unequal("repeated") as url:
        found = conform(Client(Server(url)), **SMALL)
    assert ("repeated", "greedy") in found.smallest


def test_the_reports(tmp_path, capsys):
    with unequal("streaming") as url:
        words = ["conform", url, "--markdown", str(tmp_path / "t.md"), "-q", "--size", "2"]
        assert main([*words, "--junit", str(tmp_path / "j.xml"), "--max-tokens", "3"]) == 1
        out = capsys.readouterr().out
        assert main([*words, "--json"]) == 1
    assert "streaming, greedy; the smallest pair found (whole, and streamed):" in out
    assert "equal texts, 1 log-probabilities differ, by up to 9.1e-13" in out
    assert "2 of " in out.splitlines()[-1]
    table = (tmp_path / "t.md").read_text()
    assert "| streaming | greedy | 1 of 1 | 0 of 1 |" in table
    assert "| speculation | seeded | not taken | not taken |" in table
    suite = ElementTree.parse(tmp_path / "j.xml").getroot()
    assert (suite.get("failures"), suite.get("skipped")) == ("2", "2")
    assert len(suite.findall("testcase/failure")) == 2
    assert json.loads(capsys.readouterr().out)["passed"] is False


def test_against_another_server(tiny):
    with unequal("") as one, unequal("repeated") as two, serve(tiny) as served:
        same = conform(Client(Server(one)), other=Client(Server(one)), **SMALL)
        assert same.passed
        apart = conform(Client(Server(one)), other=Client(Server(two)), **SMALL)
        assert ("other server", "seeded") in apart.smallest
        others = conform(Client(Server(served.url)), other=Client(Server(one)), **SMALL)
    assert {check for check, _ in others.smallest} == {"other server"}


def test_a_server_that_is_none(capsys):
    assert main(["conform", "http://127.0.0.1:9", "-q"]) == 1
    assert "no answer" in capsys.readouterr().err
    assert main(["conform", "http://127.0.0.1:9", "--size", "1"]) == 2
