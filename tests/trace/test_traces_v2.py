"""Traces of changed runs as version 2 of the format was first written: read, and replayed."""

import gzip
import json
from pathlib import Path

import pytest

from cutaway import LLM
from cutaway.features.inside import inside
from cutaway.rerun import replay
from cutaway.trace import Trace, diff_texts
from cutaway.trace.check import to_version
from cutaway.trace.write import line

FOLDER = Path(__file__).parents[1] / "data" / "traces_v2"
NAMES = ("changed", "fork")


def read(name):
    return Trace.read(FOLDER / f"{name}.jsonl.gz")


@pytest.mark.parametrize("name", NAMES)
def test_the_head_is_written_as_it_was_read(name):
    found = gzip.decompress((FOLDER / f"{name}.jsonl.gz").read_bytes()).split(b"\n")[0]
    again = line(to_version(read(name).head.to_json(), 2)).replace(b"knock_out", b"blind")
    assert json.loads(again) == json.loads(found)
    assert json.loads(found)["version"] == 2


def test_the_fork_says_what_parted_it():
    run, fork = map(read, NAMES)
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
        for trace in map(read, NAMES):
            assert replay(llm, trace).same
            look = inside(llm, trace, 7)
            assert look.is_as_run
            assert {"L14.intervention"} <= look.logit_attribution().parts.keys()
            assert (look.weights[:, :, 4:7] == 0).all()
            assert (look.weights[25, 2, :4] > 0).all()
