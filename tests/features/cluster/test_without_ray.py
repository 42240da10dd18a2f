"""The example of docs/scale.md: a server is killed amid a text, and another one finishes it."""

import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from support import held_steps
from support.random_llama import write_tiny_llama
from support.server_processes import server

DOCS = Path(__file__).parents[3] / "docs" / "scale.md"
[EXAMPLE] = re.findall(
    r"^## Without Ray$.*?^```python\n(.*?)^```$", DOCS.read_text(), re.MULTILINE | re.DOTALL
)
HERE = {
    "random.getrandbits(32)": "7",
    'model="smollm2", max_tokens=200': 'model="tiny", max_tokens=3000, logit_bias={"2": -100}',
}
HELD = held_steps.command(200)
"""``cutaway`` that cannot write the text to its end before it is killed."""


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    code = EXAMPLE
    for shown, meant in HERE.items():
        assert code.count(shown) == 1
        code = code.replace(shown, meant)
    path = tmp_path_factory.mktemp("example") / "write.py"
    path.write_text(code)
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", context=4096)


def run(example, *urls):
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, example, *urls], stdout=pipe, stderr=pipe, bufsize=0)


def written(url):
    """How many tokens of output a server has told of."""
    said = httpx.get(f"{url}/metrics").text
    return float(
        re.search(r'^cutaway_tokens_total\{.*"completion".*\} (\S+)$', said, re.MULTILINE)[1]
    )


def test_a_text_goes_on_when_its_server_is_killed(example, tiny):
    with ExitStack() as stack:
        first, one = stack.enter_context(server(tiny, cutaway=HELD))
        _, two = stack.enter_context(server(tiny))
        with run(example, two) as client:
            whole, fingerprint = client.communicate(timeout=120)
        assert client.returncode == 0, fingerprint
        assert re.fullmatch(rb"[0-9a-f]{16}\n", fingerprint)
        before = written(two)
        with run(example, one, two) as client:
            begun = client.stdout.read(50)
            first.send_signal(signal.SIGKILL)
            rest, again = client.communicate(timeout=120)
        assert (client.returncode, again) == (0, fingerprint)
        assert begun + rest == whole
        assert written(two) - before == 3000


def test_one_that_computes_otherwise_does_not_go_on(example, tiny, tmp_path):
    other = write_tiny_llama(tmp_path / "tiny.gguf", context=4096, seed=1)
    with ExitStack() as stack:
        first, one = stack.enter_context(server(tiny, cutaway=HELD))
        _, two = stack.enter_context(server(other))
        with run(example, one, two) as client:
            client.stdout.read(50)
            first.send_signal(signal.SIGKILL)
            _, said = client.communicate(timeout=120)
        assert client.returncode == 1
        assert f"{two} computes otherwise: cutaway-1-cpu-".encode() in said
