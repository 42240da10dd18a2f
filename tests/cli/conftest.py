"""A tiny model, commands, and ``cutaway generate --input`` on the model."""

import json

import pytest

from cutaway import LLM
from fixtures.commands import *  # noqa: F403
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
