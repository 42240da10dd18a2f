"""``cutaway export --page``: what it refuses. (trace/web/test_page_alone.py looks at the page.)"""

import subprocess
import sys


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
