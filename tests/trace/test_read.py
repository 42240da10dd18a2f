"""A trace on disk: what was written is read, a cut file as far as it goes, a bad one is refused."""

import gzip
import json
import tracemalloc
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.cli.main import main
from cutaway.errors import FormatError, InputError
from cutaway.sampling import Stage
from cutaway.trace import Trace, read
from cutaway.trace.check import VERSION
from support.damage import damage, put_odd_value
from support.examples import few_or_many
from support.made_traces import records, runs, write
from support.trace_by_hand import made_bytes, made_step

ENDINGS = st.sampled_from([".jsonl", ".jsonl.gz"])


def same(a, b):
    """Equal to the last bit: one zero is not the other."""
    return repr(a) == repr(b)


def as_read(step, head):
    """A step of the engine without what a trace does not hold, and with the stages of its head."""
    chain = [
        Stage(rule["stage"], {name: rule[name] for name in rule if name != "stage"})
        for rule in head.chain
    ]
    reports = zip(step.observed.stages, chain, strict=True)
    stages = tuple(report._replace(stage=stage) for report, stage in reports)
    return step._replace(
        released_bytes=0,
        logprob=step.observed.logprob,
        survivors=stages[-1].survivors if stages else head.vocab_size,
        observed=step.observed._replace(stages=stages),
    )


@settings(max_examples=100)
@given(runs(), ENDINGS)
def test_what_is_written_is_read(run, ending):
    head, steps, end = run
    with TemporaryDirectory() as folder:
        path = Path(folder, "run" + ending)
        write(path, run)
        trace = Trace.read(path)
    assert same(trace.head, head)
    assert same(trace.steps, tuple(as_read(step, head) for step in steps))
    assert same(trace.end, end)


@few_or_many(3, 12, runs(steps=2), ENDINGS)
def test_a_file_cut_anywhere_is_read_as_far_as_it_goes(run, ending):
    with TemporaryDirectory() as folder:
        path = Path(folder, "run" + ending)
        write(path, run)
        raw = path.read_bytes()
    whole, most = Trace.parse(raw), 0
    for length in range(len(raw)):
        try:
            part = Trace.parse(raw[:length])
        except FormatError as error:
            assert most == 0 and "it has no whole line" in str(error)
            continue
        assert part.head == whole.head
        assert part.steps == whole.steps[: len(part.steps)]
        assert most <= len(part.steps)
        most = max(most, len(part.steps))
    assert most >= len(whole.steps) - 1 or whole.end is None


@settings(max_examples=60)
@given(runs(steps=2), st.data())
def test_whatever_is_in_a_file_is_a_trace_or_an_error(run, data):
    with TemporaryDirectory() as folder:
        path = Path(folder, "run" + data.draw(ENDINGS))
        write(path, run)
        raw = path.read_bytes()
    pieces = st.binary(max_size=3) | st.sampled_from([b"null", b"-1", b"1e999"])
    readable_or_refused(damage(data.draw, raw, pieces))


@settings(max_examples=100)
@given(runs(steps=2), st.data())
def test_whatever_is_in_a_field_is_a_trace_or_an_error(run, data):
    with TemporaryDirectory() as folder:
        path = Path(folder, "run.jsonl")
        write(path, run)
        lines = records(path)
    put_odd_value(data.draw, data.draw(st.sampled_from(lines)))
    readable_or_refused("".join(json.dumps(line) + "\n" for line in lines).encode())


def readable_or_refused(raw):
    try:
        trace = Trace.parse(raw)
    except FormatError as error:
        assert str(error).startswith("the trace")
        assert "\n" not in str(error) and len(str(error)) < 300
    else:
        assert trace.text is not None
        assert all(trace.name_of(i) is not None for i in trace.output_token_ids)


# -- bad files -----------------------------------------------------------------------------------

HEAD = {
    "kind": "head", "format": "cutaway-trace", "version": VERSION, "cutaway": "0", "model": "m",
    "weights": "0" * 64, "tokenizer": "0" * 64, "backend": "cpu", "tier": "t", "threads": 1,
    "vocab_size": 9, "prompt": None, "prompt_token_ids": [1], "chain": [{"stage": "top_k", "k": 2}],
    "params": {}, "seed": 1, "candidates": 1, "tracked_ids": [], "end_ids": [],
    "kv_bytes_per_token": 1,
    "parent": None,
}  # fmt: skip
TOKS = [{"kind": "tok", "id": 1, "text": "a"}, {"kind": "tok", "id": 2, "hex": "ff"}]
CANDIDATES = {
    "id": [2], "logit": [1.0], "rank": [1], "delta": [0.0], "luck": [None], "removed_by": [None],
    "final_logprob": [0.0],
}  # fmt: skip
STEP = {
    "kind": "step", "index": 0, "position": 1, "token_id": 2, "sampled_id": 2, "source": "greedy",
    "text": "", "candidates": CANDIDATES, "maximum": 1.0, "log_sum_exp": 1.0, "entropy": 0.0,
    "rank": 1, "logprob": 0.0, "final_rank": 1, "final_logprob": 0.0, "final_log_sum_exp": 1.0,
    "stages": [
        {"survivors": 1, "removed_mass": 0.0, "log_sum_exp": 1, "min_kept_logit": None,
         "top_removed": []},
    ],
    "logit_histogram": [], "kv_tokens": 1, "ms": {}, "logits_hash": "0" * 16,
    "fingerprint": "0" * 16,
}  # fmt: skip
END = {
    "kind": "end", "reason": "max_tokens", "matched": None, "usage": {}, "fingerprint": "0" * 16,
    "text": "", "error": None, "speculation": {},
}  # fmt: skip


