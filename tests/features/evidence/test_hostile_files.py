"""Commands that read people's files, given what is none: one sentence, and memory that is left."""

import re
from pathlib import Path

import pytest

from cutaway.cli.main import main

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
