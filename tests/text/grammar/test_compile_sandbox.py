"""The process that compiles a stranger's grammar first."""

import json
import os
import resource
import sys

import pytest

from cutaway.errors import CutawayError, InputError, QueueFullError
from cutaway.text.grammar import Grammar
from cutaway.text.grammar.compile_sandbox import CompileSandbox
from cutaway.text.grammar.llguidance_source import source_of

FINE = [
    Grammar("json_schema", '{"type":"array"}', compact=True), Grammar("regex", "a\nb"),
    Grammar("choice", '["é","\\""]'), Grammar("grammar", 'root ::= "a" | "b" root'),
]  # fmt: skip
PATTERNS = [{"type": "string", "pattern": f"x{i}.*y{i}"} for i in range(40)]
DEADLY = [
    Grammar("json_schema", json.dumps({"allOf": PATTERNS})),
    Grammar("grammar", "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(9999))),
]


@pytest.fixture(scope="module")
def trial():
    trial = CompileSandbox()
    yield trial
    trial.close()


@pytest.mark.parametrize("grammar", FINE)
def test_it_reads_as_this_process_does(trial, grammar):
    assert trial.source_of(grammar) == source_of(grammar)


@pytest.mark.parametrize("grammar", DEADLY, ids=["hours", "stack"])
def test_what_kills_it_is_refused_and_the_next_is_read(trial, grammar):
    with pytest.raises(InputError, match=f"^{grammar.kind}: compiling it takes more than"):
        trial.source_of(grammar)
    assert trial.source_of(FINE[0]) == source_of(FINE[0])


def test_what_it_refuses_it_says_as_this_process_does(trial):
    for grammar in Grammar("regex", "(a"), Grammar("grammar", "root ::= ("):
        with pytest.raises(InputError, match=f"^{grammar.kind}: "):
            trial.source_of(grammar)


def test_a_process_that_does_not_run_is_no_fault_of_the_grammar(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(CutawayError, match="does not run") as raised:
        CompileSandbox().source_of(FINE[0])
    assert not isinstance(raised.value, InputError)


def test_where_no_file_can_be_opened_the_same_request_may_be_sent_later():
    """As in a server with as many connections as it may have files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.dup(0)
    os.close(spare)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
    try:
        with pytest.raises(QueueFullError, match="send the request again later"):
            CompileSandbox().source_of(FINE[0])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
