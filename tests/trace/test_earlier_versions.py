"""Traces that earlier versions wrote: read, shown, replayed and written again as they were then.

What is shown of those of 0.1.0 is the same but for names that changed since, ``NAMES_NOW``, and
for steps, which count from 1 in words and columns since then. Kept
as they are today are ``play``'s screen of one step, which has a column for the score now, and what
is shown of greedy runs, which took the likeliest token and were shown as if they had drawn.

``tests/data/traces_v1`` holds them, and in ``outputs.json.gz`` what that version's
``cutaway trace`` printed for each command line.
"""

import csv
import gzip
import io
import json
import re
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from cutaway import LLM
from cutaway.cli.main import main
from cutaway.engine import Phases
from cutaway.features.inside.look import inside
from cutaway.rerun import replay, resume
from cutaway.rerun.request import settings_of
from cutaway.trace import Trace, canvas_figures, cell_life, diff_texts
from cutaway.trace.check import RENAMES, to_version
from cutaway.trace.steps import pass_to_json, step_to_json
from cutaway.trace.write import line

FOLDER = Path(__file__).parents[1] / "data" / "traces_v1"
OUTPUTS = json.loads(gzip.decompress((FOLDER / "outputs.json.gz").read_bytes()))
NAMES_NOW = {
    '"behind":': '"margin_nats":', '"victims":': '"top_removed":', '"parting":': '"divergence":',
    '"meetings":': '"common_runs":', "source,own,": "source,sampled_id,",
    '"wanted":': '"unconstrained_id":', '"checks":': '"refused_by":',
    " goes on with '": " continues with '", " was drawn at step ": " was chosen at step ",
    "the end token was drawn (": "the end token was chosen (",
    "because nothing but the end may come": "because the constraint allows nothing but the end",
    "They never meet again in as much as 8 tokens": "They never again share 8 tokens in a row",
}  # fmt: skip
NAMES = sorted(path.name for path in FOLDER.glob("*.jsonl*"))


WORDS = re.compile(r"(?<=\bstep )\d+|(?<= step 0/)\d+|^ *\d+(?=  .* bits  rank )", re.MULTILINE)
"""Numbers of steps in what is shown: in sentences, in the head of a step, at the left of lines."""


def plus_1(match):
    return f"{int(match[0]) + 1:>{len(match[0])}}"


@pytest.mark.parametrize("command", OUTPUTS)
def test_it_is_shown_as_it_was(command, monkeypatch, capfdbinary):
    monkeypatch.chdir(FOLDER)
    typed = re.sub(r"(?<=--step )\d+", plus_1, command)
    assert main(["trace", *typed.split()]) == 0
    now, then = capfdbinary.readouterr().out.decode(), OUTPUTS[command]
    then = WORDS.sub(plus_1, then)
    for old, new in NAMES_NOW.items():
        then = then.replace(old, new)
    if command.endswith("csv"):
        now, then = columns(now), columns(then)
        assert now.pop("draft_ms") == [""] * len(now["step"])  # which is younger
    assert now == then


