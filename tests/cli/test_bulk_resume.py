"""``cutaway generate --input``, interrupted: every line is answered once, whatever happens."""

import io
import json
import random
import signal
import subprocess
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway import InputError
from cutaway.cli.bulk import Lines, Records
from support.bulk_runs import PYTHON, by_line, essence, records


def test_lines_with_a_record_are_not_repeated(bulk, tmp_path):
    code, first, _ = bulk(["ab", "b", "a", "aa"], "--max-tokens", "3")
    kept = [record for record in first if record["line"] != 2]
    texts = "".join(json.dumps(record) + "\n" for record in kept)
    (tmp_path / "out.jsonl").write_text(texts)
    code, second, said = bulk(None, "--max-tokens", "3")
    assert code == 0 and "1 line in" in said
    assert said.startswith("3 of 4 lines have their record already\n")
    assert second[:3] == kept and second[3]["line"] == 2
    before = (tmp_path / "out.jsonl").stat()
    code, third, said = bulk(None, "--max-tokens", "3")
    assert (code, third, said) == (0, second, "4 of 4 lines have their record already\n")
    assert bulk(None, "--max-tokens", "3", "-q")[2] == ""
    assert (tmp_path / "out.jsonl").stat().st_mtime_ns == before.st_mtime_ns


def test_a_record_cut_off_anywhere_is_written_again(bulk, tmp_path):
    path, args = tmp_path / "out.jsonl", ["--max-tokens", "1", "--seed", "1"]
    _, whole, _ = bulk(["ab", "b"], *args)
    first, second = path.read_bytes().splitlines(keepends=True)
    for cut in [*range(1, 120, 7), *range(85, 110), len(second) - 1]:
        path.write_bytes(first + second[:cut])
        code, found, _ = bulk(None, *args)
        assert code == 0
        assert [essence(r) for r in found] == [essence(r) for r in whole]


NOT_OURS = [
    b"hello", b"hello\n", b"{}\n", b"[]\n", b'"ab"\n', b'{"line": 1}\n', b"\n", b'{"line": true}\n',
    b'{"line": 1, "request_sha256": "zz', b'{"line": 77, "', b'{"line": 0, "', b'{"line": ab',
    b'{"line": 1, "x', b"\0" * 10, b"[" * 100_000 + b"\n", b'{"id', b'{"line": 1 ',
]  # fmt: skip


@pytest.mark.parametrize("content", NOT_OURS, ids=range(len(NOT_OURS)))
@pytest.mark.parametrize("begun", [False, True])
def test_a_file_of_another_kind_is_refused_untouched(bulk, tmp_path, content, begun):
    path = tmp_path / "out.jsonl"
    if begun:
        bulk(["ab", "b"], "--max-tokens", "1")
        content = path.read_bytes().splitlines(keepends=True)[0] + content
    path.write_bytes(content)
    code, said = bulk(["ab", "b"], "--max-tokens", "1", read=False)[::2]
    assert code == 2
    assert not (begun and "line 1 " in said)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("lines", "args"),
    [(["ab", "c"], []), (["b", "ab"], []), (["ab"], []), ([], []), (["", "ab", "b"], []),
     (None, ["--seed", "2"]), (None, ["--top-k", "1"])],
)  # fmt: skip
def test_records_of_another_request_are_refused(bulk, tmp_path, lines, args):
    bulk(["ab", "b"], "--seed", "1", "--max-tokens", "1")
    before = (tmp_path / "out.jsonl").read_bytes()
    code, _, said = bulk(lines, *(args or ["--seed", "1"]), "--max-tokens", "1")
    assert code == 2
    assert "is a record of another input, model or options" in said
    assert (tmp_path / "out.jsonl").read_bytes() == before


def test_a_second_record_of_a_line_is_refused(bulk, tmp_path):
    bulk(["ab"], "--max-tokens", "1")
    path = tmp_path / "out.jsonl"
    path.write_bytes(path.read_bytes() * 2)
    assert bulk(None, "--max-tokens", "1")[0] == 2


