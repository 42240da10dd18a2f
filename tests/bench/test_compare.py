"""bench/compare.py with engines that are made up: turns, ratios, verdicts, the table."""

import json
import stat
import sys
from argparse import Namespace
from pathlib import Path
from shlex import quote
from xml.etree import ElementTree

import pytest

import growth
from growth import Point, curves

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

import compare
from peers import guard, worker
from peers.client import Cold, PeerError, Worker, cold
from peers.guard import Guard
from peers.table import Column, Metric, Target, markdown, ratios, verdict, verdicts
from script import replace_between_markers

SPEED = Metric("speed", "speed", "tokens/s", {"do": "decode", "context": 64, "batch": 8})
WAIT = Metric("wait", "waiting", "s", None, True, 1.0, 2)
OURS = Column("cutaway", "cutaway", figures={"speed": [20.0, 40.0, 10.0], "wait": [1.0]})
THEIRS = Column("llama.cpp", "llama", figures={"speed": [10.0, 10.0, 10.0], "wait": [2.0]})


# -- statistics ----------------------------------------------------------------------------------


def test_figures_are_tokens_per_second_of_the_median_step():
    assert SPEED.figure([0.1, 0.2, 9.0]) == pytest.approx(8 / 0.2)
    prefill = Metric("p", "p", "tokens/s", {"do": "prefill", "tokens": 512})
    assert prefill.figure([0.5]) == 1024


def test_ratios_are_taken_round_by_round():
    assert ratios(OURS, THEIRS, SPEED) == [2.0, 4.0, 1.0]


@pytest.mark.parametrize(
    ("ratio", "lower", "said"),
    [(1.8, False, "reached"), (1.71, False, "missed by 5%"), (1.8, True, "reached"),
     (1.89, True, "missed by 5%")],
)  # fmt: skip
def test_a_verdict_says_by_how_much(ratio, lower, said):
    assert verdict(1.8, ratio, lower_is_better=lower).endswith(said)


def test_verdicts_are_of_the_engines_that_a_target_names():
    other = Column("llama.cpp, Q4_0", "llama", True, {"speed": [40.0, 40.0, 40.0]})
    targets = [Target("speed", "llama", 3), Target("wait", "llama", 0.4), Target("x", "llama", 1)]
    targets += [Target("speed", "openvino", 9), Target("speed", "llama", 0.5, other_format=True)]
    found = verdicts([OURS, THEIRS, other], [SPEED, WAIT], targets)
    assert [v["ratio"] for v in found] == [2.0, 0.5, 0.5]
    said = [v["verdict"].split(": ")[1] for v in found]
    assert said == ["missed by 33%", "missed by 25%", "reached"]


# -- the table -----------------------------------------------------------------------------------


def test_the_table_has_a_column_per_engine_and_a_dash_for_what_was_not_measured():
    bare = Column("other", "other", figures={})
    lines = markdown([OURS, THEIRS, bare], [SPEED, WAIT], ["a note"]).splitlines()
    assert lines[0] == "|  | **cutaway** | llama.cpp | other |"
    assert lines[2] == "| speed | **20 tokens/s** | 10 tokens/s (**2.00×**) | – |"
    assert lines[3] == "| waiting | **1.00 s** | 2.00 s (**0.50×**) | – |"
    assert lines[-1] == "a note"


BEGIN, END = "<!-- compare:begin -->", "<!-- compare:end -->"


def test_only_what_is_between_the_markers_changes():
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    once = replace_between_markers(text, "compare", "new")
    assert once == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    assert replace_between_markers(once, "compare", "new") == once


@pytest.mark.parametrize("text", ["", BEGIN, END + BEGIN, BEGIN + END + END])
def test_markers_that_are_missing_or_twice_are_refused(text):
    with pytest.raises(ValueError, match="compare:begin"):
        replace_between_markers(text, "compare", "new")


# -- what was disturbed ----------------------------------------------------------------------------


