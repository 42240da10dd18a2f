"""The tier of WebAssembly: its fused multiply-add, and the core that a page runs, in Node."""

import shutil
import sys

import pytest

from support.in_the_core import CORE_JS, check, run_core, write_page
from support.random_granite_hybrid import write_tiny_granite_hybrid
from support.random_lfm2 import write_tiny_lfm2
from support.random_qwen35 import write_tiny_qwen35
from support.wasm import NATIVE, NEEDS, cores, run

pytest.importorskip("ziglang", reason=NEEDS)
pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")

CXX = f"{sys.executable} -m ziglang c++ -target wasm32-wasi"
PROMPTS = ("The sky is", "Größe der Welt: 1, 2, 3, 5, 7,", "def f(x):\n    return x" * 6)


def fma(compiler, program, *flags):
    """The program that tries a tier's fused multiply-add."""
    common = ["-std=c++20", "-O2", "-ffp-contract=off", "-fno-strict-aliasing", "-Wno-deprecated"]
    run(*compiler.split(), *common, *flags, NATIVE / "tests/fma.cpp", "-o", program)
    return program


@pytest.mark.parametrize(
    ("millions", "hashed"),
    [("1", "d8a074a246373c8d"), pytest.param("4", "cf700c338748b426", marks=pytest.mark.slow)],
)
def test_the_fused_multiply_add_is_that_of_whole_numbers(tmp_path, millions, hashed):
    # As the cores are compiled: with other flags, or C++'s library, more would be compiled first.
    flags = ["-mcpu=generic+simd128+atomics+bulk_memory", "-g0", "-nostdlib++"]
    program = fma(CXX, tmp_path / "fma.wasm", *flags, "-DCUTAWAY_WASM", "-DCUTAWAY_TIER=wasm")
    said = run(
        "node",
        "--no-warnings",
        "--single-threaded",
        NATIVE / "tests/in_node.mjs",
        program,
        millions,
    )
    assert said == f"fma of {millions}000000: 0 differ, {hashed}\n"
    if compiler := shutil.which("g++"):  # the hash is that of a processor, or of glibc
        native = fma(compiler, tmp_path / "fma", "-DCUTAWAY_TIER=generic")
        assert run(native, millions) == said


@pytest.mark.parametrize("prompts", [PROMPTS[:1], pytest.param(PROMPTS, marks=pytest.mark.slow)])
def test_smollm2_in_the_core_is_smollm2(smollm2_path, tmp_path, prompts):
    check(smollm2_path, tmp_path, prompts)


@pytest.mark.parametrize("write", [write_tiny_lfm2, write_tiny_granite_hybrid, write_tiny_qwen35])
def test_layers_with_states_go_on_from_them_in_the_core(write, tmp_path):
    """Past the end of a KV block, too."""
    path = write(tmp_path / "tiny.gguf")
    check(path, tmp_path, [list(range(10, 10 + length)) for length in (3, 30)])


def test_what_the_core_refuses_is_an_error_and_its_stack_is_as_before(smollm2_path, tmp_path):
    page = write_page(smollm2_path, tmp_path / "page")
    said = run_core(cores() / "core.wasm", page, "wrong")
    assert said == "Error: batch: a token is outside the vocabulary 0\n"


def test_weights_that_there_is_no_memory_for_are_refused_in_a_sentence(tmp_path):
    (script := tmp_path / "large.mjs").write_text(
        """import { readFile } from "node:fs/promises";
const [js, wasm] = process.argv.slice(2), { Core } = await import(js);
const core = await Core.open(await WebAssembly.compile(await readFile(wasm)));
for (const bytes of [2 ** 32, 2 ** 32 - 2 ** 26]) {
  await core.build({ bytes }).catch(({ message }) => console.log(message));
}
"""
    )
    too_many, too_little = run("node", script, CORE_JS, cores() / "core.wasm").splitlines()
    assert too_many.startswith("the model's weights have 4.3 GB, and without a GPU a page can hold")
    assert too_little.startswith("the browser has not enough memory for this model: close other")
