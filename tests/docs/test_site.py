"""The site: every page is in a section, every public name in the reference, and it can be built."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import cutaway

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
INDEX = (DOCS / "index.md").read_text("utf-8")


def test_every_page_is_in_one_section():
    pages = [path.relative_to(DOCS).with_suffix("") for path in DOCS.rglob("*.md")]
    named = re.findall(r"^[\w/-]+$", INDEX, re.MULTILINE)
    assert sorted(named) == sorted(str(page) for page in pages if str(page) != "index")


def test_links_lead_to_files():
    for page in (ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")):
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            assert (page.parent / link).exists(), (page.name, link)


def test_every_public_name_is_in_the_reference():
    page = (DOCS / "reference" / "api.md").read_text("utf-8")
    shown = set(re.findall(r"autoclass:: cutaway\.(\w+)", page))
    errors = {name for name in cutaway.__all__ if name.endswith("Error")}  # by their module
    assert shown == {*cutaway.__all__} - errors - {"__version__"}


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize(
    "notebook", sorted((DOCS / "notebooks").glob("*.md")), ids=lambda p: p.stem
)
def test_notebooks_run_and_claim_nothing_false(notebook, tmp_path):
    if find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed: it is of the extra docs")
    cells = re.findall(
        r"^```\{code-cell\} python\n(.*?)^```$", notebook.read_text("utf-8"), re.S | re.M
    )
    assert any("assert " in cell for cell in cells)
    more = {"MPLBACKEND": "agg", "OPENBLAS_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-c", "\n".join(cells)], cwd=tmp_path, env=_env() | more,
        text=True, capture_output=True, timeout=600, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]


def _env():
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.mark.slow
@pytest.mark.model
def test_it_is_built_without_a_warning(tmp_path):
    needed = ("sphinx", "furo", "myst_nb", "matplotlib", "sphinx_copybutton")
    if missing := [name for name in needed if find_spec(name) is None]:
        pytest.skip(f"the extra docs is not installed: {', '.join(missing)}")
    build = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-c", DOCS / "site"]
    run = subprocess.run(
        [*build, "-d", tmp_path / "doctrees", DOCS, tmp_path / "site"],
        env=_env(), text=True, capture_output=True, timeout=900, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    for words in ("The sky is", "cutaway trace branch", "POST /v1/completions", "top_n_sigma"):
        assert any(words in page.read_text("utf-8") for page in tmp_path.rglob("site/**/*.html"))
