"""What builds cutaway is named by version and hash, wherever a release is built."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILE = "tools/build-requirements.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PINNED = re.compile(
    r"([\w-]+)==([\w.]+)(?: ; [^\\]+)? \\\n((?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)"
)


@pytest.fixture(scope="module")
def pinned():
    text = (ROOT / FILE).read_text()
    lines = "".join(line for line in text.splitlines(True) if not line.startswith("#"))
    assert PINNED.sub("", lines) == ""  # no package without a version and a hash
    return {name: version for name, version, _ in PINNED.findall(lines)}


def parts(version):
    return [int(part) for part in version.split(".")]


def test_what_pyproject_asks_for_is_pinned(pinned):
    for requirement in PROJECT["build-system"]["requires"]:
        name, _, oldest = requirement.partition(">=")
        assert parts(pinned[name]) >= parts(oldest)
    # What scikit-build-core asks for where there is none, and what runs it:
    assert {"cmake", "ninja", "build"} <= pinned.keys()


def commands(workflow):
    jobs = yaml.safe_load((ROOT / ".github/workflows" / workflow).read_text())["jobs"]
    return {name: [step.get("run", "") for step in job["steps"]] for name, job in jobs.items()}


def test_each_build_has_it():
    install = f"pip install --require-hashes -r {FILE}"
    assert {install, "python -m build --sdist --no-isolation"} <= {
        *commands("wheels.yml")["source"]
    }
    assert {install, "pip install --no-build-isolation '.[docs]'"} <= {
        *commands("docs.yml")["build"]
    }
    wheels = PROJECT["tool"]["cibuildwheel"]
    assert wheels["before-build"] == install.replace(FILE, f"{{project}}/{FILE}")
    assert wheels["build-frontend"] == {"name": "build", "args": ["--no-isolation"]}
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert f"--require-hashes -r /source/{FILE}" in dockerfile
    assert re.findall(r"pip wheel .*--no-build-isolation", dockerfile)


def test_nothing_else_is_built_from_an_index():
    """Each other package that a workflow installs is a wheel, and cutaway's own requirements."""
    for workflow in ("wheels.yml", "docs.yml"):
        for command in (one for job in commands(workflow).values() for one in job):
            assert "pipx" not in command
            if "pip install" in command:
                assert re.search(
                    r"--require-hashes|--no-build-isolation|--only-binary|--no-index", command
                )
