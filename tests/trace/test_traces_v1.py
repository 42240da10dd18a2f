"""Traces that version 0.1.0 wrote: read, shown, replayed and written again as they were then.

What is shown is the same but for names that changed since, ``NAMES_NOW``, and ``play``'s screen of
one step, which has a column for the score now and is kept as it is today.

``tests/data/traces_v1`` holds them, and in ``outputs.json.gz`` what that version's
``cutaway trace`` printed for each command line.
"""

import csv
import gzip
import io
import json
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from cutaway import LLM
from cutaway.cli.main import main
from cutaway.engine import Phases
from cutaway.rerun import replay, resume
from cutaway.rerun.request import settings_of
from cutaway.trace import Trace
from cutaway.trace.check import RENAMES, to_version
from cutaway.trace.steps import step_to_json
from cutaway.trace.write import line

FOLDER = Path(__file__).parents[1] / "data" / "traces_v1"
OUTPUTS = json.loads(gzip.decompress((FOLDER / "outputs.json.gz").read_bytes()))
NAMES_NOW = {
    '"behind":': '"margin_nats":', '"victims":': '"top_removed":', '"parting":': '"divergence":',
    '"meetings":': '"common_runs":', "source,own,": "source,sampled_id,",
    '"wanted":': '"unconstrained_id":', '"checks":': '"refused_by":',
    " goes on with '": " continues with '",
    "because nothing but the end may come": "because the constraint allows nothing but the end",
    "They never meet again in as much as 8 tokens": "They never again share 8 tokens in a row",
}  # fmt: skip
NAMES = sorted(path.name for path in FOLDER.glob("*.jsonl*"))


@pytest.mark.parametrize("command", OUTPUTS)
def test_it_is_shown_as_it_was(command, monkeypatch, capfdbinary):
    monkeypatch.chdir(FOLDER)
    assert main(["trace", *command.split()]) == 0
    now, then = capfdbinary.readouterr().out.decode(), OUTPUTS[command]
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
    assert replace(new.end, usage={}) == replace(old.end, usage={})  # the cache may hold more


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
