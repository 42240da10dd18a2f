"""Audits: the tail by brute force, and what the luck of one's own seed, and of others', shows."""

import json
import re
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from math import prod
from pathlib import Path
from threading import Lock, Thread
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway import LLM, InputError
from cutaway.cli.main import main
from cutaway.features.evidence.audit import ALARM, audit, tail
from cutaway.features.evidence.conform import CHECKS, conform
from cutaway.features.evidence.conform_client import Client
from cutaway.rerun.asking import Server
from support.served import serve

SETTINGS = {"temperature": 1.0, "top_p": 0.95}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7), st.integers(0, 8))
def test_the_tail_is_the_sum_over_all_outcomes(probabilities, count):
    every = product((0, 1), repeat=len(probabilities))
    mass = sum(
        prod(p if hit else 1 - p for p, hit in zip(probabilities, hits, strict=True))
        for hits in every
        if sum(hits) >= count
    )
    assert tail(probabilities, count) == pytest.approx(mass, abs=1e-12)


def test_a_small_tail_has_its_digits():
    assert tail([0.5] * 400, 400) == pytest.approx(0.5**400)


@pytest.fixture(scope="module")
def llm(tiny_path):
    return LLM(tiny_path, threads=1, progress=False)


@pytest.fixture(scope="module")
def written(llm):
    return llm.generate("ab", seed=7, max_tokens=40, ignore_eos=True, **SETTINGS)


def test_what_was_drawn_by_the_luck_matches_everywhere(llm, written):
    done = audit(llm, "ab", written.token_ids, 7, **SETTINGS)
    assert done.matches == 40
    assert done.false_alarm < ALARM
    assert {one.rank for one in done.tokens} == {1}
    assert done.verdict == "every token is the one that this luck draws"


def test_false_alarms_are_as_rare_as_they_are_told(llm, written):
    """Of 60 seeds that did not draw the text, about a tenth have a rate below a tenth."""
    rates = [audit(llm, "ab", written.token_ids, seed, **SETTINGS) for seed in range(100, 160)]
    assert all(one.false_alarm > 1e-4 for one in rates)
    assert sum(one.false_alarm < 0.1 for one in rates) <= 15
    mean = sum(one.matches for one in rates) / len(rates)
    assert mean == pytest.approx(rates[0].by_chance, abs=1.5)


def test_a_changed_token_and_other_settings_are_seen(llm, written):
    changed = list(written.token_ids)
    changed[20] = changed[20] + 1
    done = audit(llm, "ab", changed, 7, **SETTINGS)
    assert not done.tokens[20].matches
    assert "of 40 tokens by other arithmetic, settings or hands" in done.verdict
    colder = audit(llm, "ab", written.token_ids, 7, temperature=0.5)
    assert colder.matches < 40
    narrow = audit(llm, "ab", written.token_ids, 7, temperature=1.0, top_k=2)
    assert "the chain removes token" in narrow.verdict


@pytest.mark.parametrize(
    ("text", "settings", "what"),
    [([], {}, "no tokens"), ([5], {"temperature": 0}, "greedy"), ([5], {"top_p": 2}, "top_p")],
)
def test_one_sentence_for_what_cannot_be_audited(llm, text, settings, what):
    with pytest.raises(InputError, match=what):
        audit(llm, "ab", text, 7, **settings)


def test_the_command_reads_what_generate_prints(tiny_path, tmp_path, capsys):
    own = ["-m", str(tiny_path), "--temperature", "1", "-q"]
    wrote = ["--seed", "7", "--max-tokens", "30", "--ignore-eos", "--json"]
    assert main(["generate", "ab", *own, *wrote]) == 0
    (tmp_path / "texts.json").write_text(capsys.readouterr().out)
    assert main(["audit", str(tmp_path / "texts.json"), *own]) == 0
    assert "30 of 30" in capsys.readouterr().out
    (tmp_path / "other.jsonl").write_text('{"prompt": "ab", "token_ids": [5, 6, 7]}\n')
    assert main(["audit", str(tmp_path / "other.jsonl"), *own, "--seed", "3"]) == 1
    assert "the chain removes token 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("", "there are no texts"),
        ("{", "no JSON"),
        ("[1]", "must be a JSON object"),
        ('{"prompt": "a", "text": "b"}', "seed must be"),
        ('{"prompt": "a", "seed": 1}', "text must be a text or a list"),
    ],
)
def test_one_sentence_for_a_file_that_is_none(tiny_path, tmp_path, capsys, line, what):
    (tmp_path / "texts.jsonl").write_text(line)
    assert main(["audit", str(tmp_path / "texts.jsonl"), "-m", str(tiny_path)]) == 2
    assert what in capsys.readouterr().err


# -- conform ---------------------------------------------------------------------------------------

# Our own server's answers are all equal; of one that is wrong on purpose it is found where.


SMALL = {"max_tokens": 4, "size": 4, "prompt": "ab ba abba ab ba a b ab"}


