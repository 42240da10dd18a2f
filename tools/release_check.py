"""Builds the wheels that one machine can build, and checks each in the form that a user gets.

    python tools/release_check.py OUTPUT [--python PYTHON …] [--arm-root FOLDER …]
        [--only TARGET …] [--json FILE]

It builds the sdist, a wheel by this machine's own compiler, and for each target of
release_targets.py a wheel by zig's Clang, with LLVM's libc++ inside. It checks each wheel's tag
(auditwheel), its stable ABI (abi3audit), its contents (twine, the SBOM), whether pip finds wheels
of all requirements, and in fresh venvs whether it computes the bits of tools/fingerprint.py.
Needs package indexes and nothing else of the network. Knows nothing of publishing.
"""

import argparse
import functools
import shlex
import shutil
import sys
import tarfile
import tomllib
from pathlib import Path

from release_report import Report
from release_targets import TARGETS, Target, toolchain
from release_wheels import Wheel
from release_windows import python_of_windows

ROOT = Path(__file__).parents[1]
TOOLS = ("auditwheel>=6.8", "abi3audit>=0.0.26", "ziglang>=0.15", "twine", "wheel", "build")
BUILDING = ("build", "cmake>=3.26", "ninja")
STABLE = 12  # from this Python 3 on, one wheel serves all


