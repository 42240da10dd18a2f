"""Programs that nobody adapted to this server: curl, an editor, and a shell that starts it."""

import asyncio
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import openai
import pytest
from openai import OpenAI

import cutaway
from cutaway import LLM
from cutaway.engine import Arrival
from cutaway.engine.events import Emission, Speculation
from cutaway.server import event_stream
from cutaway.server.event_stream import Events, EventStream, dumps, dumps_by_parts, event
from support.random_llama import write_tiny_llama
from support.served import TEMPLATE

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
PROMPT = "Größe: »ä«"


def curl(*arguments):
    done = subprocess.run(["curl", "-sS", *arguments], capture_output=True, timeout=60, check=True)
    return done.stdout.decode("utf-8")


# -- curl ----------------------------------------------------------------------------------------


@needs_curl
def test_curl_sends_a_file_and_reads_a_stream(tiny, tiny_alone, tmp_path):
    body = {"prompt": PROMPT, "max_tokens": 9, "seed": 1, "stream": True}
    (tmp_path / "body.json").write_text(json.dumps(body, ensure_ascii=False), "utf-8")
    told = curl(
        "-N", f"{tiny.url}/v1/completions", "-H", "Content-Type: application/json",
        "--data", f"@{tmp_path}/body.json",
    )  # fmt: skip
    *events, done = told.removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    expected = tiny_alone.generate(PROMPT, max_tokens=9, seed=1)
    assert "".join(choice["text"] for choice in choices) == expected.text
    assert choices[-1]["cutaway"]["fingerprint"] == expected.fingerprint


@needs_curl
def test_curl_without_the_header_hears_which_one_to_send(tiny):
    told = json.loads(curl(f"{tiny.url}/v1/completions", "--data", '{"prompt": "ab"}'))
    assert "Content-Type: application/json" in told["error"]["message"]


@needs_curl
def test_curl_sees_the_status_and_the_request_id(tiny):
    told = curl("-i", "-H", "X-Request-Id: mine", f"{tiny.url}/v1/models/none")
    head, _, body = told.partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 404") and "x-request-id: mine" in head.lower()
    assert json.loads(body)["error"]["code"] == "model_not_found"


# -- an editor -----------------------------------------------------------------------------------

CODE = "def fibonacci(n):\n    if n < 2:\n        return n\n"


@pytest.mark.model
def test_an_editor_completes_a_function(smollm2, smollm2_path):
    asked = {"model": "smollm2", "stop": ["\n\n"], "max_tokens": 48, "temperature": 0}
    with OpenAI(base_url=f"{smollm2.url}/v1", api_key="any") as client:
        chunks = list(client.completions.create(prompt=CODE, stream=True, suffix="", **asked))
        choices = [chunk.choices[0] for chunk in chunks]
        text = "".join(choice.text for choice in choices)
        typed = CODE + text[:5]  # the person types what was offered, and asks again
        with client.completions.create(prompt=typed, stream=True, **asked) as again:
            next(iter(again))  # and types on, before that is answered
        last = client.completions.create(prompt=typed, **asked)
    llm, ours = LLM(smollm2_path, progress=False), {k: asked[k] for k in asked if k != "model"}
    expected = llm.generate(CODE, **ours)
    assert text == expected.text and "\n\n" not in text
    assert len(chunks) > 20, "a token at a time"
    assert choices[-1].cutaway["fingerprint"] == expected.fingerprint
    assert last.choices[0].text == llm.generate(typed, **ours).text
    assert last.usage.prompt_tokens_details.cached_tokens % 32 == 0


# -- a process -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("my models ü")
    metadata = {"tokenizer.chat_template": TEMPLATE}
    write_tiny_llama(folder / "my tiny.gguf", context=1 << 16, metadata=metadata)
    return folder


class Process:
    """``cutaway serve``: where it is, and the lines of its log."""

    def __init__(self, popen, lines):
        self.popen, self._lines, self.log = popen, lines, ""
        self.until('"event": "ready"', " ready ")
        self.port = self.log.split("http://", 1)[1].split(":", 1)[1].split('"')[0].split()[0]
        self.url = f"http://127.0.0.1:{self.port}"

    def until(self, *words):
        for line in self._lines:
            self.log += line
            if any(word in line for word in words):
                return
        raise AssertionError(f"it ended before that: {self.log}")

    def end(self, number=signal.SIGTERM):
        """The exit code after a signal; the log is whole then."""
        if self.popen.poll() is None:
            self.popen.send_signal(number)
        with suppress(OSError):  # a terminal that nobody holds any more
            self.log += "".join(self._lines)
        return self.popen.wait(60)

    def events(self):
        return [json.loads(line) for line in self.log.splitlines()]