def guarded(monkeypatch, others, **settings):
    """A measurement of a second, during whose n-th try others take others[n] of two CPUs."""
    clock, busy = iter(range(1000)), [0.0]
    monkeypatch.setattr(guard, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(guard, "process_time", lambda: 0.0)
    monkeypatch.setattr(guard, "busy_seconds", lambda: busy[0])
    monkeypatch.setattr(guard.os, "cpu_count", lambda: 2)
    tries = iter(enumerate(others))

    def measure():
        number, share = next(tries)
        busy[0] += 2 * share + 0.5
        return number

    watch = Guard(pause=0, **settings)
    return watch.run(measure, lambda _: 0.5), watch


def test_what_was_disturbed_is_measured_again(monkeypatch):
    result, watch = guarded(monkeypatch, [0.5, 0.2, 0.01])
    assert (result, watch.discarded, watch.disturbed) == (2, 2, 0)
    assert "2 more discarded" in str(watch)


def test_it_gives_up_with_the_least_disturbed_and_says_so(monkeypatch):
    result, watch = guarded(monkeypatch, [0.5, 0.2, 0.4], tries=3)
    assert (result, watch.discarded, watch.disturbed) == (1, 2, 1)
    assert "1 count although disturbed, after 3 tries each" in str(watch)


def test_where_the_system_does_not_tell_everything_counts(monkeypatch):
    monkeypatch.setattr(guard, "busy_seconds", lambda: None)
    watch = Guard()
    assert watch.run(lambda: 7, lambda _: 0.0) == 7
    assert watch.discarded == 0


# -- processes -----------------------------------------------------------------------------------


class FakeEngine:
    def decode(self, context, batch):
        return [context / 1000, batch / 1000]

    def prefill(self, tokens):
        return [tokens / 1000]


def test_a_worker_measures_at_least_once():
    command = {"do": "decode", "context": 64, "batch": 8, "seconds": 0}
    assert worker.measure(FakeEngine(), command) == [0.064, 0.008]
    assert worker.measure(FakeEngine(), {"do": "prefill", "tokens": 5, "seconds": 0}) == [0.005]


def script(path: Path, text: str) -> str:
    program = path.with_suffix(".py")
    program.write_text(text)
    # Through a shell: a "#!" line cannot name an interpreter whose path has a space.
    path.write_text(f'#!/bin/sh\nexec {quote(sys.executable)} {quote(str(program))} "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_worker_is_asked_and_answers(tmp_path):
    python = script(
        tmp_path / "python",
        "import json, sys\nprint(json.dumps({'ready': {'args': sys.argv[1:]}}), flush=True)\n"
        "for line in sys.stdin:\n"
        "    print(json.dumps({'seconds': [json.loads(line)['x']]}), flush=True)",
    )
    fake = Worker(python, "some", tmp_path / "m.gguf", 2)
    assert fake.info["args"] == ["-m", "peers.worker", "some", str(tmp_path / "m.gguf"), "2"]
    assert fake.ask(x=1.5) == [1.5]
    assert fake.ask(x=2.5) == [2.5]
    assert fake.cpu_seconds() >= 0
    fake.close()


def test_an_engine_that_is_not_there_says_why(tmp_path):
    with pytest.raises(PeerError, match=r"ModuleNotFoundError.*no_such"):
        Worker(sys.executable, "no_such", tmp_path / "m.gguf", 1)


@pytest.mark.parametrize("when", ["before it is asked", "whenever it likes"])
def test_a_worker_that_dies_is_an_error(tmp_path, when):
    python = script(tmp_path / "python", "print('{\"ready\": {}}', flush=True)")
    fake = Worker(python, "some", tmp_path / "m.gguf", 1)
    if when == "before it is asked":
        fake._process.wait()
    with pytest.raises(PeerError, match="has ended"):
        fake.ask(x=1)
    fake.close()


def test_a_cold_process_is_timed_to_its_first_byte():
    once = cold([sys.executable, "-c", "print('x', flush=True); import time; time.sleep(0.2)"])
    assert once.first_byte_s > 0
    assert once.peak_bytes > 1e6
    assert once.cpu_s > 0
    with pytest.raises(PeerError, match="ended with 3"):
        cold([sys.executable, "-c", "raise SystemExit(3)"])


# -- the whole -----------------------------------------------------------------------------------


class FakeWorker:
    log: list[str] = []  # noqa: RUF012

    def __init__(self, python, kind, path, threads):
        if kind == "transformers":
            raise PeerError("ModuleNotFoundError: No module named 'torch'")
        self.kind, self.info = kind, {"version": "1", "kv_block_bytes": 100, "parameters": 10**8}
        if kind in ("cutaway", "llama"):
            self.info["instructions"] = "avx2"

    def ask(self, **command):
        self.log.append(self.kind)
        return [0.1 if self.kind == "cutaway" else 0.2]

    def cpu_seconds(self):
        return 0.0

    def close(self):
        self.log.append(f"{self.kind} closed")


def run(monkeypatch, kind, folder, **changes):
    """Compare with engines of this kind."""
    args = Namespace(
        model=folder / "model.gguf", also=None, peer_python="python", threads=2, rounds=2,
        seconds=0.1, others=9.0, tries=1, only=None, write=None, make=None,
        measure=compare.USUAL, table="compare", apart=False,
    )  # fmt: skip
    monkeypatch.setattr(compare, "parse", lambda: Namespace(**(vars(args) | changes)))
    monkeypatch.setattr(compare, "Worker", kind)
    monkeypatch.setattr(compare, "cold", lambda command: Cold(0.5, 1300, 0.0))
    compare.main()


def test_a_comparison_takes_turns_and_writes_its_table(monkeypatch, tmp_path, capsys):
    for name in ("model", "other-Q4_0"):
        (tmp_path / f"{name}.gguf").write_bytes(bytes(900))
    readme = tmp_path / "README.md"
    readme.write_text(f"a\n{BEGIN}\n{END}\nb\n")
    FakeWorker.log = []
    run(monkeypatch, FakeWorker, tmp_path, also=tmp_path / "other-Q4_0.gguf", write=readme)
    engines = ["cutaway", "limit", "llama", "llama", "openvino", "openvino"]
    assert FakeWorker.log == engines * 4 * 3 + [f"{e} closed" for e in engines]
    printed = capsys.readouterr().out
    last = json.loads(printed.splitlines()[-1])
    assert {v["ratio"] for v in last["targets"]} == {2.0, 1.0, 1.3}
    table = readme.read_text()
    assert table.startswith(f"a\n{BEGIN}\n|  | **cutaway 1** | what reading allows 1 |")
    assert "transformers" not in table  # which is not installed: no reader of a table needs that
    assert "\nInstructions: cutaway 1 avx2, llama.cpp 1 avx2.\n" in table
    assert table.endswith(f"{END}\nb\n")


def test_apart_each_peer_is_alone_in_memory_and_the_limit_is_beside_cutaway(
    monkeypatch, tmp_path, capsys
):
    (tmp_path / "model.gguf").write_bytes(bytes(900))
    FakeWorker.log = []
    kinds = ["limit", "llama", "openvino"]
    run(monkeypatch, FakeWorker, tmp_path, apart=True, only=kinds, measure=["prefill"], rounds=1)
    own, closed = ["cutaway", "limit"], ["cutaway closed", "limit closed"]
    alone = [said for kind in kinds[1:] for said in (kind, kind, f"{kind} closed")]
    assert FakeWorker.log == own * 2 + closed + alone
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [engine["kind"] for engine in found["engines"]] == ["cutaway", *kinds]


class CrashingWorker(FakeWorker):
    def ask(self, **command):
        if self.kind == "openvino" and command["seconds"]:
            raise PeerError("the process has ended")
        return super().ask(**command)


def test_a_peer_that_crashes_is_left_out_by_name(monkeypatch, tmp_path, capsys):
    (tmp_path / "model.gguf").write_bytes(bytes(900))
    run(monkeypatch, CrashingWorker, tmp_path)
    printed = capsys.readouterr().out
    assert "OpenVINO GenAI 1 (the process has ended)" in printed
    kinds = [engine["kind"] for engine in json.loads(printed.splitlines()[-1])["engines"]]
    assert kinds == ["cutaway", "limit", "llama"]


# -- growth ----------------------------------------------------------------------------------------

# bench/growth.py: which ratio of compare.py's documents stands at which context and size.


def result(model, parameters, **figures):
    def engine(kind, factor, *, other=False):
        values = {name: [v * factor for v in several] for name, several in figures.items()}
        return {"title": kind, "kind": kind, "other_format": other, "figures": values}

    engines = [engine("cutaway", 3), engine("llama", 9, other=True), engine("llama", 1)]
    return {"model": model, "parameters": parameters, "engines": engines}


SMALL = result("small", 1e8, decode64=[10.0, 20.0], decode512=[8.0, 8.0], prefill=[4.0], cold=[1])
LARGE = result("large", 8e9, decode64=[1.0])


def test_a_model_is_a_curve_by_context_and_a_metric_a_curve_by_size():
    by_context, by_size = curves([LARGE, SMALL], "llama")
    three = (3.0, 3.0, 3.0)
    assert by_context == {
        "small": [Point(64, *three), Point(512, *three)],
        "large": [Point(64, *three)],
    }
    assert by_size == {
        "one stream at context 64": [Point(1e8, *three), Point(8e9, *three)],
        "a prompt of 512": [Point(1e8, *three)],
    }
    assert curves([LARGE, SMALL], "openvino") == ({}, {})


def test_the_command_writes_a_drawing(monkeypatch, tmp_path):
    files = []
    for one in (SMALL, LARGE):
        files.append(tmp_path / f"{one['model']}.json")
        files[-1].write_text(json.dumps(one))
    svg = tmp_path / "growth.svg"
    monkeypatch.setattr(sys, "argv", ["growth.py", str(svg), *map(str, files)])
    growth.main()
    drawing = ElementTree.fromstring(svg.read_text())
    texts = {t.text for t in drawing.iter("{http://www.w3.org/2000/svg}text")}
    assert {"small", "large", "64", "512", "0.1", "8", "3×"} <= texts
    assert len(list(drawing.iter("{http://www.w3.org/2000/svg}polyline"))) == 4
