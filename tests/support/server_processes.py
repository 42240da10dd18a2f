"""``cutaway serve`` in a process of its own, which can be killed, and its parsed arguments."""

import socket
import subprocess
import sys
from contextlib import closing, contextmanager
from threading import Thread

from cutaway.cli import serve
from cutaway.cli.options.parser import Parser


def serve_arguments(*words):
    """Return the arguments of ``cutaway serve``, parsed."""
    parser = Parser("cutaway serve", "")
    serve.add_arguments(parser)
    return parser.parse(words)


@contextmanager
def server(model, *options, host="127.0.0.1", host_of_url="127.0.0.1"):
    """Yield a serving process and its URL. host_of_url: the host's name in the URL."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "cutaway", "serve", "-m", str(model), "--port", str(port)]
    command += ["--host", host, "--threads", "1", *options]
    url = f"http://{host_of_url}:{port}"
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr
        try:
            while " url=" not in (line := child.stderr.readline()):
                assert line, "the server did not start"
            assert f" url={url} " in line
            Thread(target=child.stderr.read, daemon=True).start()  # a full pipe would stop it
            yield child, url
        finally:
            child.kill()
