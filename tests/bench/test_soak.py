"""bench/soak.py: what it asks, what it counts, and that it notices what is wrong."""

import json
from functools import partial
from itertools import islice
from types import SimpleNamespace

import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

import host_soak
import load
import soak
from cutaway.api import llm
from cutaway.engine import Policy

SMALL = ["--requests", "80", "--kv-tokens", "192"]


@pytest.fixture
def few_rows(monkeypatch):
    """Prompts are computed in many pieces, and few run at once."""
    policy = partial(Policy, max_rows=24, max_prefill_rows_while_decoding=12, max_num_seqs=6)
    monkeypatch.setattr(llm, "Policy", policy)


def run(tiny_path, capsys, *more):
    code = soak.main(["-m", str(tiny_path), "--json", *SMALL, *more])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize("pace", [["--concurrency", "12"], ["--rate", "400"]])
def test_a_soak_of_everything_leaves_nothing_and_changes_nothing(tiny_path, few_rows, capsys, pace):
    code, found = run(tiny_path, capsys, "--check", "60", *pace)
    assert code == 0
    assert (found["checked"], found["differing"]) == (60, 0)
    assert found["blocks"] == {"free": 6, "all": 6}
    assert found["requests"] == 80 < found["texts"]
    assert min(found["cancelled"].values()) > 0
    assert found["preemptions"] > 0
    assert found["prompt_tokens"]["cached"] > 0
    assert found["speculation"]["proposed"] > 0
    assert len(found["rss_mb"]) == 4


@pytest.mark.parametrize("wrong", ["tokens", "blocks"])
def test_what_differs_or_is_lost_is_an_error(tiny_path, monkeypatch, capsys, wrong):
    if wrong == "tokens":
        monkeypatch.setattr(soak, "alone", lambda _llm, text: (text.token_ids, 0))
    else:
        make = llm.make_engine

        def make_and_hold(*args):
            engine = make(*args)
            engine.blocks.allocate(1)
            return engine

        monkeypatch.setattr(llm, "make_engine", make_and_hold)
    code, found = run(tiny_path, capsys, "--requests", "8", "--check", "2", "--kv-tokens", "512")
    assert code == 1
    assert found["differing"] == (2 if wrong == "tokens" else 0)
    assert found["blocks"]["free"] == (15 if wrong == "blocks" else 16)


def test_the_same_seed_asks_the_same(tiny_path):
    opened = llm.LLM(tiny_path, progress=False)
    asked = SimpleNamespace(seed=3, kv_tokens=192, prompt_tokens=256, max_tokens=96)
    visits = partial(load.visits, opened, asked, soak.PHASES, "prefill", rate=2.0)
    first, second = (list(islice(visits(), 200)) for _ in range(2))
    assert first == second
    assert all(1 <= len(v.prompt) <= 64 and v.options["max_tokens"] <= 64 for v in first)
    assert {v.leaves for v in first} == {None, *soak.PHASES}
    assert all(len(v.prompt) == 64 for v in first if v.leaves == "prefill")
    asked.seed = 4
    assert next(visits()) != first[0]


def test_percentiles_are_values_that_occurred():
    assert load.percentiles([float(i) for i in range(1, 101)]) == {
        "p50": 50.0, "p95": 95.0, "p99": 99.0,
    }  # fmt: skip
    assert load.percentiles([2.0, 1.0]) == {"p50": 1.0, "p95": 2.0, "p99": 2.0}
    assert load.percentiles([]) == {}


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (["--requests", "3"], "--requests must be 4 or more"),
        (["--concurrency", "0"], "must be above 0"),
        (["--rate", "0"], "must be above 0"),
        (["--rate", "-1"], "must be above 0"),
    ],
)
def test_what_cannot_be_soaked_is_refused(asked, sentence, capsys):
    with pytest.raises(SystemExit):
        soak.main(asked)
    assert sentence in capsys.readouterr().err


# -- host soak -------------------------------------------------------------------------------------

# The soak inside a rough host finds nothing, for a few seconds here.


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_few_seconds_of_it(capsys):
    assert host_soak.main(["--minutes", "0.1", "--threads", "3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["faults"] == []
    assert told["texts"] > 0
