"""A server with the answers of a test, which records its requests."""

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from cutaway.rerun.asking import Server


@contextmanager
def pretend(answers):
    """Run a server; answers: path -> an answer, or a function of the body. It records requests."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self._send(answers.get(self.path))

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append((self.path, body))
            self._send(answers.get(self.path))

        def _send(self, answer):
            data = json.dumps(answer if answer is not None else {"error": "no such path"}).encode()
            self.send_response(200 if answer is not None else 404)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield Server(f"http://127.0.0.1:{server.server_port}/v1"), requests
        server.shutdown()
