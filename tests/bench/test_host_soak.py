"""The soak inside a rough host finds nothing, for a few seconds here."""

import json

import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

import host_soak


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_few_seconds_of_it(capsys):
    assert host_soak.main(["--minutes", "0.1", "--threads", "3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["faults"] == []
    assert told["texts"] > 10