def main() -> int:
    """Build, check, and print the table; return 1 if a check failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("output", type=Path)
    parser.add_argument("--python", nargs="+", default=[sys.executable])
    parser.add_argument("--arm-root", nargs="+", default=[], type=Path,
                        help="Debian's python3 for arm64, unpacked; run by qemu-aarch64",
                        metavar="FOLDER")  # fmt: skip
    names = ["source", *(target.name for target in TARGETS)]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    out = args.output.absolute()
    out.mkdir(parents=True, exist_ok=True)
    release = Release(Report(out / "log.txt"), out, args)
    if release.report.check("source", "sdist", release.sdist):
        if "source" in args.only:
            release.by_this_compiler()
        for target in TARGETS:
            if target.name in args.only:
                release.wheels(target)
    return release.report.end(args.json)


class Release:
    """One run: the folder of all outputs, the Pythons, and the report."""

    def __init__(self, report: Report, out: Path, args: argparse.Namespace) -> None:
        self.report = report
        self.out = out
        self.unpacked = out / "source"
        self.tools = report.venv(sys.executable, out / "tools", new=False)
        report.run(self.tools / "pip", "install", "-q", *TOOLS)
        self.pythons = {minor_of(report, python): python for python in args.python}
        self.arm = {
            int(python.name.partition(".")[2]): root.absolute()
            for root in args.arm_root
            for python in (root / "usr/bin").glob("python3.??")
        }

    def sdist(self) -> str:
        """Make the sdist, check how an index would show it, and unpack it for all other builds.

        The page's cores are compiled once for the sdist: they are the same for every platform.
        """
        cores = ROOT / "src/cutaway/trace/web/cores"
        self.report.run(ROOT / "native/web/build.sh", cores, PYTHON=str(self.tools / "python"))
        shutil.rmtree(self.out / "dist", ignore_errors=True)
        self.report.run(
            self.tools / "python", "-m", "build", "--sdist", "-o", self.out / "dist", ROOT
        )
        (sdist,) = (self.out / "dist").glob("*.tar.gz")
        self.report.run(self.tools / "twine", "check", "--strict", sdist)
        shutil.rmtree(self.unpacked, ignore_errors=True)
        with tarfile.open(sdist) as archive:
            archive.extractall(self.out, filter="data")
        (self.out / sdist.name.removesuffix(".tar.gz")).rename(self.unpacked)
        return f"{sdist.name}, {sdist.stat().st_size / 1e6:.2f} MB"

    def by_this_compiler(self) -> None:
        """Build a wheel as pip does without a published one; all wheels must have its bits."""
        python = next(iter(self.pythons.values()))

        def built() -> Wheel:
            made = fresh(self.out / "made-source")
            self.report.run(python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", made,
                            self.unpacked, CCACHE_DISABLE="1")  # fmt: skip
            return Wheel(self.report, self.tools, next(made.glob("*.whl")))

        if wheel := self.report.check("source", "built by pip", built):
            wheel.bits("source", python, self.out / "a fresh venv")

    def wheels(self, target: Target) -> None:
        """Build a wheel for each ABI that the Pythons at hand can build, and check it."""
        stable = min((minor for minor in self.pythons if minor >= STABLE), default=0)
        older = [minor for minor in self.pythons if minor < STABLE and target.system == "Linux"]
        for minor in filter(None, [stable, *older]):
            build = functools.partial(self.build, target, minor)
            wheel = self.report.check(target.name, f"wheel by 3.{minor}", build)
            if wheel:
                serves = [m for m in self.pythons if m == minor or m > minor >= STABLE]
                self.inspect(target, wheel, minor)
                self.run(target, wheel, serves)
        if not stable:
            self.report.not_made(target.name, "wheel, stable ABI", "name a Python 3.12 by --python")

    def build(self, target: Target, minor: int) -> Wheel:
        """Cross-compile a wheel, with the tag of the oldest operating systems that it serves."""
        own = self.report.venv(self.pythons[minor], self.out / f"build-3{minor}", new=False)
        backend = tomllib.loads((self.unpacked / "pyproject.toml").read_text())["build-system"]
        self.report.run(own / "pip", "install", "-q", *BUILDING, *backend["requires"])
        place = self.out / target.name
        cmake = toolchain(target, self.tools / "python", place / "bin")
        if target.system == "Windows":
            cmake |= python_of_windows(
                self.report, own / "python", minor, self.tools, place / "python"
            )
        made = fresh(place / f"made-3{minor}")
        self.report.run(
            own / "python", "-m", "build", "--wheel", "--no-isolation", "-o", made, self.unpacked,
            f"-Cbuild-dir={fresh(place / f'cmake-3{minor}')}",
            PATH=f"{own}:/usr/bin:/bin",
            CMAKE_ARGS=shlex.join(f"-D{key}={value}" for key, value in cmake.items()),
            _PYTHON_HOST_PLATFORM=target.platform,
            SETUPTOOLS_EXT_SUFFIX=f".cpython-3{minor}-{target.machine}-linux-gnu.so",  # not stable
        )  # fmt: skip
        (wheel,) = made.glob("*.whl")
        if target.system == "Linux":  # the wheel needs no library that auditwheel would add
            self.report.run(self.tools / "wheel", "tags", "--remove",
                            "--platform-tag", target.tag, wheel)  # fmt: skip
            (wheel,) = made.glob("*.whl")
        return Wheel(self.report, self.tools, wheel)

    def inspect(self, target: Target, wheel: Wheel, minor: int) -> None:
        """Make the checks of a wheel that do not run it."""
        check = self.report.check
        check(target.name, f"3.{minor} contents", wheel.contents)
        if target.system == "Linux":
            check(target.name, f"3.{minor} auditwheel", lambda: wheel.audited(target.tag))
        if minor >= STABLE:
            check(target.name, f"3.{minor} abi3audit", wheel.stable)
        check(target.name, f"3.{minor} requires", lambda: wheel.requires(target.takes, minor))

    def run(self, target: Target, wheel: Wheel, serves: list[int]) -> None:
        """Check a wheel's bits, if this machine or an emulator can run it."""
        if target.name == "linux-x86_64":
            for minor in serves:
                wheel.bits(
                    target.name, self.pythons[minor], self.out / "a fresh venv", target.tiers
                )
        elif target.name == "linux-aarch64":
            for minor, root in self.arm.items():
                if minor in serves:
                    wheel.bits_of_arm(target, minor, root, self.out / "an arm site")
            if not any(minor in self.arm for minor in serves):
                why = "no --arm-root with a Python that takes it"
                self.report.not_made(target.name, "bits", why)
        else:
            self.report.not_made(target.name, "bits", "compiled and linked; nothing here runs it")


def minor_of(report: Report, python: str) -> int:
    """The minor version of a Python: 12 for Python 3.12."""
    return int(report.run(python, "-c", "import sys; print(sys.version_info[1])"))


def fresh(folder: Path) -> Path:
    """Make the folder, empty: without files of an earlier run."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


if __name__ == "__main__":
    sys.exit(main())
