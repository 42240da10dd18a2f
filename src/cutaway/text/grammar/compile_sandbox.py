"""A process beside this one that compiles a stranger's grammar first.

A grammar of a few hundred bytes can keep llguidance for hours, or take more stack than there is.
Nothing ends that from within, so it happens here first: with less stack than elsewhere, within
limits of time and memory, at a lower priority.
"""

import errno
import json
import sys
from dataclasses import asdict
from subprocess import DEVNULL, PIPE, Popen
from threading import Lock, Thread, Timer, stack_size

from cutaway.base import child, system
from cutaway.errors import CutawayError, InputError, QueueFullError
from cutaway.text.grammar import Grammar
from cutaway.text.grammar.llguidance_source import limits, reason, source_of

CPU_S, MEMORY = 3, 1 << 30
_WALL_S = 30.0  # where other processes leave little of the processor
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
_STACK = 4 << 20  # half of what a thread has otherwise


class CompileSandbox:
    """Reads grammars in another process, which is started at the first and again after each end."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: Popen[str] | None = None

    def source_of(self, grammar: Grammar) -> str:
        """As ``llguidance_source``'s; InputError where the grammar cannot be compiled."""
        with self._lock:
            if self._process is None:
                self._process = _start()
            answer = _ask(self._process, json.dumps(asdict(grammar)))
            if not answer:
                self._end()
                raise InputError(
                    grammar.kind,
                    f": compiling it takes more than {CPU_S} s of processor time, "
                    "1 GB or the stack; make it smaller or flatter",
                )
        said = json.loads(answer)
        if "failed" in said:
            raise InputError(*said["failed"])
        return str(said["source"])

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _start() -> "Popen[str]":
    code = "from cutaway.text.grammar.compile_sandbox import work; work()"
    try:
        made = Popen(
            child.command("-c", code), stdin=PIPE, stdout=PIPE, stderr=DEVNULL, text=True,
            env=child.own_environment(), start_new_session=True,  # Ctrl-C is not for it
        )  # fmt: skip
    except OSError as error:
        if error.errno in _SCARCE:
            raise QueueFullError(
                "grammars cannot be compiled now, since too many files or processes are open: "
                "send the request again later, or raise the limit (ulimit -n)"
            ) from error
        raise CutawayError(f"grammars cannot be compiled: {error}") from error
    assert made.stdout
    if not made.stdout.readline():  # which is no grammar's fault
        made.communicate()
        raise CutawayError("grammars cannot be compiled: the process that tries them does not run")
    return made


def _ask(process: "Popen[str]", line: str) -> str:
    """Its answer; empty where it ended."""
    assert process.stdin and process.stdout
    late = Timer(_WALL_S, process.kill)
    late.start()
    try:
        process.stdin.write(line + "\n")
        process.stdin.flush()
        return process.stdout.readline()
    except BrokenPipeError:
        return ""
    finally:
        late.cancel()


# -- in the other process ------------------------------------------------------------------------


def work() -> None:
    """Answer line by line until there are no more."""
    system.limit_memory(MEMORY)
    system.step_back()
    stack_size(_STACK)
    print("ready", flush=True)
    thread = Thread(target=_work)
    thread.start()
    thread.join()


def _work() -> None:
    for line in sys.stdin:
        system.limit_time(CPU_S)
        print(json.dumps(_tried(Grammar(**json.loads(line)))), flush=True)


def _tried(grammar: Grammar) -> dict[str, object]:
    from llguidance import LLMatcher

    try:
        source = source_of(grammar)
    except InputError as error:
        return {"failed": error.args}
    if failed := LLMatcher.validate_grammar(source, limits=limits()):
        return {"failed": (grammar.kind, *reason(failed))}
    return {"source": source}
