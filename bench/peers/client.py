"""The other end of worker.py, and processes that are timed from their start."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

_BENCH = Path(__file__).resolve().parent.parent


class PeerError(Exception):
    """An engine that cannot be measured, and why."""


class Worker:
    """An engine in another process, of whatever interpreter has it."""

    def __init__(self, python: str, engine: str, path: Path, threads: int) -> None:
        command = [python, "-m", "peers.worker", engine, str(path.resolve()), str(threads)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, env=environment(),
        )  # fmt: skip
        self.info: dict[str, Any] = self._answer()["ready"]

    def ask(self, **command: Any) -> list[float]:
        """Have something measured; see worker.py."""
        assert self._process.stdin is not None
        try:
            print(json.dumps(command), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            self.close()
            raise PeerError("the process has ended") from None
        seconds: list[float] = self._answer()["seconds"]
        return seconds

    def cpu_seconds(self) -> float:
        """Processor time that the process has used, its threads included."""
        return cpu_seconds(Path(f"/proc/{self._process.pid}/stat"))

    def bytes_read(self) -> int:
        """What the process has read from disks; of Linux."""
        lines = Path(f"/proc/{self._process.pid}/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # a question that was never read
                    pipe.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "the process has ended"}
        if "error" in answer:
            self.close()
            raise PeerError(answer["error"])
        return answer


def cpu_seconds(stat: Path) -> float:
    """Processor time in Linux's file of a process or a thread; 0 where it has ended."""
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Cold(NamedTuple):
    """One process: seconds to the first byte of its text, bytes at its largest, CPU seconds."""

    first_byte_s: float
    peak_bytes: int
    cpu_s: float


def cold(command: list[str]) -> Cold:
    """Run a command to its end. PeerError where it fails or writes nothing.

    The system counts this process's own size as a part of the child's, which starts as its copy:
    a peak is never below that.
    """
    started = perf_counter()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=environment(),
    )  # fmt: skip
    assert process.stdout is not None
    with process.stdout as pipe:
        wrote = os.read(pipe.fileno(), 1)
        seconds = perf_counter() - started
        pipe.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or not wrote:
        raise PeerError(f"{' '.join(command[:3])} … ended with {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024
    return Cold(seconds, usage.ru_maxrss * unit, usage.ru_utime + usage.ru_stime)


def environment() -> dict[str, str]:
    """This process's, with the folder of ``peers`` where Python looks for modules.

    Python may keep what it compiles, as an installer does: without that, a cold start of a source
    tree compiles all of it every time.
    """
    given = [str(Path(p).resolve()) for p in os.environ.get("PYTHONPATH", "").split(":") if p]
    inherited = {name: v for name, v in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return inherited | {"PYTHONPATH": os.pathsep.join([str(_BENCH), *given])}
