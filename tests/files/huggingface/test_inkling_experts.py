"""Inkling 2's own folders, whose experts are NVFP4 or MXFP8: beside the definition, beside
transformers, and what is refused.
"""

import numpy as np
import pytest

from cutaway import LLM, FormatError
from cutaway.files.huggingface import HuggingFaceFolder
from support.inkling_experts import quantise_experts, write_plain
from support.quantised.method import Typed
from support.quantised.tensors import read_tensors, write_tensors
from support.random_models import IDS, edit, logits

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
transformers = pytest.importorskip(
    "transformers", reason="needs transformers: pip install '.[test-transformers]'"
)

NVFP4 = "model.llm.layers.0.mlp.experts.w13_weight"
MXFP8 = "model.llm.layers.3.mlp.experts.w2_weight"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder of the publisher's, and its twin; not to be changed."""
    root = tmp_path_factory.mktemp("inkling")
    plain = write_plain(root / "plain")
    return [
        quantise_experts(plain, root / name, twin=name == "twin") for name in ("publisher", "twin")
    ]


def test_the_experts_keep_their_bits(folders):
    with HuggingFaceFolder(folders[0]) as ours, HuggingFaceFolder(folders[1]) as twin:
        for name in (name for name in twin.tensors if "_exps." in name):
            layer = int(name.split(".")[1])
            assert ours.info(name).format == ("NVFP4" if layer < 2 else "FP8_G32")
            assert np.array_equal(ours.dequantize_scaled(name), twin.dequantize(name))


def test_the_logits_are_transformers(folders):
    model = transformers.AutoModelForCausalLM.from_pretrained(folders[0], dtype="float32").eval()
    ours = LLM(folders[0], backend="reference").logits(IDS[:40])
    assert np.abs(ours - logits(model, IDS[:40])).max() < 1e-3


def test_the_native_backend_is_close(folders):
    twin = LLM(folders[1], backend="reference").logits(IDS[:40])
    native = LLM(folders[0]).logits(IDS[:40])
    assert np.sqrt(np.mean((native - twin) ** 2) / np.mean(twin**2)) < 0.1


def test_a_model_without_loops_has_such_experts_too(tmp_path):
    plain = write_plain(tmp_path / "plain", "inkling2-plain")
    ours, twin = (
        LLM(quantise_experts(plain, tmp_path / name, twin=name == "twin"), backend="reference")
        for name in ("publisher", "twin")
    )
    assert np.abs(ours.logits(IDS[:40]) - twin.logits(IDS[:40])).max() < 1e-4


@pytest.mark.parametrize("label", [{"quant_method": "of the publisher"}, {"format": "nvfp4"}])
def test_what_the_config_says_of_the_experts_is_not_read(folders, tmp_path, label):
    path = quantise_experts(folders[1], tmp_path / "labelled")
    edit(path / "config.json", quantization_config=label)
    assert np.array_equal(LLM(path).logits(IDS[:9]), LLM(folders[0]).logits(IDS[:9]))


def zeros(dtype, *shape):
    return Typed(dtype, np.zeros(shape, np.uint8))


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        (f"{NVFP4}_amax", None, r"w13_weight_amax' is missing, without which .*w13_weight' cannot"),
        (f"{NVFP4}_amax", np.ones(4, np.float32), r"_amax' has the shape \(4,\), .* not \(5,\)"),
        (f"{NVFP4}_amax", np.full(5, np.nan, np.float32), "_amax' divided by .*denominator' must"),
        (f"{NVFP4}_amax", -np.ones(5, np.float32), "must be finite numbers, 0 or above"),
        (
            f"{NVFP4}_outer_scale_denominator",
            np.zeros((), np.float32),
            "must be finite numbers, 0 or above",
        ),
        (
            f"{NVFP4}_outer_scale_denominator",
            np.ones(5, np.float32),
            r"denominator' has the shape \(5,\), and it must be one number",
        ),
        (f"{NVFP4}_scale", zeros("F8_E4M3", 5, 128, 4), r"\(5, 128, 4\), which is not \(5, 128, 8"),
        (f"{NVFP4}_scale", np.zeros((5, 128, 8), np.float32), "stored as F32; it must be F8_E4M3"),
        (NVFP4, np.zeros((640, 64), np.uint8), "2 dimensions, not the 3 of experts, outputs and"),
        (NVFP4, np.zeros((5, 128, 64), np.float32), "stored as F32; it must be U8 or F8_E4M3"),
        (MXFP8, zeros("F8_E4M3", 5, 128, 48), "rows of 48 weights, which are no whole groups of"),
        (f"{MXFP8}_scale", np.full((5, 128, 2), 255, np.uint8), "scales that are not finite"),
    ],
)
def test_what_does_not_fit_is_refused(folders, tmp_path, name, change, sentence):
    path = quantise_experts(folders[1], tmp_path / "changed")
    tensors = read_tensors(path / "model.safetensors")
    tensors = {key: value for key, value in tensors.items() if key != name}
    write_tensors(
        path / "model.safetensors", tensors if change is None else {**tensors, name: change}
    )
    with pytest.raises(FormatError, match=sentence):
        LLM(path, backend="reference")
