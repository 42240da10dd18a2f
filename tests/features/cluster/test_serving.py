"""A server with replicas on a Ray cluster of its own: real processes, killed."""

import os
import signal
import subprocess
import sys
from time import monotonic, sleep

import pytest

from cutaway import LLM
from cutaway.compute.backends import KV_BLOCK
from cutaway.files.block_folder import stored_files
from support.hostile_modules import write_hostile_modules
from support.random_llama import write_tiny_llama
from support.replicated import serve_replicas

pytest.importorskip("ray.serve", reason="needs ray: pip install '.[test-ray]'")
ASKED = {
    "prompt": "Once upon",
    "max_tokens": 300,
    "temperature": 0.9,
    "seed": 7,
    "ignore_eos": True,
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A model that writes for a second, so that what happens at the first token is amid a text."""
    folder = tmp_path_factory.mktemp("slower")
    return write_tiny_llama(
        folder / "slower.gguf", hidden=512, feed_forward=1536, layers=4, context=512
    )


@pytest.fixture(scope="module")
def server(path):
    with serve_replicas("-m", path, "--replicas", 2, "--cores", 1) as started:
        yield started


@pytest.fixture(scope="module")
def alone(path):
    with LLM(path, threads=1, progress=False) as llm:
        yield llm


def test_a_text_is_the_engines_own(server, alone):
    own = alone.generate(**ASKED)
    answer = server.ask("/v1/completions", ASKED)["choices"][0]
    assert answer["text"] == own.text
    assert answer["cutaway"]["fingerprint"] == own.fingerprint


def test_a_replica_that_is_killed_in_the_middle_of_a_text_changes_nothing_of_it(server, alone):
    own = alone.generate(**ASKED)
    for _ in range(10):  # a replica may have written all when its kill comes, on a busy machine
        events = []
        for event in server.stream("/v1/completions", ASKED):
            events.append(event)
            if len(events) == 1:
                os.kill(server.pid(events[0]["cutaway"]["replica"]), signal.SIGKILL)
        ending = events[-1]["choices"][0]["cutaway"]
        assert "".join(event["choices"][0]["text"] for event in events) == own.text
        assert ending["fingerprint"] == own.fingerprint
        if ending["resumed"]:
            break
    assert ending["resumed"] == 1
    assert len(set(ending["replicas"])) == 2
    assert "cutaway_resumed_total 1.0" in server.text("/metrics")


def test_the_server_and_all_that_it_started_end_with_a_signal(server):
    assert server.end(signal.SIGTERM) == 0
    assert "Traceback" not in "\n".join(server.lines)


@pytest.mark.slow
def test_replicas_compute_on_a_gpu_with_the_bits_of_a_processor(alone, path):
    pytest.importorskip("wgpu", reason="needs wgpu: pip install '.[gpu]'")
    asked = ASKED | {"max_tokens": 12}
    options = "--replicas", 2, "--cores", 1, "--backend", "gpu"
    with serve_replicas("-m", path, *options) as started:
        events = [*started.stream("/v1/completions", asked)]
        os.kill(started.pid(events[0]["cutaway"]["replica"]), signal.SIGKILL)
        answer = started.ask("/v1/completions", asked)["choices"][0]
        assert 'tier="webgpu' in started.text("/metrics")
    own = alone.generate(**asked).fingerprint
    assert events[-1]["choices"][0]["cutaway"]["fingerprint"] == own
    assert answer["cutaway"]["fingerprint"] == own


@pytest.mark.slow
def test_a_prompt_that_one_replica_read_another_reads_from_the_disk(path, alone, tmp_path):
    folder, asked = tmp_path / "cache", ASKED | {"prompt": "Once upon " * 12, "max_tokens": 12}
    blocks = len(alone.tokenize(asked["prompt"])) // KV_BLOCK
    options = "--replicas", 2, "--cores", 1, "--cache-dir", folder
    with serve_replicas("-m", path, *options) as started:
        computed = started.ask("/v1/completions", asked)
        until = monotonic() + 30
        while len([*stored_files(folder)]) < blocks:
            assert monotonic() < until, [*stored_files(folder)]
            sleep(0.02)
        pid = started.pid(computed["cutaway"]["replica"])
        os.kill(pid, signal.SIGKILL)  # nothing that it has in memory can be asked for
        started.wait_for("replica_gone")
        read = started.ask("/v1/completions", asked)
        assert started.pid(read["cutaway"]["replica"]) != pid
    cached = [answer["usage"]["prompt_tokens_details"] for answer in (computed, read)]
    assert [usage["cached_tokens"] for usage in cached] == [0, blocks * KV_BLOCK]
    own = alone.generate(**asked).fingerprint
    for answer in (computed, read):
        assert answer["choices"][0]["cutaway"]["fingerprint"] == own


@pytest.mark.slow
def test_ctrl_c_ends_it_too(tiny_path):
    with serve_replicas("-m", tiny_path, "--replicas", 1, "--cores", 1) as started:
        assert started.end(signal.SIGINT) == 130


@pytest.mark.slow
def test_nobody_starts_ray_again_once_it_has_ended(tiny_path):
    """As a thread of Ray's own does that comes late."""
    code = f"""
from cutaway.features.cluster.launch import launch
from cutaway.features.cluster.plan import Plan

with launch(Plan.from_arguments(1, 1, {{"model": {str(tiny_path)!r}}}, {{}}), progress=False):
    import ray
try:
    ray.put(1)
except Exception as error:
    print(type(error).__name__, ray.is_initialized())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=90
    )
    assert done.stdout.split()[-1:] == ["False"], (done.stdout, done.stderr)


@pytest.mark.slow
def test_a_server_that_is_killed_takes_its_replicas_along(tiny_path):
    with serve_replicas("-m", tiny_path, "--replicas", 1, "--cores", 1) as started:
        agents = "ray::RuntimeEnvAgent", "ray::DashboardAgent"  # Ray's own, which outlive it
        assert started.end(signal.SIGKILL, spared=agents) == -signal.SIGKILL


@pytest.mark.slow
def test_a_replica_that_hangs_is_left_and_replaced(path, alone):
    own = alone.generate(**ASKED)
    with serve_replicas("-m", path, "--replicas", 2, "--cores", 1) as started:
        events = []
        for event in started.stream("/v1/completions", ASKED):
            events.append(event)
            if len(events) == 1:
                hung = started.pid(events[0]["cutaway"]["replica"])
                os.kill(hung, signal.SIGSTOP)
        assert "".join(event["choices"][0]["text"] for event in events) == own.text
        assert events[-1]["choices"][0]["cutaway"]["resumed"] == 1
        started.wait_for(r"replica_gone", 90)
        os.kill(hung, signal.SIGCONT)  # a process that is stopped does not end, and keeps its cores
        until = monotonic() + 60
        while sum("info    replica " in line for line in started.lines) < 3:
            assert monotonic() < until, started.lines
            sleep(0.1)
        assert hung not in started.descendants()


def test_no_file_of_the_current_folder_is_run(tiny_path, tmp_path, monkeypatch):
    """Ray looks there for a worker's modules first, unless it is told not to."""
    names = ["json.py", "jinja2.py", "llguidance.py", "pydantic.py", "starlette.py", "numpy.py"]
    write_hostile_modules(tmp_path / "model", tmp_path / "ran", [*names, "cutaway/__init__.py"])
    monkeypatch.chdir(tmp_path / "model")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with serve_replicas("-m", tiny_path, "--replicas", 1, "--cores", 1) as server:
        asked = {"prompt": "a", "max_tokens": 3, "json_schema": {"type": "integer"}}
        answer = server.ask("/v1/completions", asked)
        assert "choices" in answer, answer
    assert not (tmp_path / "ran").exists()
