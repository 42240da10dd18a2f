"""The Python API, misused at random in a process of its own, which must survive it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

import cutaway
from support import misuse
from support.misuse import fault

HOMES = [Path(cutaway.__file__).parents[1], Path(misuse.__file__).parents[1]]


@pytest.mark.parametrize(
    ("seed", "calls"), [(0, 500), pytest.param(1, 10_000, marks=pytest.mark.slow)]
)
def test_misuse_ends_in_an_answer_or_in_one_sentence(tiny_path, seed, calls):
    paths = "; ".join(f"sys.path.insert(0, {str(home)!r})" for home in HOMES)
    code = f"import sys; {paths}; from support.misuse import main; main(*sys.argv[1:])"
    command = [sys.executable, "-X", "faulthandler", "-c", code]
    done = subprocess.run(
        [*command, str(tiny_path), str(seed), str(calls)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["faults"] == []
    verbs = {name.split()[0] for name in found["outcomes"]}
    assert {"generate", "begin", "read", "process", "chat", "asynchronous", "keep",
            "duplicate"} <= verbs  # fmt: skip
    assert sum(found["outcomes"].values()) == calls


@pytest.mark.parametrize(
    "error",
    [
        KeyError("x"),
        ValueError("x"),
        cutaway.InputError("two\nlines"),
        cutaway.InputError("x" * 999),
    ],
)
def test_what_is_no_sentence_is_a_fault(error):
    with pytest.raises(type(error)) as caught:
        raise error
    assert fault(caught.value)
