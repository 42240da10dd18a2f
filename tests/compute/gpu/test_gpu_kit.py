"""The kit of bench/gpu_kit.py: a replay without cutaway has the CPU's logits, hash for hash."""

import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from gpu_kit import write_kit
from support.browser import SOFTWARE_GPU, start_chromium

MINUTES = 60_000  # in ms


@pytest.fixture
def served(tmp_path):
    """A kit of steps up to 40 rows, and the address at which a browser finds it."""
    write_kit(tmp_path, steps=5)
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("steps", [3, pytest.param(None, marks=pytest.mark.slow)])
def test_its_replay_in_python_has_the_cpu_s_bits(tmp_path, steps):
    write_kit(tmp_path, steps=steps)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 12e6
    command = [sys.executable, "-I", str(tmp_path / "run.py"), "--fused", "int"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    count = steps or 7
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"model: {count} of {count} steps have the CPU's bits" in done.stdout
    assert "a software driver, not a card: no times" in done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("device")
def test_other_logits_are_named(tmp_path):
    write_kit(tmp_path, steps=2)
    document = tmp_path / "model.json"
    text = document.read_text("utf-8")
    assert text.count("var y = sum;") > 0
    document.write_text(text.replace("var y = sum;", "var y = sum * 1.0001;"), "utf-8")
    command = [sys.executable, "-I", str(tmp_path / "run.py"), "--fused", "int"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "model: 0 of 2 steps have the CPU's bits; not 1 row at 0; not 2 rows at 0" in done.stdout


@pytest.mark.slow
def test_its_replay_in_a_browser_has_the_cpu_s_bits(served):
    """Chromium's compiler of shaders and SwiftShader, which flushes denormals."""
    with start_chromium(*SOFTWARE_GPU) as browser:
        page = browser.new_page()
        page.set_default_timeout(10 * MINUTES)
        page.goto(f"{served}?fused=int")
        page.wait_for_function("document.title !== 'trying …'")
        text = page.locator("pre").inner_text()
    assert "denormals are flushed" in text
    assert "model: 5 of 5 steps have the CPU's bits" in text, text
