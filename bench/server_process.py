"""``cutaway serve`` as a process of its own: its URL, its processor time, its exit.

Knows the process, its log, the form of its metrics and /proc. Knows nothing of requests.
"""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from cutaway.errors import CutawayError
from peers.client import cpu_seconds

GRACE_S = 30.0
_LINE = 1 << 24  # a traceback is one line of the log


class Server:
    """A server that is ready.

    pid     its process
    url     its address
    errors  lines of its log whose level is above info
    """

    def __init__(self, process: Process, url: str) -> None:
        self.pid, self.url, self.errors = process.pid, url, list[str]()
        self._process = process
        self._reading = asyncio.create_task(self._read())

    def cpu_s(self) -> dict[str, float]:
        """The processor seconds of the process so far, and of its event loop's thread."""
        return {
            "server": cpu_seconds(Path(f"/proc/{self.pid}/stat")),
            "event loop": cpu_seconds(Path(f"/proc/{self.pid}/task/{self.pid}/stat")),
        }

    async def stop(self) -> int | None:
        """Send SIGTERM; return the exit code, or None if the server does not exit in GRACE_S."""
        self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(GRACE_S):
                await self._reading
                return await self._process.wait()
        except TimeoutError:
            return None

    async def _read(self) -> None:
        async for line in _log(self._process):
            if line.get("level") != "info":
                self.errors.append(json.dumps(line))


@asynccontextmanager
async def serving(*flags: str) -> AsyncIterator[Server]:
    """Serve on a free port until the block ends. CutawayError if the server does not start."""
    command = [sys.executable, "-m", "cutaway", "serve", "--port", "0", "--log", "json", "-q"]
    process = await asyncio.create_subprocess_exec(
        *command, "--grace", str(GRACE_S), *flags, stderr=PIPE, limit=_LINE
    )
    try:
        yield Server(process, await _url(process))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _url(process: Process) -> str:
    said = []
    async for line in _log(process):
        if line.get("event") == "ready":
            return str(line["url"])
        said.append(str(line.get("message", line)))
    raise CutawayError(f"cutaway serve did not start: {' '.join(said)}")


async def _log(process: Process) -> AsyncIterator[dict[str, Any]]:
    """Yield the lines of the process's log; a line that is not JSON becomes a message."""
    assert process.stderr
    async for line in process.stderr:
        try:
            told: dict[str, Any] = json.loads(line)
        except ValueError:
            told = {"message": line.decode("utf-8", "replace").rstrip()}
        yield told


def figures(page: str) -> dict[str, float]:
    """The samples of a page of metrics: ``cutaway_kv_blocks free`` -> 256.0."""
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
