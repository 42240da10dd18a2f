"""Signals to ``cutaway serve`` while it starts, and what its log says of its end."""

import json
import logging
import signal
import subprocess
import sys

import pytest

from cutaway.cli.main import main

LOADING = """
import sys, time
from cutaway.cli import serve
def served(*_):
    print("loading", file=sys.stderr, flush=True)
    time.sleep(60)
serve.served = served
from cutaway.cli.main import main
sys.exit(main())
"""
SERVE = ("serve", "--port", "0", "--log", "json", "-q")


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 0), ("SIGHUP", 0), ("SIGINT", 130)])
def test_a_signal_while_it_loads(name, code):
    command = [sys.executable, "-c", LOADING, *SERVE]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr.readline() == "loading\n"
        process.send_signal(getattr(signal, name))
        said = process.stderr.read()
    assert (process.returncode, "Traceback" in said) == (code, False)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_its_end_is_in_the_log(tiny, name):
    command = [sys.executable, "-m", "cutaway", *SERVE, "-m", tiny]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        events = []
        for line in process.stderr:
            events.append(json.loads(line)["event"])
            if events[-1] == "ready":
                process.send_signal(getattr(signal, name))
    assert (events, process.returncode) == (["ready", "stopping", "stopped"], 0)


def test_a_host_gets_its_loggers_back(tiny, monkeypatch):
    from cutaway.server.http import process

    names = ("cutaway.server", "uvicorn.error", "uvicorn.access", "asyncio")
    during = []

    def state():
        every = map(logging.getLogger, names)
        return [([*each.handlers], each.level, each.propagate) for each in every]

    before = state()
    monkeypatch.setattr(process, "run", lambda *_, **__: during.append(state()) or 0)
    assert main([*SERVE, "-m", tiny]) == 0
    assert state() == before != during[0]
