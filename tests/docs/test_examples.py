"""Every page's examples, run from its first block to its last, in one folder beside a server.

A shell's blocks are run by a shell, Python's here, one after the other with what is known by then.
What cannot be run here is in ``NOT_RUN``, with its reason, and must still be on its page.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cutaway import LLM
from cutaway.files import hub
from cutaway.server.http.settings import ServerSettings
from support.doc_pages import PAGES, ROOT, blocks, commands
from support.page_sections import ADDRESS
from support.served import serve

ASKS = "asks at a terminal"
FETCHED = "fetches a model over the network"
SERVES = "serves until it is stopped"
FOLDER = "see tests/files/huggingface/test_folder_faces.py"
MINUTES = "takes minutes"
SMALLER = "takes minutes; the tour and the page's Python do it at a smaller size"
HOSTS = "is of other machines"
INSTALLS = "installs packages"
NOT_RUN = {
    ("README.md", "pip install"): INSTALLS,
    ("README.md", "cutaway serve"): SERVES,
    ("README.md", "cutaway verify "): MINUTES,
    ("docs/adapters.md", ""): "see tests/server/test_adapters.py",
    (
        "docs/interventions.md",
        'cutaway generate "The sky is" --control-vector',
    ): "needs such a file",
    ("docs/embed.md", "python bench/embeddings.py"): "needs two other engines",
    ("docs/experiments.md", "cutaway compare "): SMALLER,
    ("docs/experiments.md", "cutaway snowball "): SMALLER,
    ("docs/experiments.md", "cutaway repair "): SMALLER,
    ("docs/experiments.md", "cutaway exposure "): SMALLER,
    ("docs/fill.md", "cutaway generate -m hf:"): FETCHED,
    ("docs/install.md", "pip "): INSTALLS,
    ("docs/install.md", "make release-check"): MINUTES,
    ("docs/integrations.md", ""): "see tests/clients/conftest.py",
    ("docs/models.md", "cutaway generate -m big.gguf"): "is of a larger model",
    ("docs/models.md", "cutaway models show gemma3-270m"): FETCHED,
    ("docs/models.md", "cutaway generate -m hf:"): FETCHED,
    ("docs/models.md", "cutaway generate -m path/to/folder"): FOLDER,
    ("docs/models.md", "cutaway quantize path/to/folder"): FOLDER,
    ("docs/models.md", "cutaway models show path/to/folder"): FOLDER,
    ("docs/models.md", "Rscript"): "needs R and a book",
    ("docs/models.md", "python bench/train_canvas.py"): "trains for hours",
    ("docs/models.md", "cutaway quantize toy.gguf"): "of what was trained",
    ("docs/models.md", "python bench/make_model.py"): "makes gigabytes",
    ("docs/models.md", "python bench/compare.py"): "needs another engine",
    ("docs/models.md", "tail -1 1b.txt"): "of what was measured",
    ("docs/practice.md", "cutaway practice "): ASKS,
    ("docs/quantize.md", "python bench/kv_formats.py"): MINUTES,
    ("docs/scale.md", "pip install"): INSTALLS,
    ("docs/scale.md", "cutaway serve "): SERVES,
    ("docs/scale.md", "ray start"): HOSTS,
    ("docs/scale.md", "docker "): HOSTS,
    ("docs/scale.md", "kubectl "): HOSTS,
    ("docs/scale.md", "export RAY"): HOSTS,
    ("docs/scale.md", "# my_tracing.py"): "needs OpenTelemetry's exporter",
    ("docs/scale.md", "import ray"): "see tests/cluster/test_bulk.py",
    ("docs/scale.md", "import random, sys"): "see tests/server/test_without_ray.py",
    ("docs/score.md", "cutaway perplexity -m model.gguf"): "needs WikiText-2",
    ("docs/score.md", "zcat "): "needs such a file",
    ("docs/server.md", "pip install"): INSTALLS,
    ("docs/server.md", "cutaway serve"): SERVES,
    ("docs/server.md", "python bench/clients_measure.py"): "needs another engine",
    ("docs/tools.md", "cutaway chat --tools "): ASKS,
    ("docs/tour.md", "cutaway chat --tools "): ASKS,
    ("docs/tour.md", "cutaway serve "): SERVES,
    ("docs/tour.md", "cutaway resume "): "see tests/cli/test_resume.py",
    ("docs/tour.md", "cutaway verify "): MINUTES,
    ("docs/tour.md", "cutaway bench "): MINUTES,
    ("docs/tour.md", "cutaway generate -m hf:"): FETCHED,
    ("docs/tour.md", "cutaway generate -m gemma3-270m "): FETCHED,
    ("docs/trace.md", "cutaway resume "): "see tests/cli/test_resume.py",
    ("docs/spark.md", "import pandas"): "see tests/cluster/test_spark.py",
    ("docs/spark.md", "from pyspark"): "see tests/cluster/test_spark.py",
}
"""(page, what a command or a block of Python begins with) -> why it is not run here."""
GIVEN = {
    "city.json": '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}}',
    "sentences.txt": "The sky is blue.\nThe sea is deep.\n",
    "story.txt": "Once upon a time there was a lighthouse, and a keeper who wrote. " * 8,
    "weather.py": 'def weather(city: str) -> str:\n    """The weather."""\n    return "rain"\n',
    "book.txt": "It was a dark and stormy night; the rain fell in torrents. " * 8,
}
"""What a reader has, and no block makes."""
RUN = [
    page for page in PAGES if any(block.script or block.kind == "python" for block in blocks(page))
]
QUICK = ("docs/score.md", "docs/structured.md", "docs/tools.md")
"""Pages whose examples take seconds."""
SERVED = {"docs/denoise.md": "toy-canvas", "docs/embed.md": "minilm"}
"""Which model a page's server has, where it is not SmolLM2."""
LIMIT_S = 900


