"""``cutaway serve --replicas`` as a process, with all the processes that it starts."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Collection
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any

READY_S, END_S, ANSWER_S = 300, 300, 300  # on a machine that does much else


class Server:
    """A server that is ready. lines: its log so far."""

    def __init__(self, *argv) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "cutaway", "serve", "--port", "0", *map(str, argv)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self.lines = list[str]()
        self._reading = Thread(target=self._read, daemon=True)
        self._reading.start()
        self._seen = set[tuple[int, str]]()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def wait_for(self, pattern: str, seconds: float = READY_S) -> re.Match[str]:
        """Return the match in the log's last matching line; fail with the log if none comes."""
        until = monotonic() + seconds
        while monotonic() < until:
            for line in reversed(self.lines):
                if match := re.search(pattern, line):
                    return match
            if self.process.poll() is not None:
                break
            sleep(0.02)
        raise AssertionError(f"no {pattern!r} in:\n" + "\n".join(self.lines))

    @property
    def port(self) -> int:
        return int(self.wait_for(r"ready.*url=http://[^:]+:(\d+)")[1])

    # -- processes ---------------------------------------------------------------------------

    def descendants(self) -> dict[int, str]:
        """Return pid -> command of all processes below the server."""
        parents = dict[int, int]()
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and (status := _read(entry / "stat")):
                parents[int(entry.name)] = int(status.rpartition(")")[2].split()[1])
        children, left = dict[int, str](), [self.process.pid]
        while left:
            parent = left.pop()
            for pid in [pid for pid, of in parents.items() if of == parent]:
                children[pid] = _command(pid)
                left.append(pid)
        self._seen |= {(pid, _born(pid)) for pid in children}
        return children

    def pid(self, decision: str) -> int:
        """Return the pid of the replica that a text's sentence names."""
        name = re.match(r"replica (\w+):", decision)
        assert name, decision
        return int(self.wait_for(rf"replica +replica={name[1]} .*pid=(\d+)")[1])

    def left(self) -> list[int]:
        """Return the pids of the processes seen so far that still exist."""
        return [pid for pid, born in self._seen if born and _born(pid) == born]

    # -- requests ----------------------------------------------------------------------------

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return an answer that is JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        try:
            _send(connection, path, body)
            return json.load(connection.getresponse())
        finally:
            connection.close()

    def text(self, path: str) -> str:
        """Return an answer that is text."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        try:
            _send(connection, path, None)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def stream(self, path: str, body: dict[str, Any]):
        """Yield the events of an answer as they come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        try:
            _send(connection, path, {**body, "stream": True})
            for line in connection.getresponse():
                data = line.decode().strip().removeprefix("data: ")
                if data.startswith("{"):
                    yield json.loads(data)
        finally:
            connection.close()

    # -- the end -----------------------------------------------------------------------------

    def end(self, number: int = signal.SIGTERM, *, spared: Collection[str] = ()) -> int:
        """Signal the server; return its exit code. Only ``spared`` processes may be left then."""
        self.descendants()
        self.process.send_signal(number)
        code = self.process.wait(END_S)
        self._reading.join(END_S)
        until = monotonic() + END_S
        while left := {_command(pid) for pid in self.left()} - {*spared}:
            assert monotonic() < until, left
            sleep(0.05)
        return code


@contextmanager
def serve_replicas(*argv):
    """Yield a server with replicas; all of its processes end with the block."""
    server = Server(*argv)
    try:
        assert server.port
        server.descendants()
        yield server
    finally:
        if server.process.poll() is None:
            server.descendants()
            server.process.send_signal(signal.SIGTERM)
            try:
                server.process.wait(END_S)
            except subprocess.TimeoutExpired:
                os.killpg(server.process.pid, signal.SIGKILL)
        for pid in server.left():
            os.kill(pid, signal.SIGKILL)
        server.process.wait()
        server._reading.join()
        assert server.process.stdout
        server.process.stdout.close()


def _send(connection, path, body) -> None:
    data = None if body is None else json.dumps(body)
    headers = {"content-type": "application/json"}
    connection.request("GET" if body is None else "POST", path, data, headers)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _command(pid: int) -> str:
    return _read(Path(f"/proc/{pid}/cmdline")).replace("\0", " ").strip()


def _born(pid: int) -> str:
    """Return a process's start time, which tells reused pids apart; "" if the pid is free."""
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] != "Z" else ""
