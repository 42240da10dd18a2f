"""Servers with hostile answers, byte by byte: name -> the pieces sent to any request."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

_OK = b"HTTP/1.1 200 OK\r\n"
DEEP = b"[" * 100_000


def plain(body, head=b""):
    """Return a function that gives a complete answer."""
    return lambda: [_OK + head + b"Content-Length: %d\r\n\r\n" % len(body) + body]


def endless(piece, head=_OK + b"\r\n", pause=0.0):
    """Return a function that gives the head, then the piece without end."""

    def send():
        yield head
        while True:
            yield piece
            time.sleep(pause)

    return send


def choices(value):
    return plain(b'{"data": [{"id": "m"}], "choices": ' + value + b"}")


def echo(logprobs):
    return choices(b'[{"index": 0, "text": "a", "message": {"content": "a"}, "logprobs": %s}]'
                   % logprobs)  # fmt: skip


ANSWERS = {
    "nothing": lambda: [],
    "a head alone": lambda: [_OK],
    "a body that is cut": lambda: [_OK + b"Content-Length: 100\r\n\r\n{"],
    "a chunk that is cut": lambda: [_OK + b"Transfer-Encoding: chunked\r\n\r\n64\r\n{"],
    "a chunk of no size": lambda: [_OK + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n{}"],
    "a negative length": lambda: [_OK + b"Content-Length: -5\r\n\r\n{}"],
    "no HTTP": lambda: [b"SSH-2.0-OpenSSH_9.6\r\n"],
    "controls in the status line": lambda: [b"HTTP/1.1 \x1b]0;owned\x07 500\r\n\r\n"],
    "controls in the reason": lambda: [b"HTTP/1.1 500 \x1b[2J\r\nContent-Length: 0\r\n\r\n"],
    "controls in an error": lambda: [b"HTTP/1.1 500 No\r\n\r\n" + b'{"error": "\\u001b[2Jx"}'],
    "a long status line": lambda: [b"HTTP/1.1 " + b"9" * 100_000],
    "many headers": lambda: [_OK + b"a: b\r\n" * 1000 + b"\r\n{}"],
    "an error that is deep": lambda: [b"HTTP/1.1 500 No\r\n\r\n" + DEEP],
    "an error that is a list": lambda: [b"HTTP/1.1 400 No\r\n\r\n[1]"],
    "an error that is null": lambda: [b'HTTP/1.1 400 No\r\n\r\n{"error": null}'],
    "no text at all": plain(b""),
    "no JSON": plain(b"<html>"),
    "no UTF-8": plain(b'"\xff\xfe"'),
    "deep JSON": plain(DEEP),
    "a long number": plain(b"9" * 5000),
    "no number": plain(b"NaN"),
    "null": plain(b"null"),
    "a list": plain(b"[]"),
    "a text": plain(b'"x"'),
    "a number": plain(b"7"),
    "an object": plain(b"{}"),
    "events that are texts": plain(b'data: "x"\n\ndata: [DONE]\n\n'),
    "events that are null": plain(b"data: null\n\ndata: [DONE]\n\n"),
    "events that are no JSON": plain(b"data: {\n\ndata: [DONE]\n\n"),
    "events with an error that is a list": plain(b'data: {"error": [1]}\n\n'),
    "no choices": choices(b"[]"),
    "choices that are null": choices(b"null"),
    "choices that are texts": choices(b'["x"]'),
    "choices that are numbers": choices(b"[1, 2]"),
    "choices that are an object": choices(b"{}"),
    "choices of lists": choices(b"[[]]"),
    "an index that is a text": choices(b'[{"index": "x", "text": "a"}, {"index": 0}]'),
    "a text that is a number": choices(b'[{"text": 7, "message": {"content": 7}}]'),
    "a message that is a text": choices(b'[{"message": "x", "delta": "x"}]'),
    "log-probabilities that are a text": echo(b'"x"'),
    "log-probabilities that are a list": echo(b"[1]"),
    "log-probabilities of null": echo(b'{"token_logprobs": null, "content": null}'),
    "log-probabilities of texts": echo(b'{"token_logprobs": ["x"], "tokens": ["a"]}'),
    "log-probabilities above 0": echo(b'{"token_logprobs": [5.0], "tokens": ["a"]}'),
    "log-probabilities that are no numbers": echo(b'{"token_logprobs": [NaN], "tokens": ["a"]}'),
    "log-probabilities without end": echo(b'{"token_logprobs": [-1e400], "tokens": ["a"]}'),
    "log-probabilities of many digits": echo(b'{"token_logprobs": [-1' + b"0" * 400
                                             + b'], "tokens": ["a"]}'),
    "tokens that are numbers": echo(b'{"token_logprobs": [-1.0], "tokens": [5]}'),
    "tokens that nobody has": echo(b'{"token_logprobs": [-1.0], "tokens": ["zzqqy"]}'),
    "contents that are numbers": echo(b'{"content": [7]}'),
    "bytes of 300": echo(b'{"content": [{"token": "a", "bytes": [300], "logprob": -1.0}]}'),
    "bytes that are a text": echo(b'{"content": [{"token": "a", "bytes": "x", "logprob": -1.0}]}'),
    "ids that are texts": echo(b'{"content": [{"id": "x", "logprob": -1.0}]}'),
    "ids beyond the vocabulary": echo(b'{"content": [{"id": 99999999, "logprob": -1.0}]}'),
    "a trace that is null": choices(b'[{"text": "a", "cutaway": {"trace": null}}]'),
    "a trace of texts": choices(b'[{"text": "a", "cutaway": {"trace": ["x"]}}]'),
    "a trace of no records": choices(b'[{"text": "a", "cutaway": {"trace": [{"kind": "x"}]}}]'),
}  # fmt: skip
"""Name -> a function whose pieces are sent, one after the other."""

ENDLESS = {
    "an endless body": endless(b" " * 65536),
    "an endless line": endless(b"data: " + b"x" * 65536),
    "endless events": endless(b'data: {"choices": [{"text": "a"}]}\n\n' * 1000),
    "endless chunks": endless(b"1\r\nx\r\n" * 1000, _OK + b"Transfer-Encoding: chunked\r\n\r\n"),
    "endless continuation": endless(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, b""),
    "a byte now and then": endless(b" ", pause=0.05),
    "an event now and then": endless(b'data: {"choices": [{"text": "a"}]}\n\n', pause=0.05),
    "a byte of a head now and then": endless(b"x", b"HTTP/1.1 2", pause=0.05),
    "silence": endless(b"", pause=0.05),
}
"""Name -> a function whose answer never ends."""

KINDS = {
    "of any kind": {},
    "of cutaway": {"/v1/models": {"data": [{"id": "m", "owned_by": "cutaway"}]}},
    "of vLLM": {"/v1/models": {"data": [{"id": "m"}]}, "/version": {"version": "0.11"}},
    "of SGLang": {"/v1/models": {"data": [{"id": "m"}]}, "/get_model_info": {"model_path": "m"}},
    "of llama-server": {"/v1/models": {"data": [{"id": "m"}]}, "/props": {"total_slots": 1}},
    "of Ollama": {"/v1/models": {"data": [{"id": "m"}]}, "/api/tags": {"models": []}},
}
"""Kind of server -> its valid answers by path; all other answers are hostile."""


@contextmanager
def hostile(send, allowed=()) -> Iterator[str]:
    """Yield the URL of a server that sends these pieces to every path not in ``known``."""
    listening = socket.create_server(("127.0.0.1", 0))
    done = list[bool]()

    def serve():
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return  # it was shut down
            Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection):
        with connection:
            connection.settimeout(5)
            try:
                path = _path_of(connection)
                known_here = dict(allowed).get(path)
                pieces = send() if known_here is None else plain(json.dumps(known_here).encode())()
                for piece in pieces:
                    if done:
                        return
                    connection.sendall(piece)
            except OSError:
                return  # the client closed the connection

    thread = Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        done.append(True)
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        listening.close()


def _path_of(connection):
    """Read a whole request, and return its path."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (more := connection.recv(65536)):
            return ""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    while len(body) < length:
        body += connection.recv(65536)
    return head.split(b" ")[1].decode()
