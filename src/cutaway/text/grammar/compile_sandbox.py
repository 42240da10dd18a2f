"""A separate process that compiles a stranger's grammar first.

A grammar of a few hundred bytes can keep llguidance busy for hours, or overflow the stack. No
thread of the same process can stop that. So another process compiles the grammar first, with a
smaller stack, limited time and memory, and a lower priority.
"""

import errno
import json
import sys
from dataclasses import asdict
from subprocess import DEVNULL, PIPE, Popen
from threading import Lock, Thread, Timer, stack_size

from cutaway.base import child, system
from cutaway.errors import CompileLimitError, CutawayError, InputError, QueueFullError
from cutaway.text.grammar import Grammar
from cutaway.text.grammar.llguidance_source import limits, reason, source_of

CPU_S, MEMORY = 3, 1 << 30
_WALL_S = 30.0  # wall time, if other processes take the processor
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
_STACK = 4 << 20  # half of a thread's usual stack


class CompileSandbox:
    """Compiles grammars in another process.

    The process starts for the first grammar, and again if it has ended.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: Popen[str] | None = None

    def source_of(self, grammar: Grammar) -> str:
        """Return a grammar's source for llguidance; InputError if it cannot be compiled.

        CompileLimitError if compiling takes too much time or memory.
        """
        with self._lock:
            if self._process is None:
                self._process = _start()
            answer = _ask(self._process, json.dumps(asdict(grammar)))
            if not answer:
                self._end()
                raise CompileLimitError(
                    grammar.kind,
                    f": compiling it takes more than {CPU_S} s of processor time, "
                    "1 GB or the stack; make it smaller or flatter",
                )
        reply = json.loads(answer)
        if "failed" in reply:
            raise InputError(*reply["failed"])
        return str(reply["source"])

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
        process = Popen(
            child.command("-c", code), stdin=PIPE, stdout=PIPE, stderr=DEVNULL, text=True,
            env=child.own_environment(), start_new_session=True,  # so that Ctrl-C does not reach it
        )  # fmt: skip
    except OSError as error:
        if error.errno in _SCARCE:
            raise QueueFullError(
                "grammars cannot be compiled now, since too many files or processes are open: "
                "send the request again later, or raise the limit (ulimit -n)"
            ) from error
        raise CutawayError(f"grammars cannot be compiled: {error}") from error
    assert process.stdout
    if not process.stdout.readline():  # no grammar was sent yet
        process.communicate()
        raise CutawayError("grammars cannot be compiled: the process that tries them does not run")
    return process


def _ask(process: "Popen[str]", line: str) -> str:
    """Send a line and return the answer; "" if the process ended."""
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
    """Answer each line of the input until its end."""
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
        print(json.dumps(_try_to_compile(Grammar(**json.loads(line)))), flush=True)


def _try_to_compile(grammar: Grammar) -> dict[str, object]:
    from llguidance import LLMatcher

    try:
        source = source_of(grammar)
    except InputError as error:
        return {"failed": error.args}
    if failed := LLMatcher.validate_grammar(source, limits=limits()):
        return {"failed": (grammar.kind, *reason(failed))}
    return {"source": source}
