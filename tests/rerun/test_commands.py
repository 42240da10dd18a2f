"""The commands as a person runs them: what is printed where, exit codes, Ctrl-C."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO, TextIOWrapper
from pathlib import Path
from threading import Thread
from xml.etree import ElementTree

import pytest

from cutaway import LLM
from cutaway.cli.main import main
from cutaway.errors import CutawayError
from cutaway.rerun import asking, resume_at
from cutaway.rerun.asking import RefusedError, Server, UnansweredError
from cutaway.trace import Trace
from cutaway.trace.figures import percent, probability
from support.cut_traces import cut_at

PYTHON = [sys.executable, "-m", "cutaway"]
HUMAN = "a harbour, an old ship and a bad map; " * 4


@pytest.fixture(scope="module")
def model(tiny, folder):
    return "-m", str(folder / "tiny.gguf")


@pytest.fixture
def run(capsys, monkeypatch):
    """The command in this process: its exit code, standard output and standard error."""

    def run(*args, input=""):
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(input.encode()), encoding="utf-8"))
        capsys.readouterr()
        try:
            code = main([str(arg) for arg in args])
        except SystemExit as leaving:
            code = leaving.code
        return code, *capsys.readouterr()

    return run


def test_replay_says_that_nothing_differs(run, model, trace):
    now = 1 if trace.head.threads > 1 else 2
    code, out, err = run("trace", "replay", trace.path, *model, "--threads", now)
    assert (code, err) == (0, "")
    assert out == (
        f"threads: {trace.head.threads} on record, {now} now\n"
        f"24 steps, no bit differs; fingerprint {trace.end.fingerprint}\n"
    )


def test_replay_says_what_differs_and_where(run, model, trace, tmp_path):
    right = f"{trace.steps[7].fingerprint:016x}"
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text(trace.path.read_text().replace(right, "0" * 16))
    code, out, _ = run("trace", "replay", wrong, *model, "--speculate", "ngram")
    assert code == 1
    assert out.splitlines() == [
        "step 8 of 24 differs:",
        f"  fingerprint  {'0' * 16} on record, {right} now",
    ]
    code, out, _ = run("trace", "replay", wrong, *model, "--json")
    document = json.loads(out)
    assert (code, document["same"], document["difference"]["step"]) == (1, False, 7)


def test_replay_with_other_weights_is_refused_in_a_sentence(run, other, folder, trace):
    code, out, err = run("trace", "replay", trace.path, "-m", folder / "other.gguf")
    assert (code, out) == (2, "")
    assert err.startswith("cutaway: error: this is not what the trace was written with (weights: ")
    assert err.count("\n") == 1
    assert run("trace", "replay", trace.path, "-m", folder / "other.gguf", "--anyway")[0] == 1


def test_branch_writes_the_text_and_a_trace(run, model, trace, tmp_path):
    fork = tmp_path / "fork.jsonl"
    args = ("trace", "branch", trace.path, *model, "--at", "10")
    code, out, err = run(*args, "--token", "b", "--trace", fork)
    written = Trace.read(fork)
    assert code == 0
    assert out == written.text
    assert written.head.parent.step == 9
    fork_line, figures, file_line = err.splitlines()[-3:]
    old, new = trace.steps[9], written.steps[9]
    shares = [percent(probability(step.logprob)) for step in (old, new)]
    assert fork_line.startswith("[fork at step 10, after '")
    assert fork_line.endswith(f"{shares[0]} → 'b' {shares[1]}]")
    assert figures.endswith("seed 3]")
    assert file_line == f"[trace: {fork}]"
    code, out, _ = run(*args, "--id", "261", "--json", "-q")
    assert json.loads(out)["token_ids"] == list(written.output_token_ids)
    code, _, err = run(*args, "--token", "b", "--trace", fork)
    assert (code, "exists already" in err) == (2, True)
    assert Trace.read(fork).sha256 == written.sha256


def test_a_token_that_is_none_shows_what_it_is(run, model, trace):
    code, out, err = run("trace", "branch", trace.path, *model, "--at", "9", "--token", "abb")
    assert (code, out) == (2, "")
    assert "'abb' is not one token but 3" in err


def test_rescore_has_a_line_per_token(run, model, trace, tmp_path):
    again = tmp_path / "again.jsonl"
    code, out, err = run("trace", "rescore", trace.path, *model, "--top-k", "1", "--trace", again)
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].split()[:3] == ["step", "token", "bits"]
    assert [int(line.split()[0]) for line in lines[1:25]] == list(range(1, 25))
    assert lines[-1].startswith("perplexity ")
    assert any(line.startswith("  instead   the token that the same luck") for line in lines)
    assert Trace.read(again).output_token_ids == trace.output_token_ids
    document = json.loads(run("trace", "rescore", trace.path, *model, "--json")[1])
    assert document["agreement"] == pytest.approx(22 / 24, abs=2 / 24)


def test_diff_with_a_model_adds_the_curves(run, model, trace, tmp_path):
    fork = tmp_path / "fork.jsonl"
    run("trace", "branch", trace.path, *model, "--at", "10", "--token", "b", "--trace", fork)
    alone = run("trace", "diff", trace.path, fork)[1]
    code, out, _ = run("trace", "diff", trace.path, fork, *model)
    assert code == 0
    assert out.startswith(alone)
    curves = out[len(alone) :].split("\n")
    assert curves[1].split() == ["after", "forced", "cost", "free"]
    assert "  cost     how many bits more the original's token costs after the mistake" in curves
    assert [line.split()[0] for line in curves[2:7]] == ["1", "2", "3-4", "5-8", "9-14"]
    document = json.loads(run("trace", "diff", trace.path, fork, *model, "--json")[1])
    assert document["fork"]["at"] == document["divergence"]["index"] == 9
    assert "fork" not in json.loads(run("trace", "diff", trace.path, fork, "--json")[1])


def test_no_curves_where_the_original_ends_at_the_mistake(run, model, trace, tmp_path):
    short = tmp_path / "short.jsonl"
    last = ("--at", "10", "--token", "b", "--max-tokens", "10")
    run("trace", "branch", trace.path, *model, *last, "--trace", short)
    files = ("trace", "diff", short, trace.path)
    assert run(*files, *model) == run(*files)


def test_snowball_prints_each_mistake_and_the_curve(run, model, tmp_path):
    common = ("snowball", "ab", *model, "--max-tokens", "20", "--seed", "5")
    args = (*common, "--errors", "3")
    code, out, err = run(*args, "--svg", tmp_path / "s.svg")
    assert (code, err) == (0, "")
    lines = out.split("\n")
    assert "20 tokens, seed 5, 3 mistakes" in lines
    assert [line.split()[0] for line in lines[4:7]] == ["1", "4", "7"]
    for name in ("at", "bits", "rejoins", "after", "forced", "cost", "free", "parted"):
        assert any(line.startswith(f"  {name} ") for line in lines)
    assert "█" in out
    picture = ElementTree.parse(tmp_path / "s.svg").getroot()
    assert len(picture.findall(".//{*}polyline")) == 2
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    plain = subprocess.run([*PYTHON, *args], capture_output=True, env=env, timeout=120, check=True)
    assert b"#" in plain.stdout
    document = json.loads(run(*args, "--json")[1])
    assert [fork["at"] for fork in document["forks"]] == [0, 3, 6]
    assert len(document["mean"]["forced"]) == 13
    named = json.loads(run(*common, "--json", "--at", "7,4")[1])
    assert named["forks"] == document["forks"][1:]


def test_exposure_prints_a_line_per_stretch(run, model, tmp_path):
    (tmp_path / "human.txt").write_text(HUMAN)
    options = ("--before", "9", "--tokens", "12", "--points", "4", *model)
    args = ("exposure", tmp_path / "human.txt", *options)
    code, out, err = run(*args, "--svg", tmp_path / "e.svg")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "4 cuts, 9 tokens before and 12 after each"
    assert [line.split()[0] for line in lines[2:8]] == ["after", "1", "2", "3-4", "5-8", "9-12"]
    for name in ("after", "reads", "writes", "gap", "entropy", "drift"):
        assert any(line.startswith(f"  {name} ") for line in lines[8:])
    assert len(ElementTree.parse(tmp_path / "e.svg").getroot().findall(".//{*}polyline")) == 3
    assert run("exposure", "-", *options, input=HUMAN)[1] == out
    document = json.loads(run(*args, "--json")[1])
    assert len(document["curves"]["gap"]) == 4
    assert document["positions"] == [[1, 1], [2, 2], [3, 4], [5, 8], [9, 12]]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("exposure", "/nowhere.txt"), "/nowhere.txt cannot be read: No such file"),
        (("trace", "replay", "/nowhere.jsonl"), "/nowhere.jsonl: the trace cannot be read"),
        (("snowball", "ab", "--errors", "0"), "errors must be between 1 and 32"),
        (("snowball", "ab", "--temperature", "x"), "--temperature must be a number, not 'x'"),
        (("snowball", "ab", "--errors", "3", "--at", "4"), "not allowed with"),
        (("snowball", "ab", "--at", "4,x"), "steps are whole numbers, from 1 on, not 'x'"),
        (("snowball", "ab", "--at", "4,64"), "--at must be 1 to 63, not 64"),
        (("snowball", "ab", "--svg", "/nowhere/s.svg"), "--svg: /nowhere/s.svg cannot be written"),
        (("exposure", "-", "--svg", "/"), "--svg: / cannot be written"),
    ],
)
def test_bad_input_is_one_sentence(run, model, args, sentence):
    code, out, err = run(*args, *model)
    assert (code, out) == (2, "")
    assert sentence in err


def test_ctrl_c_ends_it_without_a_traceback(model):
    args = ("exposure", "-", *model, "--points", "20000", "--tokens", "50")  # minutes of work
    with subprocess.Popen(
        [*PYTHON, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdin.write(HUMAN.encode() * 2000)  # more than a pipe holds: it is being read
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")


# -- asking ----------------------------------------------------------------------------------------

# What commands ask servers over HTTP: a key goes to the server that was named, and no further.


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