@contextmanager
def started(folder, *arguments, terminal=False, **environment):
    command = [sys.executable, "-m", "cutaway", "serve", "-m", "my tiny.gguf", "--threads", "1"]
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "CUTAWAY_API_KEY")}
    env["PYTHONPATH"] = str(Path(cutaway.__file__).parents[1])  # from another folder, too
    ours, theirs = pty.openpty() if terminal else os.pipe()
    popen = subprocess.Popen(
        [*command, "--port", "0", *arguments],
        cwd=folder, env={**env, **environment}, stdout=subprocess.PIPE, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    with popen, os.fdopen(ours, encoding="utf-8", errors="strict") as lines:
        try:
            yield Process(popen, lines)
        finally:
            popen.kill()


@pytest.mark.parametrize("grace", ["60", "0"])
def test_sigterm_lets_a_stream_end(folder, grace):
    """With time, it is finished; without, it is told why it is not. Both are whole HTTP."""
    count = {"60": 1500, "0": 60_000}[grace]  # twenty seconds: the signal comes before its end
    asked = {"prompt": PROMPT, "max_tokens": count, "ignore_eos": True, "stream": True}
    asked |= {"user": "someone"}
    with started(folder, "--log", "json", "--grace", grace, NO_COLOR="1") as process:
        with httpx.stream("POST", f"{process.url}/v1/completions", json=asked, timeout=60) as got:
            lines = got.iter_lines()
            assert "my tiny" in next(lines)
            process.popen.send_signal(signal.SIGTERM)
            data = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert process.end() == 0
        assert process.popen.stdout.read() == b"", "standard output is nobody's"
    if grace == "0":
        assert "closed before" in data[-1]["error"]["message"]
    else:
        assert data[-1]["choices"][0]["finish_reason"] == "length"
    assert PROMPT not in process.log
    ready, *_, request = (e for e in process.events() if e["event"] in ("ready", "request"))
    assert ready["models"] == ["my tiny"], "and not where its file lies"
    assert ready["lessons"] == f"{ready['url']}/lessons"
    assert ready["class"] == f"{ready['url']}/class"
    assert (request["user"], request["status"]) == ("someone", 200)
    assert request["finish_reasons"] == [{"0": "error", "60": "max_tokens"}[grace]]
    assert (request["completion_tokens"] == 1500) == (grace == "60")


def test_prompts_are_in_the_log_of_who_asks_for_them(folder):
    with started(folder, "--log", "json", "--log-prompts", "--max-tokens", "2") as process:
        httpx.post(f"{process.url}/v1/completions", json={"prompt": [PROMPT, [1, 9]]})
        messages = [{"role": "user", "content": "ab"}]
        chats = ["/v1/chat/completions", "/v1/messages", "/api/chat"]
        for path in chats:
            most = {} if path == "/api/chat" else {"max_tokens": 2}
            got = httpx.post(process.url + path, json={"messages": messages, **most})
            assert got.status_code == 200, path
        assert process.end(signal.SIGINT) == 130
    texts, *said = (event["prompt"] for event in process.events() if event["event"] == "request")
    assert texts == [PROMPT, [1, 9]]
    assert said == [messages] * len(chats)


@pytest.mark.parametrize(  # a log without a terminal, and so without colours, is in every run
    ("no_color", "coloured"), [pytest.param("1", False, marks=pytest.mark.slow), ("", True)]
)
def test_a_terminal_is_coloured_unless_somebody_minds(folder, no_color, coloured):
    with started(folder, terminal=True, NO_COLOR=no_color, TERM="xterm") as process:
        httpx.post(f"{process.url}/v1/completions", json={"prompt": PROMPT, "max_tokens": 1})
        process.until(" request ")
        assert process.end() == 0
    request = next(line for line in process.log.splitlines() if " request " in line)
    assert ("\x1b[" in request) == coloured
    assert PROMPT not in process.log


@pytest.mark.parametrize("key", [None, "secret"])
def test_who_opens_the_door_to_everybody_is_told(folder, key):
    with started(
        folder, "--host", "0.0.0.0", "--log", "json", **{"CUTAWAY_API_KEY": key} if key else {}
    ) as process:
        with OpenAI(base_url=f"{process.url}/v1", api_key="wrong", max_retries=0) as client:
            if key:
                with pytest.raises(openai.AuthenticationError):
                    client.models.list()
                client.api_key = key
            assert client.models.list().data[0].id == "my tiny"
        assert process.end() == 0
    warned = [e for e in process.events() if e["event"] == "open" and e["level"] == "warning"]
    assert len(warned) == (key is None)
    assert "secret" not in process.log
    for warning in warned:
        assert "--api-key" in warning["message"]


# -- events ----------------------------------------------------------------------------------------

# What is sent is one line, for every client that reads line by line.


LINE_ENDS = [c for c in map(chr, range(sys.maxunicode + 1)) if len(f"a{c}b".splitlines()) > 1]


def test_no_character_of_a_text_ends_the_line():
    """Unlike JSON, str.splitlines, and with it httpx's iter_lines, ends lines at U+2028, too."""
    document = {"text": f"é{''.join(LINE_ENDS)}é"}
    assert {"\n", "\x85", "\u2028"} <= {*LINE_ENDS}
    (line,) = dumps(document).decode().splitlines()
    assert json.loads(line) == document
    sent, empty = event(document).decode().splitlines()
    assert json.loads(sent.removeprefix("data: ")) == document
    assert empty == ""


def nested(depth):
    return {"é\u2028": nested(depth - 1), "list": [nested(depth - 2), None]} if depth > 0 else {}


@pytest.mark.parametrize(
    "document",
    [
        {}, [], None, 1.5, "a\u2028é", {"a": []}, {"a": {}, "b": [{}]}, {5: 1, "b": None},
        [*range(16)], [*range(17)], [{"a": i} for i in range(128)], [{"a": i} for i in range(300)],
        {"choices": [{"top": [None, {"a": -1.5}] * 20, "text": "b"}, {"top": [], "text": ""}]},
        nested(9), [[1, 2], [3]], [{}, 1, "a"],
    ],
)  # fmt: skip
def test_a_large_document_is_the_same_by_parts(document):
    assert dumps_by_parts(document) == dumps(document)


def test_parts_that_were_written_before_are_taken_as_they_are():
    choices = [{"index": i, "text": "\u2028"} for i in range(300)]
    written = {"choices": [*map(dumps, choices)], "usage": 1}
    assert dumps_by_parts(written) == dumps({"choices": choices, "usage": 1})


def test_a_large_document_is_written_some_at_a_time(monkeypatch):
    """Whoever else runs in the process waits for one part."""
    sizes, write = [], dumps

    def counted(value):
        sizes.append(len(data := write(value)))
        return data

    monkeypatch.setattr(event_stream, "dumps", counted)
    token = {"token": "a", "top_logprobs": [{"token": "b", "logprob": -1.0}] * 20}
    whole = dumps_by_parts({"choices": [{"logprobs": {"content": [token] * 1000}}] * 2})
    assert len(whole) > 1_000_000 and max(sizes) < 20_000


class Job:
    """Two turns of a text."""

    def __init__(self, *turns):
        self._turns = [*turns, []]

    async def read(self):
        return self._turns.pop(0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Slow(Events):
    """Whose first event takes long; notes whether it was written beside the event loop."""

    def __init__(self):
        self.beside = []

    def begin(self):
        return ()

    def progress(self, index, event):
        self.beside.append(asyncio._get_running_loop() is None)
        for _ in range(event):
            pass
        return (b"a",)

    def end(self):
        self.beside.append(asyncio._get_running_loop() is None)
        return ()


def test_what_takes_long_is_written_beside_the_event_loop():
    """And what is known to be short on it, which is sooner."""
    turns = [
        [Arrival(0, Emission(event, 0.0, Speculation()))] * count
        for event, count in ((1_000_000, 1), (1, 1), (1, 1), (1, 100_000))
    ]
    slow = Slow()

    async def main():
        stream = EventStream(Job(*turns), slow, keep_alive=20)
        return [part async for part in stream._parts()]

    assert len(asyncio.run(main())[3]) == 100_000
    assert slow.beside == [True, True, False, *[True] * 100_000, True]
