"""A proxy that shows a server under a sub-path."""

import re
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx

ROOT = "/a/models"
HOP = {"connection", "transfer-encoding", "content-length", "content-encoding", "host"}


@contextmanager
def proxy(target: str, *, takes_off: bool):
    """Yield the address of a proxy that shows a server below ROOT, and nothing else."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            path = self.path.removeprefix(ROOT) if takes_off else self.path
            if not re.match(f"{ROOT}(/|$)", self.path):
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {k: v for k, v in self.headers.items() if k.lower() not in HOP}
            answer = httpx.request(
                self.command, target + path, headers=headers, content=body, timeout=60
            )
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                if name not in HOP:
                    self.send_header(name, value)
            self.send_header("content-length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_POST = do_GET

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{ROOT}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
