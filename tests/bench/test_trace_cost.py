"""bench/trace_cost.py: its arithmetic, and that it records what it measures."""

import json

import pytest

import trace_cost
from trace_cost import Run, report


def test_the_cost_is_the_median_of_the_rounds():
    done = [(Run(0.010, 0.02), Run(0.011, 0.03), 900), (Run(0.020, 0.02), Run(0.021, 0.02), 900),
            (Run(0.010, 0.02), Run(0.030, 0.01), 900)]  # fmt: skip
    found = report(done, 10)
    assert found["cost"] == pytest.approx(0.1)
    assert found["cost_range"] == pytest.approx([0.05, 2.0])
    assert found["processor_cost"] == 0
    assert (found["without_ms"], found["with_ms"]) == pytest.approx((10, 21))
    assert found["bytes_per_token"] == 90


def test_it_runs_and_records(tiny_path, capsys):
    trace_cost.main(["-m", str(tiny_path), "--tokens", "12", "--rounds", "2", "--candidates", "3"])
    *_, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert found["benchmark"] == "trace_cost"
    assert found["bytes_per_token"] > 300
    assert found["without_ms"] > 0 and found["with_ms"] > 0
