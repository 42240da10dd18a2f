"""The checks of one wheel: its tag, its stable ABI, its contents, its requirements, its bits.

Does not know how the wheel was built.
"""

import json
import re
import shutil
import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path

from release_report import CheckError, Report
from release_targets import Target

CORES = r"^cutaway/trace/web/cores/core[a-z-]*\.wasm$"
FINGERPRINT = Path(__file__).with_name("fingerprint.py")


class Wheel:
    """A wheel's file, and the programs that check it."""

    def __init__(self, report: Report, tools: Path, file: Path) -> None:
        self.report = report
        self.tools = tools
        self.file = file

    def __str__(self) -> str:
        return f"{self.file.name}, {self.file.stat().st_size / 1e6:.1f} MB"

    def contents(self) -> str:
        """Check for all licences, an SBOM and one library, and that an index takes it.

        Raises:
            CheckError: if one of these is missing.
        """
        self.report.run(self.tools / "twine", "check", "--strict", self.file)
        with zipfile.ZipFile(self.file) as archive:
            names = archive.namelist()
            size = sum(info.file_size for info in archive.infolist())
            wanted = {"SBOM": r"/sboms/.*\.cdx\.json$", "licence": r"/licenses/LICENSE$",
                      "library": r"^cutaway/base/_native.*\.(so|pyd)$"}  # fmt: skip
            found = {}
            for what, pattern in wanted.items():
                matches = [name for name in names if re.search(pattern, name)]
                if len(matches) != 1:
                    raise CheckError(f"{what}: {len(matches)} files match {pattern}")
                found[what] = matches[0]
            parts = [part["name"] for part in json.loads(archive.read(found["SBOM"]))["components"]]
        if len(cores := [name for name in names if re.search(CORES, name)]) != 4:
            raise CheckError(f"what a page runs: {len(cores)} files match {CORES}, not 4")
        for part in parts:
            if not any(name.endswith(f"/licenses/{part}.txt") for name in names):
                raise CheckError(f"licence of {part}, which is compiled in: no {part}.txt")
        return (
            f"{Path(found['library']).name}, {size / 1e6:.1f} MB unpacked, SBOM: {', '.join(parts)}"
        )

    def audited(self, policy: str) -> str:
        """The oldest glibc with which the wheel runs, by auditwheel.

        Raises:
            CheckError: if the wheel's name promises an older glibc, or it needs other libraries.
        """
        said = " ".join(self.report.run(self.tools / "auditwheel", "show", self.file).split())
        found = re.search(r'following platform tag: "manylinux_2_(\d+)_(\w+)"', said)
        newest = int(policy.split("_")[2])
        alone = "shared libraries are required by the wheel" not in said
        if not found or int(found[1]) > newest or not policy.endswith(found[2]) or not alone:
            raise CheckError(f"not {policy}: {said}")
        return f"needs glibc 2.{found[1]} and no library beside it"

    def stable(self) -> str:
        """Check that the wheel uses nothing outside of the stable ABI in its name."""
        self.report.run(self.tools / "abi3audit", "--strict", "--report", self.file)
        return "strict"

    def requires(self, platforms: Sequence[str], minor: int) -> str:
        """Check that all requirements have wheels for these platforms."""
        plan = self.file.parent / "plan.json"
        self.report.run(
            self.tools / "pip", "install", "-q", "--dry-run", "--ignore-installed",
            "--only-binary=:all:", f"--python-version=3.{minor}", "--implementation=cp",
            *(f"--platform={platform}" for platform in platforms),
            "--target", self.file.parent / "nowhere", "--report", plan, self.file,
        )  # fmt: skip
        found = json.loads(plan.read_text())["install"]
        return f"{len(found) - 1} packages, all wheels"

    def bits(self, subject: str, python: str, place: Path, tiers: Collection[str] = ()) -> None:
        """Check the wheel's bits in a fresh venv, on each instruction set of this machine."""
        name = f"bits, {self.report.run(python, '--version').split()[1]}"

        def written() -> str:
            programs = self.report.venv(python, place)
            self.report.run(programs / "pip", "install", "-q", "--only-binary=:all:", self.file)
            return self.report.run(programs / "python", FINGERPRINT, cwd=place)

        self._tell(subject, name, self.report.check(subject, name, lambda: Bits(written())), tiers)

    def bits_of_arm(self, target: Target, minor: int, root: Path, site: Path) -> None:
        """Check the wheel's bits in an emulator, with the dependencies' wheels for ARM."""
        name = f"bits, 3.{minor}, emulated"

        def written() -> str:
            shutil.rmtree(site, ignore_errors=True)
            self.report.run(
                self.tools / "pip", "install", "-q", "--only-binary=:all:", "--implementation=cp",
                f"--python-version=3.{minor}",
                *(f"--platform={tag}" for tag in target.takes),
                "--target", site, self.file,
            )  # fmt: skip
            return self.report.run(
                "qemu-aarch64", root / f"usr/bin/python3.{minor}", FINGERPRINT, cwd=site,
                QEMU_LD_PREFIX=str(root), QEMU_CPU="max", PYTHONPATH=str(site),
            )  # fmt: skip

        bits = self.report.check(target.name, name, lambda: Bits(written()))
        self._tell(target.name, name, bits, target.tiers)

    def _tell(self, subject: str, name: str, bits: "Bits | None", tiers: Collection[str]) -> None:
        """Note the instruction sets of the wheel that no processor here has."""
        for tier in tiers:
            if bits and tier not in bits.found:
                self.report.not_made(subject, f"{name}, {tier}", "no processor here has it")


class Bits:
    """The fingerprint of each instruction set, as tools/fingerprint.py prints them."""

    def __init__(self, printed: str) -> None:
        self.found = dict(re.findall(r"^(\w+): (\w{16})$", printed, re.M))
        if not self.found or len(set(self.found.values())) != 1:
            raise CheckError(f"no bits, or several: {printed}")

    def __str__(self) -> str:
        return f"{next(iter(self.found.values()))} on {', '.join(self.found)}"
