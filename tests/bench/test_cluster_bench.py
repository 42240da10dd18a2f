"""The benchmark of replicas: which threads count, and what its table says."""

import os
import subprocess
import sys
from pathlib import Path

import cluster
import kills


def test_processes_and_what_they_started_are_a_tree():
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as child:
        while len(found := cluster.tree(os.getpid())) < 3:
            pass
        assert found[0] == os.getpid()
        assert child.pid in found
        assert child.stdin
        child.stdin.close()


def test_the_threads_that_compute_do_not_count():
    before = {Path("a"): 1.0, Path("b"): 5.0}
    after = {Path("a"): 4.0, Path("b"): 5.5, Path("new"): 0.25}
    assert cluster.beside(before, after, computing=1) == 0.75
    assert cluster.beside(before, after, computing=0) == 3.75


def test_the_table_says_what_was_measured():
    one = {"first_ms": 5.0, "token_ms": 4.0, "cpu_ms": 0.3}
    found = {
        "cores": 2, "streams_asked": 16,
        "one": {"alone": one, "cluster": {"first_ms": 9.5, "token_ms": 4.1, "cpu_ms": 0.35}},
        "idle": {"alone": 0.0, "cluster": 0.117},
        "prefix": {"routed": 0.9, "random": 0.7},
        "memory": [("small", 10.0), ("ray::Engine", 244.4)],
        "streams": {
            "alone": 700.0, "one replica": 690.0, "one on each core": 900.0, "split_ratio": 1.3,
        },
    }  # fmt: skip
    text = cluster.table(found)
    assert "| first token, ms | 5.00 | 9.50 | +4.50 |" in text
    assert "| 2 replicas of one core | 900, 1.30 times `cutaway serve` |" in text
    assert "| 2 replicas behind the router | 90% |" in text
    assert text.index("ray::Engine") < text.index("small")
    assert "11.7% of a processor" in text


def test_requests_that_are_killed_are_drawn_and_every_kind_comes():
    random = kills.Random(0)
    each = [kills.drawn(random) for _ in range(300)]
    assert each == [kills.drawn(again) for again in [kills.Random(0)] for _ in range(300)]
    for kind in kills.KINDS:
        assert any(kind.items() <= options.items() for _, options, _ in each)
    assert all(0 <= after <= options["max_tokens"] for _, options, after in each)