@given(
    lines=st.lists(st.sampled_from([b"", b" ", b"a", b"bb", b"\xff"]), max_size=6),
    order=st.randoms(), cut=st.integers(0, 400), ends=st.booleans(),
)  # fmt: skip
def test_what_is_left_is_what_has_no_whole_record(tmp_path_factory, lines, order, cut, ends):
    path = tmp_path_factory.mktemp("r") / "out"
    text = b"\n".join(lines) + b"\n" * ends
    real = [n for n, line in enumerate(text.split(b"\n"), 1) if line.strip()]
    order.shuffle(real)
    asked = Lines(io.BytesIO(text), "salt")
    assert (list(asked.left()), asked.count) == (sorted(real), len(real))
    with Records(str(path), asked) as out:
        for number in real:
            out.write(asked.head(number) | {"error": None if number % 2 else "bad"})
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    again = Lines(io.BytesIO(text), "salt")
    with Records(str(path), again):
        pass
    kept = whole[:cut].count(b"\n")
    assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:kept])
    assert list(again.left()) == sorted(real[kept:])
    assert (again.done, again.failed) == (kept, sum(n % 2 == 0 for n in real[:kept]))


def test_two_runs_do_not_write_one_file(tmp_path):
    asked, path = Lines(io.BytesIO(b"a\n"), ""), str(tmp_path / "out")
    with Records(path, asked), pytest.raises(InputError, match="another process writes to it"):
        Records(path, asked)


# -- interruptions ------------------------------------------------------------------------------


def many_lines(count):
    return [{"prompt": "ab" * (i % 5 + 1), "id": i, "max_tokens": 5 + i % 90} for i in range(count)]


def start(tiny, tmp_path):
    files = ["--input", tmp_path / "in", "--output", tmp_path / "out"]
    return subprocess.Popen(
        [*PYTHON, "-m", tiny, *files, "--seed", "5", "--ignore-eos"], stderr=subprocess.PIPE
    )


def size(path):
    return path.stat().st_size if path.exists() else 0


def grown(child, path, more):
    """Wait until the file is bigger, or the child has ended."""
    wanted = size(path) + more
    while size(path) < wanted and child.poll() is None:
        time.sleep(0.0005)


def test_kill_9_at_any_moment_loses_and_repeats_no_line(tiny, llm, tmp_path):
    lines, luck, kills = many_lines(100), random.Random(1), 0
    (tmp_path / "in").write_text("".join(json.dumps(line) + "\n" for line in lines))
    while True:
        child = start(tiny, tmp_path)
        grown(child, tmp_path / "out", luck.randrange(1, 80_000))
        child.kill()
        _, said = child.communicate()
        if child.returncode == 0:
            break
        assert child.returncode == -signal.SIGKILL, said
        kills += 1
    assert kills >= 3
    of = by_line(records(tmp_path / "out"))
    assert set(of) == set(range(1, len(lines) + 1))
    for number, line in enumerate(lines, 1):
        own = {"max_tokens": line["max_tokens"], "seed": 5, "ignore_eos": True}
        alone = json.loads(json.dumps(llm.generate(line["prompt"], **own).to_dict()))
        assert of[number]["id"] == line["id"]
        assert essence(of[number]) == essence(alone)


def test_ctrl_c_keeps_what_is_written_and_says_how_to_resume(tiny, tmp_path):
    lines = many_lines(2000)
    (tmp_path / "in").write_text("".join(json.dumps(line) + "\n" for line in lines))
    child = start(tiny, tmp_path)
    grown(child, tmp_path / "out", 1)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    done = len(by_line(records(tmp_path / "out")))
    assert child.returncode == 130
    assert (
        f"interrupted: {done} of 2000 lines are done in {tmp_path / 'out'}; run the"
        in said.decode()
    )
    assert f"{done} line" in said.decode()
    assert b"Traceback" not in said and 0 < done < 2000
