"""A server that is restarted on its port while clients that retry ask it."""

import signal
import subprocess
import sys
from threading import Event, Thread
from time import sleep

import pytest
from openai import OpenAI

from support.host_programs import PROMPT, free_port, right

REQUEST = {"model": "toy-writer", "prompt": PROMPT, "max_tokens": 40, "seed": 1}
RESTARTS = 3


class Server:
    """``cutaway serve`` at a port."""

    def __init__(self, port):
        command = ["cutaway", "serve", "-m", "toy-writer", "--port", str(port), "--threads", "1"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command], stderr=subprocess.PIPE, text=True
        )

    def until_ready(self):
        while " ready " not in self._process.stderr.readline():
            assert self._process.poll() is None
        Thread(target=self._process.stderr.read, daemon=True).start()  # a full pipe would stop it

    def stop(self):
        self._process.send_signal(signal.SIGTERM)

    def end(self):
        assert self._process.wait(60) == 0
        self._process.stderr.close()


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_no_request_is_lost(stream):
    port, over, answers = free_port(), Event(), []

    def ask(client):
        while not over.is_set():
            try:
                answer = client.completions.create(**REQUEST, temperature=0.7, stream=stream)
                parts = answer if stream else [answer]
                answers.append("".join(part.choices[0].text for part in parts if part.choices))
            except Exception as error:
                answers.append(error)

    server = Server(port)
    server.until_ready()
    with OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="any", max_retries=6) as client:
        clients = [Thread(target=ask, args=[client]) for _ in range(4)]
        for each in clients:
            each.start()
        for _ in range(RESTARTS):
            sleep(2)  # of answers
            server.stop()
            following = Server(port)
            server.end()
            server = following
            server.until_ready()
        sleep(2)
        over.set()
        for each in clients:
            each.join()
    server.stop()
    server.end()
    assert {*answers} == {right()[0]}
    assert len(answers) > 4 * RESTARTS
