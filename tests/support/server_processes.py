"""``cutaway serve`` in a process of its own, which can be killed, and its parsed arguments."""

import re
import subprocess
import sys
from contextlib import contextmanager
from threading import Thread

from cutaway.cli import serve
from cutaway.cli.options.parser import Parser


def serve_arguments(*words):
    """Return the arguments of ``cutaway serve``, parsed."""
    parser = Parser("cutaway serve", "")
    serve.add_arguments(parser)
    return parser.parse(words)


@contextmanager
def server(
    model, *options, host="127.0.0.1", host_of_url="127.0.0.1",
    cutaway=(sys.executable, "-m", "cutaway"),
):  # fmt: skip
    """Yield a serving process and its URL, at a port that was free.

    host_of_url  the host's name in the URL
    cutaway      the first words of the command
    """
    command = [*cutaway, "serve", "-m", str(model), "--port", "0"]
    command += ["--host", host, "--threads", "1", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr
        try:
            while not (match := re.search(r" url=(\S+) ", line := child.stderr.readline())):
                assert line, "the server did not start"
            url = match[1]
            assert url.startswith(f"http://{host_of_url}:")
            Thread(target=child.stderr.read, daemon=True).start()  # a full pipe would stop it
            yield child, url
        finally:
            child.kill()
