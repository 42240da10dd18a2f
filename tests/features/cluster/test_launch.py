"""What is said where replicas cannot be started, and who hears signals while they start."""

import signal
import sys

import pytest

from cutaway.features.cluster.launch import _own_signals, _reason

REPORT = """Deploying application cutaway-1 failed: Failed to update the deployments ['Engine'].
Traceback (most recent call last):
  File "x.py", line 1, in y
cutaway.errors.FormatError: m.gguf is truncated: download it again
The above exception was the direct cause of the following exception:
ray.exceptions.RayTaskError"""


def test_of_a_report_with_tracebacks_our_own_sentence_is_told():
    assert _reason(REPORT) == "m.gguf is truncated: download it again"
    assert _reason("a\nb: no more\n") == "b: no more"


def rays(number, _frame):
    sys.exit(number)


def test_a_signal_ends_as_it_did_although_ray_has_a_handler_of_its_own():
    def ours(_number, _frame):
        raise SystemExit(0)

    before = signal.signal(signal.SIGTERM, ours)
    try:
        with _own_signals():
            signal.signal(signal.SIGTERM, rays)
        assert signal.getsignal(signal.SIGTERM) is ours
        with pytest.raises(SystemExit) as left, _own_signals():
            signal.signal(signal.SIGTERM, rays)
            signal.raise_signal(signal.SIGTERM)
        assert left.value.code == 0
        assert signal.getsignal(signal.SIGTERM) is ours
    finally:
        signal.signal(signal.SIGTERM, before)
