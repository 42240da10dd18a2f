"""A tiny model, commands in this process, and ``cutaway generate --input`` on the model."""

import io
import json
import os
import sys
from types import SimpleNamespace

import pytest

from cutaway import LLM
from cutaway.cli.main import main
from support.bulk_runs import records
from support.random_llama import write_tiny_llama

TEMPLATE = "{% for m in messages %}{{ m.content }}</s>{% endfor %}"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    return str(write_tiny_llama(path, metadata={"tokenizer.chat_template": TEMPLATE}))


@pytest.fixture(scope="module")
def llm(tiny):
    return LLM(tiny)


@pytest.fixture
def in_process(monkeypatch, capfdbinary):
    """Run a command here, where no process is what is tested: as ``subprocess.run`` tells it."""

    def run(*args, stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
        try:
            code = main([os.fsdecode(arg) for arg in args])
        except SystemExit as error:  # argparse's
            code = error.code
        printed = capfdbinary.readouterr()
        return SimpleNamespace(returncode=code, stdout=printed.out, stderr=printed.err)

    return run


@pytest.fixture
def bulk(tiny, tmp_path, capfd):
    """Run the command in this process on lines; (exit code, records, what it said)."""

    def run(lines, *args, output="out.jsonl", read=True):
        if lines is not None:
            texts = [
                line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines
            ]
            (tmp_path / "in.jsonl").write_bytes(b"".join(text + b"\n" for text in texts))
        files = ["--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / output)]
        code = main(["generate", "-m", tiny, *files, *args])
        printed = capfd.readouterr()
        assert printed.out == ""
        return code, records(tmp_path / output) if read else None, printed.err

    return run
