"""A host that rounds in its own way, or takes tiny numbers for 0, changes no bit of a model's."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support import host_arithmetic
from support.random_granite_hybrid import write_tiny_granite_hybrid
from support.random_lfm2 import write_tiny_lfm2
from support.random_llama import write_tiny_late, write_tiny_llama, write_tiny_ranker
from support.random_mamba2 import write_tiny_mamba2
from support.random_qwen35 import write_tiny_qwen35

pytestmark = pytest.mark.skipif(
    not host_arithmetic.is_known(), reason="the arithmetic is changed through glibc, on x86-64"
)
TOYS = ("toy-writer", "toy-canvas")
OTHERS = (
    write_tiny_granite_hybrid, write_tiny_lfm2, write_tiny_late, write_tiny_ranker,
    write_tiny_mamba2, write_tiny_qwen35, write_tiny_llama,
)  # fmt: skip


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    folder = tmp_path_factory.mktemp("others")
    return [str(write(folder / f"{write.__name__}.gguf")) for write in OTHERS]


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """The hashes of all that models compute in a process of this arithmetic."""
    known, folder = {}, tmp_path_factory.mktemp("run")  # whose name is in a trace

    def found(mode, *names):
        if (mode, names) not in known:
            done = subprocess.run(
                [sys.executable, "-m", host_arithmetic.__name__, mode, folder, *names],
                cwd=Path(host_arithmetic.__file__).parents[1], capture_output=True, text=True,
                timeout=600, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr[-2000:]
            known[mode, names] = json.loads(done.stdout)
        return known[mode, names]

    return found


def assert_equal(computed, mode, *names):
    usual, found = computed("usual", *names), computed(mode, *names)
    assert usual.keys() == found.keys()
    for model, expected in usual.items():
        assert len(expected) >= 4
        unlike = [name for name, hashed in expected.items() if found[model].get(name) != hashed]
        assert not unlike, (mode, model)


def test_what_toys_compute_is_the_same_in_all_modes_at_once(computed):
    assert_equal(computed, "all at once", *TOYS)


@pytest.mark.slow
@pytest.mark.parametrize("mode", host_arithmetic.MODES[1:])
def test_what_all_kinds_of_layers_compute_is_the_same_in(mode, computed, others):
    assert_equal(computed, mode, *TOYS, *others)
