"""Clients of Node.js: Vercel's ``ai`` with ``@ai-sdk/openai-compatible``, and promptfoo.

Slow. They want Node.js 22.22 or later, and a folder outside the repository with what
npm/package.json names (1.5 GB, a minute):

    cp tests/clients/npm/package.json FOLDER && npm install --prefix FOLDER
    CUTAWAY_NPM=FOLDER pytest -m slow tests/clients/test_node_clients.py
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.page_sections import blocks

NPM = Path(os.environ.get("CUTAWAY_NPM", "."))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.model,
    pytest.mark.skipif(not shutil.which("node"), reason="Node.js is not installed"),
    pytest.mark.skipif(
        "CUTAWAY_NPM" not in os.environ,
        reason="CUTAWAY_NPM names no folder in which npm has installed tests/clients/npm",
    ),
]


@pytest.fixture
def run(tmp_path):
    """Runs a program of Node.js beside the packages; what it printed."""
    (tmp_path / "node_modules").symlink_to((NPM / "node_modules").absolute())
    quiet = {"PROMPTFOO_DISABLE_TELEMETRY": "1", "PROMPTFOO_DISABLE_UPDATE": "1"}
    environment = {**os.environ, **quiet, "PROMPTFOO_CONFIG_DIR": str(tmp_path / "promptfoo")}

    def run(name, *words):
        done = subprocess.run(
            ["node", name, *words], cwd=tmp_path, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout

    return run


def test_vercels_ai(run, url, llm, tmp_path):
    shutil.copy(Path(__file__).parent / "npm" / "ai_sdk.mjs", tmp_path)
    ask = [{"role": "user", "content": "Name a city."}]
    run("ai_sdk.mjs", url, llm.chat(ask, temperature=0, max_tokens=60).text)


def test_the_example_of_vercels_ai(run, url, tmp_path):
    [example] = blocks("integrations.md", "Vercel's AI SDK", "js", url)
    (tmp_path / "example.mjs").write_text(example)
    assert "rain in" in run("example.mjs")


def test_promptfoo(run, url, tmp_path):
    [config] = blocks("integrations.md", "promptfoo", "yaml", url)
    (tmp_path / "promptfooconfig.yaml").write_text(config)
    run("node_modules/promptfoo/dist/src/main.js", "eval", "--no-cache", "-o", "out.json")
    told = json.loads((tmp_path / "out.json").read_text())["results"]
    assert told["stats"]["successes"] == 2
    texts = {one["provider"]["label"]: one["response"]["output"] for one in told["results"]}
    assert texts["text"] and texts["schema"]["city"] in ("Paris", "Rome")