def columns(table):
    head, *rows = csv.reader(io.StringIO(table))
    return dict(zip(head, map(list, zip(*rows, strict=True)), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_read_is_written_as_it_was(name):
    raw, trace = (FOLDER / name).read_bytes(), Trace.read(FOLDER / name)
    if name.endswith(".gz"):
        raw = zlib.decompressobj(wbits=31).decompress(raw)  # also where it was cut
    found = [json.loads(each) for each in raw.split(b"\n")[:-1]]
    made = [trace.head.to_json(), *(token.to_json() for token in trace.tokens.values())]
    made += map(step_to_json, trace.steps)
    made += [trace.end.to_json()] if trace.end else []
    written = [json.loads(line(to_version(record, 1))) for record in made]
    order = ["head", "tok", "step", "end"]
    assert written == sorted(found, key=lambda record: order.index(record["kind"]))


@pytest.fixture(scope="module")
def llm(smollm2_path):
    return LLM(smollm2_path, backend="cpu", context=512)


@pytest.mark.model
@pytest.mark.parametrize("name", [name for name in NAMES if name != "error.jsonl.gz"])
def test_it_replays_to_the_bit(name, llm):
    trace = Trace.read(FOLDER / name)
    done = replay(llm, trace)
    assert done.same
    assert done.fingerprint == f"{trace.steps[-1].fingerprint:016x}"


@pytest.mark.model
@pytest.mark.parametrize(
    "name", ["greedy.jsonl", "chain.jsonl.gz", "fork.jsonl.gz", "ngram.jsonl.gz"]
)
def test_the_same_run_is_recorded_as_it_was(name, llm, tmp_path):
    old, path = Trace.read(FOLDER / name), tmp_path / "again.jsonl"
    head = old.head
    more = {"speculate": head.params["speculate"], "max_tokens": head.params["max_tokens"]}
    more |= {"candidates": head.candidates, "track": head.tracked_ids, "trace": path}
    llm.generate(list(head.prompt_token_ids), **settings_of(head) | more)
    new = Trace.read(path)
    assert (new.head.chain, new.head.seed) == (head.chain, head.seed)
    assert new.head.params.items() >= head.params.items()
    assert new.tokens == old.tokens
    assert [timeless(step) for step in new.steps] == [timeless(step) for step in old.steps]
    # The cache may hold more, and what drafts cost was not recorded.
    assert replace(new.end, usage={}, speculation={}) == replace(old.end, usage={}, speculation={})
    assert new.end.speculation.items() >= old.end.speculation.items()


@pytest.mark.model
def test_a_run_that_was_cut_is_resumed_under_the_names_of_its_file(llm, tmp_path):
    path = tmp_path / "cut.jsonl"
    path.write_bytes((FOLDER / "cut.jsonl").read_bytes())
    count = len(Trace.read(path).steps)
    assert [*resume(llm, Trace.read(path))]
    trace, (head, *records) = Trace.read(path), map(json.loads, path.read_bytes().splitlines())
    assert (trace.version, head["version"], head["watch"]) == (1, 1, [*trace.head.tracked_ids])
    steps = [record for record in records if record["kind"] == "step"]
    assert len(steps) > count
    assert all({"own", "sketch", "row"} <= step.keys() for step in steps)
    assert replay(llm, trace).same


def test_no_name_of_now_is_an_old_one():
    for table in RENAMES.values():
        assert not {*table} & {*table.values()}
        assert len({*table.values()}) == len(table)


def timeless(step):
    return repr(step._replace(phases=Phases()))


# -- changed runs, of version 2 of the format --------------------------------------------------

CHANGED_RUNS = Path(__file__).parents[1] / "data" / "traces_v2"
CHANGED = ("changed", "fork")


def read_changed(name):
    return Trace.read(CHANGED_RUNS / f"{name}.jsonl.gz")


@pytest.mark.parametrize("name", CHANGED)
def test_the_head_is_written_as_it_was_read(name):
    found = gzip.decompress((CHANGED_RUNS / f"{name}.jsonl.gz").read_bytes()).split(b"\n")[0]
    again = line(to_version(read_changed(name).head.to_json(), 2)).replace(b"knock_out", b"blind")
    assert json.loads(again) == json.loads(found)
    assert json.loads(found)["version"] == 2


def test_the_fork_says_what_parted_it():
    run, fork = map(read_changed, CHANGED)
    assert [str(one) for one in run.head.interventions[:3]] == [
        "L25.H2 x 0", "L9.mlp x 0.5 at 3-7,20", "knock_out 4-6 from 3",
    ]  # fmt: skip
    assert fork.head.interventions[:-1] == run.head.interventions
    assert str(fork.head.interventions[-1]) == "L3.attn x 1.25 from 5"
    found = diff_texts(run, fork)
    assert found.is_fork and found.logits_differ_at == 5
    assert "interventions" in {change.name for change in found.changes}


@pytest.mark.model
def test_they_replay_to_the_bit_and_are_looked_into(smollm2_path):
    with LLM(smollm2_path, backend="cpu", context=512) as llm:
        for trace in map(read_changed, CHANGED):
            assert replay(llm, trace).same
            look = inside(llm, trace, 7)
            assert look.is_as_run
            assert {"L14.intervention"} <= look.logit_attribution().parts.keys()
            assert (look.weights[:, :, 4:7] == 0).all()
            assert (look.weights[25, 2, :4] > 0).all()


# -- canvases, of version 3 of the format ------------------------------------------------------
# Of the toy that comes with the program, with edits and fresh luck; it may be another one by now,
# so nothing is computed again here (tests/rerun/test_rerun_canvas.py does that).

CANVASES = Path(__file__).parents[1] / "data" / "traces_v3"
OF_CANVASES = ("canvas", "fork")


def read_canvas(name):
    return Trace.read(CANVASES / f"{name}.jsonl.gz")


@pytest.mark.parametrize("name", OF_CANVASES)
def test_each_record_is_written_as_it_was_read(name):
    found = gzip.decompress((CANVASES / f"{name}.jsonl.gz").read_bytes()).splitlines()
    trace, kinds = read_canvas(name), [json.loads(one)["kind"] for one in found]
    for kind, written in (
        ("head", [trace.head.to_json()]), ("pass", map(pass_to_json, trace.passes)),
        ("step", map(step_to_json, trace.steps)), ("end", [trace.end.to_json()]),
    ):  # fmt: skip
        lines = [one for one, of in zip(found, kinds, strict=True) if of == kind]
        assert [json.loads(line(to_version(record, 3))) for record in written] == [
            *map(json.loads, lines)
        ]


def test_what_it_says():
    run, fork = map(read_canvas, OF_CANVASES)
    assert (run.text, run.version) == ("had fet her you ", 3)
    of = canvas_figures(run)
    assert (of.passes, of.rows, of.tokens, of.edited) == (13, 338, 16, 2)
    assert of.order == pytest.approx(0.70, abs=0.005)
    assert [(m.index, m.event) for m in cell_life(run, 2) if m.event] == [(2, "revealed")]
    found = diff_texts(run, fork)
    assert found.is_fork
    assert (found.passes.index, found.passes.cell, found.passes.b) == (2, 2, "Q")


def test_the_forced_cell_was_edited_away():
    assert [(m.index, m.event, m.now) for m in cell_life(read_canvas("fork"), 2) if m.event] == [
        (2, "forced", "Q"), (4, "edited", "s"),
    ]  # fmt: skip
