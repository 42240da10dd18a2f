"""Two ways to call an ASGI app: by its messages alone, and through uvicorn on a loopback socket."""

import asyncio
import json
import socket
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Thread

import uvicorn


@dataclass
class Answer:
    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    complete: bool = False

    def header(self, name):
        values = [value.decode() for key, value in self.headers if key.decode() == name]
        assert len(values) <= 1
        return values[0] if values else None

    def error(self):
        """Return the error object, which must have OpenAI's form and a message of one line."""
        assert self.header("content-type") == "application/json"
        assert self.header("content-length") == str(len(self.body))
        document = json.loads(self.body)
        assert document.keys() == {"error"}
        assert document["error"].keys() == {"message", "type", "param", "code"}
        assert "\n" not in document["error"]["message"]
        return document["error"]


def scope_of(method="GET", path="/", headers=()):
    raw = [
        (name.lower().encode(), value.encode("latin-1")) for name, value in dict(headers).items()
    ]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": raw,
    }


def request(*parts, hangs_up=False):
    """Return the messages of ``receive``: the body in parts. hangs_up: the client leaves."""
    last = len(parts) - 1
    messages = [
        {"type": "http.request", "body": part, "more_body": hangs_up or i < last}
        for i, part in enumerate(parts)
    ]
    return [*messages, {"type": "http.disconnect"}] if hangs_up else messages


def call(app, scope, messages=None) -> Answer:
    """Call an app. After the last message, ``receive`` waits for ever."""
    return asyncio.run(async_call(app, scope, request(b"") if messages is None else messages))


async def async_call(app, scope, messages) -> Answer:
    """Call an app as ``call`` does, within an event loop."""
    answer, waiting = Answer(), list(messages)

    async def receive():
        return waiting.pop(0) if waiting else await asyncio.Event().wait()

    async def send(message):
        if message["type"] == "http.response.start":
            assert not answer.status
            answer.status, answer.headers = message["status"], message["headers"]
        else:
            assert answer.status and not answer.complete
            answer.body += message.get("body", b"")
            answer.complete = not message.get("more_body", False)

    await app(scope, receive, send)
    return answer


def post(app, value, headers=(), path="/"):
    """POST a value as JSON, or bytes as they are."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    usual = {"content-type": "application/json", "content-length": str(len(body))}
    return call(app, scope_of("POST", path, {**usual, **dict(headers)}), request(body))


@contextmanager
def serve_app(app):
    """Yield the port at which uvicorn serves ``app``; at the end all requests have ended."""
    config = uvicorn.Config(app, ws="none", log_config=None, lifespan="off", access_log=False)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(300)
            assert not thread.is_alive()


def connect(port, request=b"", buffer=None):
    """Return a connected socket that has sent ``sent``."""
    client = socket.socket()
    if buffer is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    client.settimeout(300)
    client.connect(("127.0.0.1", port))
    client.sendall(request)
    return client


def read_all(client) -> bytes:
    """Return all bytes until the server closes the connection."""
    parts = []
    while part := client.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


class Echo:
    """An app that answers with the request's body, and records its calls."""

    def __init__(self, failing=None, late=False):
        self.seen, self.failing, self.late = [], failing, late

    async def __call__(self, scope, receive, send):
        self.seen.append(scope)
        if self.failing and not self.late:
            raise self.failing
        message = await receive()
        assert not message["more_body"]
        headers = [(b"X-Request-Id", b"the app's own"), (b"x-kept", b"1")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": message["body"], "more_body": self.late})
        if self.failing:
            raise self.failing


class Done(list[int]):
    def __call__(self, scope, status, seconds):
        assert scope["state"]["request_id"]
        assert 0 <= seconds < 60
        self.append(status)
