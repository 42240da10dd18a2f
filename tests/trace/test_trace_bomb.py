"""Files made to exhaust memory: refused in one sentence, in a little of it."""

import gzip
import tracemalloc
from io import BytesIO

import pytest

from cutaway.cli.main import main
from cutaway.errors import FormatError
from cutaway.trace import Trace, read
from support.trace_by_hand import made_bytes, made_step

MIB = 1 << 20
RUN = made_bytes([made_step(0, 1)])


@pytest.fixture(scope="module")
def bomb(tmp_path_factory):
    """300 MiB of spaces in 300 kB."""
    path = tmp_path_factory.mktemp("bomb") / "bomb.jsonl.gz"
    with gzip.open(path, "wb", 9) as file:
        for _ in range(300):
            file.write(b" " * MIB)
    return path


def test_a_line_that_never_ends_takes_little_memory(bomb):
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=r"bomb.jsonl.gz, line 1: it is longer than 16 MiB"):
            Trace.read(bomb)
        assert tracemalloc.get_traced_memory()[1] < 4 * read.LONGEST_LINE
    finally:
        tracemalloc.stop()


def test_the_command_refuses_it_in_one_sentence(bomb, capsys):
    assert main(["trace", "why", str(bomb)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"cutaway: error: {bomb}, line 1: it is longer than 16 MiB")
    assert error.count("\n") == 1


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_many_lines_are_bounded_too(pack, monkeypatch):
    """Whatever the lines say: here each is a token of its own."""
    monkeypatch.setattr(read, "MOST_BYTES", MIB)
    head, rest = made_bytes([], None, vocab_size=10**9).split(b"\n", 1)
    toks = b"".join(b'{"kind":"tok","id":%d,"text":"a"}\n' % i for i in range(10, 60_000))
    with pytest.raises(FormatError, match="the file holds more than 1 MiB of text"):
        Trace.parse(pack(head + b"\n" + rest + toks))


@pytest.mark.parametrize("size", [1, 2, 7, 1 << 20])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_it_does_not_matter_in_which_pieces_it_comes(pack, size, monkeypatch):
    monkeypatch.setattr(read, "PIECE", size)
    raw = pack(RUN + b'{"cut')
    seen = []
    lines = list(read.whole_lines(BytesIO(raw), seen.append))
    assert lines == RUN.split(b"\n")[:-1]
    assert b"".join(seen) == raw