def lines(*found):
    return "".join(json.dumps(line) + "\n" for line in found).encode()


def test_the_smallest_trace():
    trace = Trace.parse(lines(HEAD, *TOKS, STEP, END))
    assert trace.output_token_ids == (2,)
    assert trace.bytes_of(2) == b"\xff"
    assert trace.name_of(2) == "\\xff"
    assert trace.name_of(7) == "[7]"


def removed_by(stage):
    return STEP | {"candidates": CANDIDATES | {"removed_by": [stage]}}


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ([], "it has no whole line"),
        ([STEP], "line 1: this is not a trace: its first line is no head"),
        ([{"a": 1}], "line 1: this is not a trace: its first line is no head"),
        ([[1]], "line 1: this is no JSON object"),
        ([HEAD | {"version": 5}], "is not of format 'cutaway-trace', version 1 to 4"),
        ([HEAD | {"version": True}], "is not of format 'cutaway-trace', version 1 to 4"),
        ([HEAD | {"interventions": []}], "interventions must be absent where there is none"),
        ([HEAD | {"interventions": [{"kind": "x"}]}], "intervention must be one of"),
        ([HEAD | {"interventions": {"a": 1}}], "interventions must be a list"),
        ([HEAD | {"seed": -1}], "line 1: seed must be a whole number"),
        ([HEAD | {"weights": "xyz"}], "weights must be 64 hexadecimal digits"),
        ([HEAD | {"more": 1}], "there is no field 'more'"),
        ([HEAD | {"tracked_ids": [9]}], "token 9 is outside the vocabulary"),
        ([HEAD, HEAD], "line 2: there is a second head; one file holds one run"),
        ([HEAD, END, END], "line 3: something follows the end; one file holds one run"),
        ([HEAD, {"kind": "stop"}], "line 2: there is no record of kind 'stop'"),
        ([HEAD, TOKS[0], TOKS[0]], "line 3: token 1 has a second line"),
        ([HEAD, {"kind": "tok", "id": 1, "hex": "f"}], "line 2: hex must be bytes in hexadecimal"),
        ([HEAD, STEP], "has no line of its own before this one"),
        ([HEAD, *TOKS, STEP, STEP], "line 5: index is 0, not 1"),
        ([HEAD, *TOKS, STEP | {"position": 3, "kv_tokens": 3}], "line 4: position is 3, not 1"),
        ([HEAD, *TOKS, STEP | {"kv_tokens": 3}], "line 4: kv_tokens is 3, not the position, 1"),
        ([HEAD, *TOKS, STEP | {"token_id": 1}], "the chosen token 1 is no candidate"),
        ([HEAD, *TOKS, STEP | {"stages": []}], "the stages are not those of the chain"),
        ([HEAD, *TOKS, STEP | {"source": "luck"}], "source must be one of sampled, greedy"),
        ([HEAD, *TOKS, STEP | {"maximum": 1e39}], "maximum must be within float32"),
        ([HEAD, *TOKS, removed_by(1)], "removed_by: there is no stage 1"),
        ([HEAD | {"tracked_ids": [1]}, *TOKS, STEP], "a tracked token is no candidate"),
        (
            [HEAD, *TOKS, STEP | {"candidates": CANDIDATES | {"rank": []}}],
            "line 4: candidates must be columns of one length",
        ),
        ([HEAD, *TOKS, END | {"reason": "tired"}], "reason must be one of"),
    ],
)
def test_bad_files_are_refused_in_one_sentence(found, sentence):
    with pytest.raises(FormatError) as caught:
        Trace.parse(lines(*found))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"\x00\xff\n", "line 1: this is no line of JSON"),
        (b"[" * 10**5 + b"\n", "line 1: this is no line of JSON"),
        (lines(HEAD).replace(b'"seed": 1', b'"seed": NaN'), "line 1: this is no line of JSON"),
        (gzip.compress(lines(HEAD)) * 2, "the gzip stream is damaged: something follows its end"),
        (b"\x1f\x8b not gzip", "the gzip stream is damaged"),
    ],
)
def test_bytes_that_are_no_trace(raw, sentence):
    with pytest.raises(FormatError) as caught:
        Trace.parse(raw)
    assert sentence in str(caught.value)


def test_two_runs_in_one_file(tmp_path):
    raw = lines(HEAD, *TOKS, STEP)
    with pytest.raises(FormatError, match="line 5: there is a second head"):
        Trace.parse(raw + raw)
    (tmp_path / "two").write_bytes(raw + raw)
    with pytest.raises(FormatError, match=r"two, line 5"):
        Trace.read(tmp_path / "two")


@pytest.mark.parametrize("name", ["none", ".", "a\0b"])
def test_files_that_cannot_be_read(name, tmp_path):
    with pytest.raises(InputError, match="the trace cannot be read"):
        Trace.read(tmp_path / name)


# -- files made to exhaust memory --------------------------------------------------------------

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
