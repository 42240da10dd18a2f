"""A writer of traces: readable after every step, nothing overwritten, nothing after a cut line."""

import json
import os
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.errors import CutawayError, InputError
from cutaway.trace import Token, Trace, TraceBuffer, TraceWriter
from cutaway.trace.write import numbered_path, token_line
from support.made_traces import HEADS, TEXTS, runs, tell, write


@settings(max_examples=30)
@given(run=runs(), ending=st.sampled_from(["", ".gz"]))
def test_the_file_can_be_read_after_every_step(run, ending, tmp_path):
    head, steps, _ = run
    path = tmp_path / f"t{ending}"
    path.unlink(missing_ok=True)
    with TraceWriter(path, head, tell) as writer:
        for count, step in enumerate(steps):
            assert len(Trace.read(path).steps) == count
            writer.add(step)
        assert len(Trace.read(path).steps) == len(steps)
        assert not writer.closed
    assert writer.closed
    assert Trace.read(path).end is None


@pytest.fixture(scope="module")
def run():
    return some(runs().filter(lambda run: len(run[1]) > 1 and run[2]))


@pytest.fixture(scope="module")
def head(run):
    return run[0]


def some(strategy):
    """The same one every time."""
    found = []

    @settings(max_examples=20, derandomize=True, database=None)
    @given(strategy)
    def take(value):
        found.append(value)

    take()
    return found[-1]


def test_a_file_that_is_not_empty_is_left_alone(head, tmp_path):
    path = tmp_path / "t"
    path.write_bytes(b"mine")
    with pytest.raises(InputError, match="exists already; name another file, or remove it"):
        TraceWriter(path, head, tell)
    assert path.read_bytes() == b"mine"


def test_an_empty_file_may_be_written_to(head, tmp_path):
    path = tmp_path / "t"
    path.touch()
    TraceWriter(path, head, tell).close()
    assert Trace.read(path).head == head


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", "trace must be the name of a file, not ''"),
        (b"t", "trace must be the name of a file, not b't'"),
        (7, "trace must be the name of a file, not 7"),
        (".", "is a folder; name a file in it"),
        ("no/such/t", "no file can be made in no/such"),
        ("a\0b", "cannot be written"),
    ],
)
def test_names_that_cannot_be_written_to(name, sentence, head, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=sentence):
        TraceWriter(name, head, tell)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full")
@pytest.mark.parametrize("name", ["/dev/full", "full.gz"])
def test_a_full_disk_is_said_and_ends_the_trace(name, head, tmp_path):
    path = tmp_path / name
    if not path.exists():
        path.symlink_to("/dev/full")
    with pytest.raises(CutawayError, match=r"cannot be written: No space left"):
        TraceWriter(path, head, tell)


def test_nothing_follows_a_line_that_was_cut(run, tmp_path, monkeypatch):
    """As when Ctrl-C comes between the halves of a write."""
    head, steps, end = run
    path, really = tmp_path / "t", os.write
    writer = TraceWriter(path, head, tell)

    def half(file, data):
        really(file, bytes(data[: len(data) // 2]))
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(KeyboardInterrupt):
        writer.add(steps[0])
    monkeypatch.undo()
    cut = path.read_bytes()
    writer.add(steps[1])
    writer.end(end)
    assert path.read_bytes() == cut
    assert Trace.read(path).steps == ()


def test_a_short_write_is_continued(run, tmp_path, monkeypatch):
    really = os.write
    write(tmp_path / "whole", run)
    monkeypatch.setattr(os, "write", lambda file, data: really(file, bytes(data[:7])))
    write(tmp_path / "parts", run)
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()


def test_what_json_cannot_say_is_an_error_and_nothing_is_written(run, tmp_path):
    head, (step, *_), _ = run
    with TraceWriter(tmp_path / "t", head, tell) as writer:
        wrong = step._replace(observed=step.observed._replace(entropy=float("nan")))
        with pytest.raises(CutawayError, match="not finite"):
            writer.add(wrong)
    assert Trace.read(tmp_path / "t").steps == ()


def test_a_step_without_an_observation_is_an_error(run, tmp_path):
    head, (step, *_), _ = run
    with TraceWriter(tmp_path / "t", head, tell) as writer, pytest.raises(ValueError, match="obs"):
        writer.add(step._replace(observed=None))


def test_a_trace_in_memory_is_written_where_it_is_taken(run):
    """On a server's event loop, where steps arrive, it took a second."""
    head, steps, end = run
    asked = []
    buffer = TraceBuffer(head, lambda token_id: asked.append(token_id) or tell(token_id))
    for step in steps:
        buffer.add(step)
    assert not asked
    records = buffer.take()
    assert asked and [each["index"] for each in records if each["kind"] == "step"] == [
        step.index for step in steps
    ]
    buffer.end(end)
    assert buffer.take() == [end.to_json()] and buffer.take() == []


@given(HEADS)
def test_a_token_has_one_line_before_its_use(head):
    asked = []
    reader, sink = os.pipe()
    try:
        TraceWriter(f"/dev/fd/{sink}", head, lambda i: asked.append(i) or tell(i)).close()
        told = os.read(reader, 2**16).count(b'"kind":"tok"')
    finally:
        os.close(reader)
        os.close(sink)
    assert sorted({*head.prompt_token_ids, *head.tracked_ids, *head.end_ids}) == sorted(asked)
    assert told == len(asked)


TOKENS = st.builds(
    Token, st.integers(0, 2**40), st.binary() | TEXTS.map(str.encode),
    st.none() | TEXTS.filter(bool),
)  # fmt: skip


@given(TOKENS)
def test_a_tokens_line_is_its_record(token):
    line = token_line(token)
    form = json.dumps(token.to_json(), ensure_ascii=False, separators=(",", ":"))
    assert line == f"{form}\n".encode()
    assert Token.from_json(json.loads(line)) == token


@pytest.mark.parametrize(
    ("path", "second"),
    [
        ("run.jsonl", "run.2.jsonl"),
        ("a.b/run.jsonl.gz", "a.b/run.2.jsonl.gz"),
        ("run", "run.2"),
        ("run.gz", "run.2.gz"),
        ("a.b/run", "a.b/run.2"),
        ("run.v1.jsonl", "run.v1.2.jsonl"),
    ],
)
def test_the_names_of_several_texts(path, second):
    assert str(numbered_path(path, 1)) == path
    assert str(numbered_path(path, 2)) == second
