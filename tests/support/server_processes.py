"""``cutaway serve`` in processes of its own, which can be killed."""

import socket
import subprocess
import sys
from contextlib import closing, contextmanager


@contextmanager
def server(model):
    """A process that serves, and its URL."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "cutaway", "serve", "-m", str(model), "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen([*command, "--threads", "1"], stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr
        try:
            while url not in (line := child.stderr.readline()):
                assert line, "the server did not start"
            yield child, url
        finally:
            child.kill()
