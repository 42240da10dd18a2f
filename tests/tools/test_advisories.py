"""Of what is required no version that is taken has a hole that an advisory tells of.

By pip-audit, which asks an index: where that knows no advisories, or cannot be reached, the test is
skipped, and says so.
"""

import json
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
USED = ("hf", "receipt", "ray", "ray-data", "serve")
"""The extras of what runs where cutaway does."""
HARMLESS = {"pip": "its holes are in sdists and repositories, and wheels alone are fetched"}


def requirements():
    """What a user installs with cutaway, by name, and the oldest version of it."""
    lines = [*PROJECT["dependencies"]]
    lines += [line for extra in USED for line in PROJECT["optional-dependencies"][extra]]
    each = (Requirement(line) for line in lines)
    return {
        one.name: str(one.specifier).removeprefix(">=") for one in each if one.name != "cutaway"
    }


def installed():
    found = {}
    for name in requirements():
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def test_each_requirement_says_its_oldest_version():
    assert all(oldest.replace(".", "").isdigit() for oldest in requirements().values())


@pytest.mark.slow
@pytest.mark.parametrize("versions", [requirements, installed], ids=["oldest", "installed"])
def test_no_hole_is_known(versions, tmp_path):
    pytest.importorskip("pip_audit", reason="needs pip-audit: pip install '.[test-advisories]'")
    asked = {name: v for name, v in versions().items() if name not in HARMLESS}
    file = tmp_path / "requirements.txt"
    file.write_text("".join(f"{name}=={v}\n" for name, v in asked.items()))
    audit = ["-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner=off"]
    done = subprocess.run(
        [sys.executable, *audit, "--format=json", "-r", str(file)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if not done.stdout:
        pytest.skip(f"pip-audit gave no answer: {done.stderr.strip().splitlines()[-1]}")
    each = json.loads(done.stdout)["dependencies"]
    if all("skip_reason" in one for one in each):
        pytest.skip(f"the index here knows no advisories: {each[0]['skip_reason']}")
    found = {one["name"]: [v["id"] for v in one["vulns"]] for one in each if one.get("vulns")}
    assert not found
