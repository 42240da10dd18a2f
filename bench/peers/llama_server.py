"""llama-cpp-python's server as a process of its own: its URL, and how many tokens it reads.

Knows its flags and the lines of its log. Knows nothing of requests.
"""

import asyncio
import re
import socket
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from peers.client import PeerError, environment

_READ = re.compile(rb"prompt eval time =.*/ *(\d+) tokens")
_LONGEST_START_S, _LONGEST_WAIT_S = 120, 10


class LlamaServer:
    """A server that is ready. url: its address"""

    def __init__(self, process: Process, url: str) -> None:
        self.url = url
        self._process, self._counts = process, asyncio.Queue[int]()
        self._reading = asyncio.create_task(self._read_log())

    async def tokens_read(self) -> int:
        """Return how many tokens of a prompt were computed, for each request in turn."""
        async with asyncio.timeout(_LONGEST_WAIT_S):
            return await self._counts.get()

    async def wait_until_ready(self) -> None:
        """Return when the server answers; PeerError if it ends before."""
        async with httpx.AsyncClient() as client, asyncio.timeout(_LONGEST_START_S):
            while self._process.returncode is None:
                try:
                    await client.get(f"{self.url}/v1/models")
                except httpx.TransportError:
                    await asyncio.sleep(0.1)
                else:
                    return
        raise PeerError(f"llama.cpp's server ended with {self._process.returncode}")

    async def _read_log(self) -> None:
        assert self._process.stderr
        async for line in self._process.stderr:
            if match := _READ.search(line):
                self._counts.put_nowait(int(match[1]))


@asynccontextmanager
async def llama_serving(
    python: str, model: Path, context: int, threads: int
) -> AsyncIterator[LlamaServer]:
    """Serve a model by ``python -m llama_cpp.server`` until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = {
        "model": model, "host": "127.0.0.1", "port": port, "n_ctx": context, "n_threads": threads,
        "n_threads_batch": threads, "flash_attn": True, "logits_all": False, "verbose": True,
    }  # fmt: skip
    command = [python, "-m", "llama_cpp.server"]
    for name, value in flags.items():
        command += [f"--{name}", str(value)]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=PIPE, env=environment()
    )
    try:
        server = LlamaServer(process, f"http://127.0.0.1:{port}")
        await server.wait_until_ready()
        yield server
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
