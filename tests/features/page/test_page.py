"""``cutaway export --page``: what it refuses. (trace/web/test_page_alone.py looks at the page.)"""

import json
import subprocess
import sys

import pytest

from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.errors import InputError, OutOfMemoryError
from cutaway.features.page import folder as page_folder


def test_an_existing_folder_is_left_alone(refused, tiny_path, tmp_path):
    (tmp_path / "page").mkdir()
    said = refused("export", "--page", tiny_path, tmp_path / "page")
    assert "exists already: name a new folder, or delete it" in said
    assert not [*(tmp_path / "page").iterdir()]


def test_more_context_than_the_model_has_is_refused(refused, tiny_path, tmp_path):
    said = refused("export", "--page", tiny_path, tmp_path / "page", "--context", "100000")
    assert "context" in said


WITHOUT_SERVER = """
import sys
from pathlib import Path
for name in ("fastapi", "h11", "pydantic", "prometheus_client", "starlette", "uvicorn"):
    sys.modules[name] = None
from cutaway.cli.main import main
from cutaway.features.page import cores
cores.PACKAGED = Path(sys.argv[1])
sys.exit(main(["export", "--page", *sys.argv[2:]]))
"""


def test_it_needs_no_server_of_the_package(tiny_path, tmp_path):
    """README's other installation, `pip install .`, has no FastAPI."""
    (tmp_path / "cores").mkdir()
    (tmp_path / "cores/core.wasm").write_bytes(b"compiled")
    places = [tmp_path / "cores", tiny_path, tmp_path / "page"]
    command = [sys.executable, "-c", WITHOUT_SERVER, *map(str, places)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page/model/core.wasm").read_bytes() == b"compiled"


def export(path, folder):
    """Export a page with a core that nobody runs; return what it lacks."""
    (folder / "cores").mkdir()
    model = LoadedModel(path, Setup(), weights=False)
    return page_folder.write_page_folder(model, folder / "page", context=64, cores=folder / "cores")


def test_of_more_weights_than_a_core_can_have_it_says_that_a_gpu_is_needed(
    tiny_path, tmp_path, monkeypatch
):
    monkeypatch.setattr(page_folder, "CORE_BYTES", 1000)
    said = [sentence for sentence in export(tiny_path, tmp_path) if "WebAssembly" in sentence]
    assert len(said) == 1
    assert said[0].startswith("the page writes where there is a GPU alone, and has no inside of a")
    assert said[0].endswith("and WebAssembly has 1.0 kB")
    about = json.loads((tmp_path / "page/model/about.json").read_text())
    assert about["local"]["inside"] is False


def test_a_model_that_neither_a_core_nor_a_gpu_can_hold_is_refused(
    tiny_path, tmp_path, monkeypatch
):
    def refuse(*_):
        raise OutOfMemoryError("its buffers are too large")

    monkeypatch.setattr(page_folder, "CORE_BYTES", 1000)
    monkeypatch.setattr(page_folder, "record_page", refuse)
    with pytest.raises(InputError, match="neither on a GPU nor without one: its weights have"):
        export(tiny_path, tmp_path)
    assert not (tmp_path / "page").exists()
