"""What a release check reports; the check itself builds the wheels."""

import json
import subprocess
import sys
import zipfile
from dataclasses import asdict

import pytest

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
