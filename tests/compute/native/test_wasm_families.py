"""Families of decoders in the core that a page runs: the bits of the native tiers."""

import shutil

import pytest

from cutaway.errors import InputError
from support.in_the_core import check, write_page
from support.wasm import NEEDS

pytest.importorskip("ziglang", reason=NEEDS)
pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")
from support import random_models

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")

USUAL = ("qwen3_moe", "gpt_oss", "deepseek_v2", "granite4-h-moe", "qwen3_5_moe", "phimoe")
"""Ways to choose experts, biases, latents, and states beside experts."""
REFUSED = ("gemma4", "gemma3n", "gemma3n-other")
BOTH_SIDES = ("hrm_text",)
"""Prompts that a page does not read; it refuses such models (tests/rerun/test_prefix_lm.py)."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in USUAL else pytest.mark.slow)
        for name in (*random_models.FAMILIES, "rwkv7")
        if name not in (*REFUSED, *BOTH_SIDES)
    ],
)
def test_its_bits_are_those_of_the_native_tiers(name, tmp_path):
    random_models.save(name, tmp_path / "model")
    check(tmp_path / "model", tmp_path, [random_models.IDS[:3], random_models.IDS[:40]])


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_core_cannot_run_is_refused(name, tmp_path):
    random_models.save(name, tmp_path / "model")
    with pytest.raises(InputError, match="needs a table of embeddings that stays in its file"):
        write_page(tmp_path / "model", tmp_path / "page")
