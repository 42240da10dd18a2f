"""What a release check reports; the check itself builds the wheels."""

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from release_report import CheckError, Report, Row
from release_targets import TARGETS, toolchain
from release_wheels import Bits, Wheel


@pytest.fixture
def report(tmp_path):
    return Report(tmp_path / "log.txt")


def test_a_check_is_reported_with_its_result(report, tmp_path, capsys):
    assert report.check("a wheel", "size", lambda: 3) == 3
    report.not_made("a wheel", "bits", "no processor")
    assert report.end(tmp_path / "rows.json") == 0
    said = capsys.readouterr().out
    assert "a wheel: size: ok: 3\n" in said and "2 checks, 0 failed, 1 not made" in said
    rows = [Row(**row) for row in json.loads((tmp_path / "rows.json").read_text())]
    assert [row.outcome for row in rows] == ["ok", "not made"]
    assert [asdict(row) for row in rows] == [asdict(row) for row in report.rows]


def test_a_command_that_fails_is_reported_and_the_others_run(report):
    fails = "print('why'); raise SystemExit(3)"
    assert report.check("it", "run", lambda: report.run(sys.executable, "-c", fails)) is None
    assert report.check("it", "next", lambda: "made") == "made"
    assert "ended with 3:\nwhy" in report.rows[0].found
    assert "why" in report.log.read_text()
    assert report.end(None) == 1


def test_bits_that_differ_are_no_bits():
    same = Bits("avx2: 6a93227b6f5def41\ngeneric: 6a93227b6f5def41\n")
    assert str(same) == "6a93227b6f5def41 on avx2, generic"
    for printed in ("", "avx2: 6a93227b6f5def41\ngeneric: 0a93227b6f5def41\n"):
        with pytest.raises(CheckError, match="no bits, or several"):
            Bits(printed)


def test_a_wheel_without_its_parts_is_refused(report, tmp_path):
    file = tmp_path / "cutaway-1-cp312-abi3-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("cutaway/base/_native.abi3.so", b"")
    (tmp_path / "twine").write_text("#!/bin/sh\n")
    (tmp_path / "twine").chmod(0o755)
    with pytest.raises(CheckError, match="SBOM: 0 files"):
        Wheel(report, tmp_path, file).contents()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("linux-aarch64", "-mcpu=generic+v8_2a+dotprod+fullfp16+i8mm|-dynamiclib|-ldl|a b.cpp"),
        ("macos-arm64", "-mcpu=generic+v8_2a+dotprod+fullfp16+i8mm|-dynamiclib|-ldl|a b.cpp"),
        ("windows-x86_64", "-mcpu=generic+v8_2a+dotprod+fullfp16+i8mm|-dynamiclib|a b.cpp"),
    ],
)
def test_zig_gets_flags_that_it_knows(name, said, tmp_path):
    (target,) = [target for target in TARGETS if target.name == name]
    python = tmp_path / "a python"
    python.write_text("#!/bin/sh\nIFS='|'; printf '%s' \"$*\"")
    python.chmod(0o755)
    compiler = toolchain(target, python, tmp_path / "the tools")["CMAKE_CXX_COMPILER"]
    words = ["-march=armv8.2-a+dotprod+fp16+i8mm", "-bundle", "-ldl", "a b.cpp"]
    told = subprocess.run([compiler, *words], check=True, capture_output=True, text=True).stdout
    assert told == f"-m|ziglang|c++|-target|{target.zig}|-O2|{said}"


# -- build requirements ----------------------------------------------------------------------------

# What builds cutaway is named by version and hash, wherever a release is built.


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
    assert {install, "pip install --no-build-isolation '.[docs,test-wasm]'"} <= {
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


# -- advisories ------------------------------------------------------------------------------------

# Of what is required no version that is taken has a hole that an advisory tells of.
#
# By pip-audit, which asks an index: where that knows no advisories, or cannot be reached, the test
# is
# skipped, and says so.


REQUIRED = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
USED = ("hf", "receipt", "ray", "ray-data", "serve")
"""The extras of what runs where cutaway does."""
HARMLESS = {"pip": "its holes are in sdists and repositories, and wheels alone are fetched"}


def requirements():
    """What a user installs with cutaway, by name, and the oldest version of it."""
    lines = [*REQUIRED["dependencies"]]
    lines += [line for extra in USED for line in REQUIRED["optional-dependencies"][extra]]
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


# -- workflows -------------------------------------------------------------------------------------

# The workflows name jobs, files and targets that there are; GitHub alone can run them.


@pytest.mark.parametrize("name", ["check", "docs", "wheels"])
def test_what_a_workflow_names_is_there(name):
    jobs = yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text())["jobs"]
    for job in jobs.values():
        needs = job.get("needs", [])
        assert {needs} <= set(jobs) if isinstance(needs, str) else {*needs} <= set(jobs)
        for command in [step["run"] for step in job["steps"] if "run" in step]:
            for file in re.findall(r"\S+\.py\b", command):
                assert (ROOT / file).is_file()
            for target in re.findall(r"^make (\w+)", command):
                assert f"\n{target}:" in (ROOT / "Makefile").read_text()


def test_wheels_are_tried_where_they_are_built():
    jobs = yaml.safe_load((ROOT / ".github/workflows/wheels.yml").read_text())["jobs"]
    built, tried = (jobs[name]["strategy"]["matrix"]["machine"] for name in ("wheels", "tried"))
    assert built == tried and jobs["publish"]["needs"] == ["tried", "source"]


def test_forms_ask_for_what_commands_print():
    forms = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml"))
    assert [path.stem for path in forms] == ["fault", "model", "wrong-number"]
    for path in forms:
        form = yaml.safe_load(path.read_text())
        asked = {field["id"]: field["attributes"] for field in form["body"] if "id" in field}
        assert "`python tools/report.py" in asked["report"]["description"]
        assert {*form} == {"name", "description", "labels", "body"}
