"""A small application in a serving process of its own, with real signals and real sockets."""

import socket
import subprocess
import sys
from contextlib import contextmanager
from threading import Timer

CHILD = """
import asyncio, resource, sys
from cutaway.server.http import log, process
from cutaway.server.http.sockets import bind

grace, process.CUT_AFTER_S, mode = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
process.HEAD_WITHIN_S = 0.2 if mode == "impatient" else process.HEAD_WITHIN_S
if mode == "few-descriptors":
    log.configure("human")
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
stop, over = asyncio.Event(), asyncio.Event()
ends = {"/now": None, "/much": None, "/never": asyncio.Event(),
        "/at-stop": stop, "/at-grace-over": over}

def say(*words):
    print(*words, flush=True)

async def lifespan(receive, send):
    await receive()
    if mode == "never-starts":
        say("starting")
        try:
            await asyncio.Event().wait()
        finally:
            say("start ended")
    await send({"type": "lifespan.startup.complete"})
    await receive()
    if mode == "never-ends":
        say("ending")
        await asyncio.Event().wait()
    say("lifespan ended")
    await send({"type": "lifespan.shutdown.complete"})

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        return await lifespan(receive, send)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"begun ", "more_body": True})
    if wait := ends[scope["path"]]:
        try:
            await wait.wait()
        except asyncio.CancelledError:
            say("cut")
            raise
    much = bytes(1 << 26) if scope["path"] == "/much" else b""
    await send({"type": "http.response.body", "body": b"finished" + much})

def on_stop():
    say("stop")
    stop.set()
    if mode == "broken-on-stop":
        raise KeyError("on_stop is broken")

def on_grace_over():
    say("grace over")
    over.set()

sockets = bind("127.0.0.1", 0)
port = sockets[0].getsockname()[1]
code = process.run(app, sockets, grace=grace, on_ready=lambda: say("ready", port),
                   on_stop=on_stop, on_grace_over=on_grace_over)
say("run returned")
sys.exit(code)
"""

SOON = 0.05
NEVER = 3600  # seconds of grace: the child is killed long before, which fails the test
LIMIT_S = 300


class Child:
    """A serving process, and its output."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self.popen, self.port = popen, 0

    def line(self) -> str:
        """Return the next line of the process's output; "" at the end."""
        assert self.popen.stdout
        return self.popen.stdout.readline().rstrip("\n")

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def end(self) -> tuple[list[str], int]:
        """Return (the remaining lines, the exit code)."""
        assert self.popen.stdout
        return self.popen.stdout.read().splitlines(), self.popen.wait()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port))

    def ask(self, path: str) -> "Answer":
        return Answer(self.connect(), path)


class Answer:
    """An HTTP answer that has begun."""

    def __init__(self, connection: socket.socket, path: str) -> None:
        self._connection, self.received = connection, b""
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        self.read_until(b"begun ")

    def read_until(self, marker: bytes | None) -> bytes:
        """Return all bytes up to a marker, or up to the connection's end."""
        while marker is None or marker not in self.received:
            try:
                part = self._connection.recv(4096)
            except ConnectionResetError:
                part = b""
            if not part:
                assert marker is None, self.received
                break
            self.received += part
        return self.received

    def close(self) -> None:
        self._connection.close()


@contextmanager
def serving(grace: float = NEVER, cut: float = NEVER, mode: str = "", *, ready: bool = True):
    command = [sys.executable, "-c", CHILD, str(grace), str(cut), mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as popen:
        killer = Timer(LIMIT_S, popen.kill)  # a killed process fails the test
        killer.start()
        try:
            child = Child(popen)
            if ready:
                word, port = child.line().split()
                assert word == "ready"
                child.port = int(port)
            yield child
        finally:
            killer.cancel()
            popen.kill()


LAST_CHUNK = b"0\r\n\r\n"
