"""Servers and workers that load the model once and fork, or start again when a file changes.

Slow: they are not among what tests install.
"""

import json
import signal
import subprocess
import sys
from threading import Event, Thread
from time import monotonic, sleep

import pytest
from openai import OpenAI

from support.host_programs import (
    PROMPT,
    check_answers,
    free_port,
    host,
    right,
    wait_for_answer,
    write_example,
)

DJANGO = """
import sys
from django.conf import settings
settings.configure(
    DEBUG=True, ROOT_URLCONF="program", SECRET_KEY="any", ALLOWED_HOSTS=["*"]
)
import django
django.setup()
from django.core.wsgi import get_wsgi_application
from django.http import JsonResponse, StreamingHttpResponse
from django.urls import path
from cutaway import LLM

llm = LLM("toy-writer", progress=False)

def write(request):
    done = llm.generate(request.GET["prompt"], max_tokens=40, seed=1)
    return JsonResponse({"text": done.text, "fingerprint": done.fingerprint})

def stream(request):
    steps = llm.stream(request.GET["prompt"], max_tokens=40, seed=1)
    return StreamingHttpResponse((step.text for step in steps), content_type="text/plain")

urlpatterns = [path("write", write), path("stream", stream)]
app = get_wsgi_application()

if __name__ == "__main__":
    sys.modules["program"] = sys.modules["__main__"]
    from django.core.management import execute_from_command_line
    execute_from_command_line(sys.argv)
"""

CELERY = """
import os
from pathlib import Path
from celery import Celery
from cutaway import LLM

llm = LLM("toy-writer", progress=False)  # before the fork
here = Path(__file__).parent
app = Celery("program", broker="filesystem://", backend=f"file://{here}/results")
app.conf.broker_transport_options = {
    "data_folder_in": here / "queue", "data_folder_out": here / "queue",
    "control_folder": here / "control",
}

@app.task
def write(prompt, seed):
    done = llm.generate(prompt, max_tokens=40, seed=seed)
    return done.text, done.fingerprint, os.getpid()
"""
ASK = f"""
import json
from program import write
jobs = [write.delay({PROMPT!r}, seed) for seed in range(12)]
print(json.dumps([job.get(timeout=100) for job in jobs]))
"""


def needs(name):
    pytest.importorskip(name, reason=f"needs {name}: pip install {name}")


def write_program(framework, folder):
    needs(framework)
    if framework == "flask":
        return write_example("Flask", folder, "program")
    path = folder / "program.py"
    path.write_text(DJANGO)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["flask", "django"])
@pytest.mark.parametrize("options", [("--preload", "-w", "3"), ("-w", "2")], ids=" ".join)
def test_gunicorn_with_threads(tmp_path, framework, options):
    needs("gunicorn")
    write_program(framework, tmp_path)
    port = free_port()
    command = ("gunicorn", "program:app", *options, "--threads", "4", "-b", f"127.0.0.1:{port}")
    with host(tmp_path, port, *command) as (url, _):
        check_answers(url, times=96)


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["flask", "django"])
def test_a_server_that_starts_again_when_its_program_changes(tmp_path, framework):
    program = write_program(framework, tmp_path)
    port = free_port()
    command = {
        "flask": ("flask", "--app", "program", "run", "--debug", "-p", str(port)),
        "django": ("program", "runserver", str(port)),
    }[framework]
    with host(tmp_path, port, *command) as (url, child):
        for seed in range(1, 4):
            until = monotonic() + 60
            while wait_for_answer(url, child, tmp_path).json()["fingerprint"] != right(seed)[1]:
                assert monotonic() < until, (tmp_path / "log").read_text()
                sleep(0.1)
            check_answers(url, seed=seed)
            program.write_text(program.read_text().replace(f"seed={seed}", f"seed={seed + 1}"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [("prefork", "-c", "3"), ("prefork", "-c", "2", "--max-tasks-per-child", "2"),
     ("threads", "-c", "3")],
    ids=" ".join,
)  # fmt: skip
def test_celery(tmp_path, options):
    needs("celery")
    (tmp_path / "program.py").write_text(CELERY)
    for name in ("queue", "results", "control"):
        (tmp_path / name).mkdir()
    command = ("celery", "-A", "program", "worker", "--pool", *options, "-l", "WARNING")
    worker = subprocess.Popen([sys.executable, "-m", *command], cwd=tmp_path)
    try:
        asked = [sys.executable, "-c", ASK]
        done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=True)
        answers = json.loads(done.stdout)
        assert [(text, fingerprint) for text, fingerprint, _ in answers] == [*map(right, range(12))]
        processes = {process for *_, process in answers}
        assert len(processes) > 1 or options[0] == "threads"
        worker.terminate()
        assert worker.wait(60) == 0
    finally:
        worker.kill()
        worker.wait()


# -- restart ---------------------------------------------------------------------------------------

# A server that is restarted on its port while clients that retry ask it.


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
