"""Commands in this process, a tiny model, and ``cutaway generate --input`` on the model."""

import io
import json
import os
import sys
from typing import NamedTuple

import pytest

from cutaway import LLM
from cutaway.cli.main import main
from support.bulk_runs import records
from support.random_llama import write_tiny_llama
from support.terminals import Terminal

TEMPLATE = "{% for m in messages %}{{ m.content }}</s>{% endfor %}"


class Said(NamedTuple):
    """What a command did: its exit code, and what it wrote to both streams."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    return str(write_tiny_llama(path, metadata={"tokenizer.chat_template": TEMPLATE}))


@pytest.fixture(scope="module")
def llm(tiny):
    return LLM(tiny)


@pytest.fixture
def cutaway(monkeypatch, capfd):
    """Run a command in this process, where no process is what is tested."""

    def run(*args, stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
        words = [os.fsdecode(arg) if isinstance(arg, bytes) else str(arg) for arg in args]
        return Said(main(words), *capfd.readouterr())

    return run


@pytest.fixture
def printed(cutaway):
    """What a command prints that succeeds, and says nothing else."""

    def run(*args, **more):
        code, out, err = cutaway(*args, **more)
        assert (code, err) == (0, "")
        return out

    return run


@pytest.fixture
def refused(cutaway):
    """The one sentence in which a command refuses its arguments."""

    def run(*args, **more):
        code, out, err = cutaway(*args, **more)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert err.startswith("cutaway: error: ")
        return err

    return run


@pytest.fixture
def in_ascii(monkeypatch):
    """The bytes that a command writes where standard output has nothing but ASCII."""

    def run(*args):
        out = io.TextIOWrapper(io.BytesIO(), "ascii")
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", out)
            assert main([*map(str, args)]) == 0
        return out.buffer.getvalue()

    return run


@pytest.fixture
def terminal():
    """Begin a command on a terminal; what still runs at the end of the test is killed."""
    begun = []

    def begin(*args, **how):
        begun.append(Terminal(*args, **how))
        return begun[-1]

    yield begin
    for one in begun:
        one.close()


@pytest.fixture
def bulk(tiny, tmp_path, cutaway):
    """Run the command on lines; (exit code, records, what it said)."""

    def run(lines, *args, output="out.jsonl", read=True):
        if lines is not None:
            texts = [
                line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines
            ]
            (tmp_path / "in.jsonl").write_bytes(b"".join(text + b"\n" for text in texts))
        files = ["--input", tmp_path / "in.jsonl", "--output", tmp_path / output]
        code, out, err = cutaway("generate", "-m", tiny, *files, *args)
        assert out == ""
        return code, records(tmp_path / output) if read else None, err

    return run
