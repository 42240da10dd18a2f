"""The native code without Python: other compilers, sanitizers, ARM in an emulator."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.wasm import flags_of_relaxed

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
BUILD = ROOT / "native/tests/build.sh"
ARM = "aarch64-linux-gnu-g++"
LINES = 44 + 3 + 5 + 2 + 2 + 2 * 16 + 1
"""Formats of the llama, of the other model, of keys and values, of the one with states, of Mamba 1
and RWKV-7, those written, without and with importance; the sampler."""


def built(directory, compiler, *flags, kernel_flags=""):
    program = directory / "bits"
    environment = os.environ | {"CXX": compiler, "KERNEL_FLAGS": kernel_flags}
    subprocess.run([BUILD, program, *flags], env=environment, check=True)
    return program


def fingerprints(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == LINES
    return lines


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The fingerprints of this machine, all of whose tiers agree."""
    compiler = shutil.which("g++") or pytest.skip("g++ is not installed")
    return fingerprints(built(tmp_path_factory.mktemp("here"), compiler))


@pytest.mark.skipif(not shutil.which(ARM), reason=f"{ARM} is not installed")
@pytest.mark.skipif(not shutil.which("qemu-aarch64"), reason="qemu-aarch64 is not installed")
def test_neon_computes_the_bits_of_this_machine(here, tmp_path):
    """The tiers of an ARM machine, under qemu-user; and its libm makes the same angles."""
    program = built(tmp_path, ARM, "-static")
    assert fingerprints("qemu-aarch64", program) == here


@pytest.mark.skipif(not shutil.which("clang++"), reason="clang++ is not installed")
def test_clang_with_its_own_library_computes_the_bits_of_gcc(here, tmp_path):
    (tmp_path / "try.cpp").write_text("#include <vector>\n")
    try_it = ["clang++", "-stdlib=libc++", "-fsyntax-only", tmp_path / "try.cpp"]
    if subprocess.run(try_it, capture_output=True, check=False).returncode:
        pytest.skip("libc++ is not installed")
    assert fingerprints(built(tmp_path, "clang++ -stdlib=libc++")) == here


@pytest.mark.skipif(not shutil.which("node"), reason="there is no node here")
@pytest.mark.parametrize("relaxed", [False, True], ids=["plain", "relaxed"])
def test_webassembly_computes_the_bits_of_this_machine(here, tmp_path, relaxed):
    """With one thread, and a fused multiply-add that is made of doubles, or is the browser's."""
    pytest.importorskip("ziglang", reason="needs ziglang: pip install '.[test-wasm]'")
    compiler = f"{sys.executable} -m ziglang c++ -target wasm32-wasi"
    program = built(tmp_path, compiler, kernel_flags="-mrelaxed-simd" if relaxed else "")
    flags = flags_of_relaxed() if relaxed else []
    node = ["node", "--no-warnings", "--single-threaded", *flags]
    assert fingerprints(*node, ROOT / "native/tests/in_node.mjs", program) == here


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_sanitizers_find_nothing():
    done = subprocess.run(
        ["make", "sanitize"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-5000:]