@pytest.fixture
def url(page):
    name = SERVED.get(page, "smollm2")
    with serve(LLM(name, progress=False), ServerSettings(names=[name])) as served:
        yield served.url


@pytest.fixture
def folder(tmp_path, monkeypatch, smollm2_path):
    for name, text in GIVEN.items():
        (tmp_path / name).write_text(text, "utf-8")
    for name in ("tests", "bench"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "path" / "to").mkdir(parents=True)
    for name in ("llada", "bert"):  # the toy reveals canvases and fills in masks as they do
        (tmp_path / "path" / "to" / name).symlink_to(hub.resolve("toy-canvas", progress=False))
    for name in ("other.gguf", "path/to/model.gguf"):
        (tmp_path / name).symlink_to(smollm2_path)
    program = tmp_path / "bin" / "cutaway"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m cutaway "$@"\n')
    program.chmod(0o755)
    path = [*sys.path, str(ROOT / "src")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    python = Path(sys.executable).parent
    monkeypatch.setenv(
        "PATH", f"{program.parent}{os.pathsep}{python}{os.pathsep}{os.environ['PATH']}"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.model
@pytest.mark.parametrize(
    "page", [page if page in QUICK else pytest.param(page, marks=pytest.mark.slow) for page in RUN]
)
def test_examples_run(page, url, folder):
    known = {}
    for block in blocks(page):
        code = block.code.replace(ADDRESS, url)
        if block.kind == "python" and not left_out(page, block.code):
            exec(compile(code, f"{page}, line {block.line}", "exec"), known)
        elif block.script:
            run = [one for one in commands(block.script) if not left_out(page, one)]
            out = shell("\n".join(run).replace(ADDRESS, url), f"{page}, line {block.line}")
            if block.kind == "console" and run:
                assert out.rstrip() == block.code.partition("\n")[2].rstrip()


def left_out(page, code):
    return any(page == p and code.startswith(begins) for p, begins in NOT_RUN)


_FAIL = 'curl() { command curl --fail-with-body "$@"; }\npip() { false; }\n'
"""What a page downloads must be there, and a test installs nothing."""


def shell(script, place):
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-v", "-c", _FAIL + script], stdin=subprocess.DEVNULL,
        text=True, capture_output=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{place}:\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.parametrize(("page", "begins"), NOT_RUN)
def test_what_is_not_run_is_on_its_page(page, begins):
    found = [
        code
        for block in blocks(page)
        for code in ([block.code] if block.kind == "python" else commands(block.script))
    ]
    assert any(code.startswith(begins) for code in found)
    reason, _, test = NOT_RUN[page, begins].partition("see ")
    assert reason or (ROOT / test).exists()