def choice_of(count, *, is_wrong, chat, stream):
    """An answer's choice of so many tokens; one that is wrong is so in its last bit."""
    numbers = [-0.5 - i for i in range(count)]
    if is_wrong:
        numbers[-1] += 2**-40
    text = "x" * count
    logprobs = {"token_logprobs": numbers, "tokens": ["x"] * count}
    if not chat:
        return {"text": text, "logprobs": logprobs}
    logprobs = {"content": [{"token": "x", "logprob": p} for p in numbers]}
    return {"delta" if stream else "message": {"content": text}, "logprobs": logprobs}


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
            stream, n = body.get("stream", False), body.get("n", 1)
            is_wrong = {
                "": False, "repeated": before > 0, "streaming": stream, "n": n > 1,
                "cut by cache": any(p != prompt and prompt.startswith(p) for p in [*seen])
                and not before,
            }[fault]  # fmt: skip
            choice = choice_of(body["max_tokens"], is_wrong=is_wrong, chat=chat, stream=stream)
            if stream:
                data = b"data: " + json.dumps({"choices": [choice]}).encode()
                self._bytes(data + b"\n\ndata: [DONE]\n\n")
                return
            self._send({"choices": [{"index": i, **choice} for i in range(1 if lax else n)]})

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
    assert found.all_equal
    assert {pair.check for _, pair in found.pairs} == {*CHECKS}
    assert all(pair.same_logprobs for _, pair in found.pairs)
    assert not found.refusals
    assert not found.smallest


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("fault", ["streaming", "n", "cut by cache"])
def test_the_check_that_fails_is_the_one_that_is_wrong(fault, chat):
    with unequal(fault, chat=chat) as url:
        found = conform(Client(Server(url)), **SMALL)
    assert not found.all_equal
    assert {check for check, _ in found.smallest} == {fault}
    assert {check for check, _ in found.refusals} == {"speculation"}
    pair = found.smallest[fault, "greedy"]
    assert pair.same_text
    assert pair.same_logprobs is False
    assert pair.case.settings["max_tokens"] == 1
    if fault == "n":
        assert pair.case.size == 2


def test_what_a_server_does_not_read_is_not_said_to_be_equal():
    with unequal("", lax=True) as url:
        found = conform(Client(Server(url)), **SMALL)
    assert found.all_equal
    assert found.refusals["speculation", "seeded"] == "it does not read the field 'speculate'"
    assert found.refusals["n", "greedy"] == "it was asked for n=4 samples and wrote 1"
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
        assert same.all_equal
        apart = conform(Client(Server(one)), other=Client(Server(two)), **SMALL)
        assert ("other server", "seeded") in apart.smallest
        others = conform(Client(Server(served.url)), other=Client(Server(one)), **SMALL)
    assert {check for check, _ in others.smallest} == {"other server"}


def test_a_server_that_is_none(capsys):
    assert main(["conform", "http://127.0.0.1:9", "-q"]) == 1
    assert "no answer" in capsys.readouterr().err
    assert main(["conform", "http://127.0.0.1:9", "--size", "1"]) == 2


# -- hostile files ---------------------------------------------------------------------------------

# Commands that read people's files, given what is none: one sentence, and memory that is left.


ZERO = "/dev/zero"
READERS = {
    "audit": ["audit", "FILE", "--seed", "7"],
    "oracle": ["oracle", "FILE"],
    "oracle --echo": ["oracle", "http://127.0.0.1:9", "--echo", "FILE"],
    "ab": ["ab", "FILE", "--b", "temperature=0.5"],
    "receipt verify": ["receipt", "verify", "FILE"],
}
FILES = {
    "nothing": b"",
    "blanks": b" \n\t\n",
    "no UTF-8": b"\xff\xfe\x00",
    "no JSON": b"hello",
    "deep JSON": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "null": b"null",
    "a list": b"[]",
    "a text": b'"x"',
    "an object": b"{}",
    "half a line": b'{"prompt": "a", "text": "b", "equals": ',
    "numbers for texts": b'{"prompt": 1, "text": 2, "token_ids": 3, "seed": "x", "equals": 4}',
    "lists of nothing": b'{"prompt": [null], "token_ids": [null], "logprobs": [null], "seed": 1}',
    "ids beyond all": b'{"prompt": "a", "token_ids": [9999999], "logprobs": [-1.0], "seed": 1}',
    "figures beyond all": b'{"prompt": "a", "token_ids": [5], "logprobs": [-1e400], "seed": 1.5}',
    "a long number": b'{"prompt": "a", "text": "b", "seed": ' + b"9" * 5000 + b"}",
    "tests that are none": b'{"tests": [1], "prompts": ["a"]}',
    "tests of lists": b'{"tests": [{"vars": [], "assert": {}}], "prompts": ["a"]}',
    "assertions that are none": b'{"tests": [{"assert": ["x"]}], "prompts": ["a"]}',
    "assertions of lists": b'{"tests": [{"assert": [{"type": [], "value": {}}]}], "prompts": [0]}',
    "a regex that is none": b'{"prompt": "a", "regex": "a{99999999999}"}',
    "a regex that is deep": b'{"prompt": "a", "regex": "' + b"(" * 9000 + b")" * 9000 + b'"}',
}


def told(words, file, tiny_path, capsys):
    """The one sentence of a command that fails, and its exit code."""
    words = [file if word == "FILE" else word for word in words]
    code = main([*words, "-m", str(tiny_path), "-q"])
    out, err = capsys.readouterr()
    sentence = err or out
    assert re.fullmatch(r"[^\n]{9,600}\n", sentence), sentence[:2000]
    assert code in (1, 2)
    return sentence


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("reader", ["audit", "oracle", "ab", "receipt verify"])
def test_a_file_that_is_none_is_one_sentence(tiny_path, tmp_path, capsys, reader, name):
    file = tmp_path / "file.jsonl"
    file.write_bytes(FILES[name])
    told(READERS[reader], str(file), tiny_path, capsys)


@pytest.mark.skipif(not Path(ZERO).exists(), reason="Windows has no such device")
@pytest.mark.parametrize("reader", ["audit", "oracle", "oracle --echo", "ab", "receipt verify"])
def test_a_device_without_end_fills_no_memory(tiny_path, capsys, reader):
    sentence = told(READERS[reader], ZERO, tiny_path, capsys)
    assert "/dev/zero: more than" in sentence
