"""The form of a file that llama.cpp reads: factors in matrices, and its names of tensors."""

from types import SimpleNamespace

import numpy as np
import pytest

from cutaway.errors import FormatError
from cutaway.files.weights import GGUFFile, TensorInfo, open_gguf
from cutaway.files.weights.gguf_writer import write_gguf
from cutaway.files.weights.llama_cpp import convert_for_llama_cpp

EMBEDDING, OUTPUT, NORM = "token_embd.weight", "output.weight", "blk.0.ffn_norm.weight"
HALVES = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float16)


def opened(path, tensors=(EMBEDDING, OUTPUT, NORM), **scales):
    """A file of these tensors, all alike."""
    metadata = {"general.architecture": "falcon-h1", "falcon-h1.block_count": 1}
    scales = {f"falcon-h1.{key}": value for key, value in scales.items()}
    write_gguf(path, SimpleNamespace(
        metadata=metadata | scales, value_types={},
        tensors={name: TensorInfo(name, "F16", HALVES.shape) for name in tensors},
        raw=lambda _name: HALVES.reshape(-1).view(np.uint8),
    ))  # fmt: skip
    return GGUFFile(path)


def numbers(file):
    return {name: (info.format, file.dequantize(name)) for name, info in file.tensors.items()}


def check(file, expected):
    stored = numbers(file)
    assert [*stored] == [*expected]
    for name, (format, factor) in expected.items():
        assert stored[name][0] == format
        assert np.array_equal(stored[name][1], HALVES.astype(np.float32) * np.float32(factor))


def test_factors_are_in_the_matrices_and_norms_have_no_ending(tmp_path):
    with opened(tmp_path / "a.gguf", embedding_scale=3.0, logit_scale=4.0) as file:
        form = convert_for_llama_cpp(file)
        check(form, {EMBEDDING: ("F32", 3), OUTPUT: ("F32", 0.25), "blk.0.ffn_norm": ("F16", 1)})
        assert form.metadata == {"general.architecture": "falcon-h1", "falcon-h1.block_count": 1}
        write_gguf(tmp_path / "b.gguf", form)
    with GGUFFile(tmp_path / "b.gguf") as again:
        assert {n: f for n, (f, _) in numbers(again).items()} == dict(zip(
            (EMBEDDING, OUTPUT, "blk.0.ffn_norm"), ("F32", "F32", "F16"), strict=True
        ))  # fmt: skip
        twice = convert_for_llama_cpp(again)
        assert [*twice.tensors.values()] == [
            TensorInfo(n, again.info(n).format, (4, 32)) for n in again.tensors
        ]


@pytest.mark.parametrize(
    ("scales", "expected"),
    [
        (
            {"embedding_scale": 3.0, "logit_scale": 4.0},
            {EMBEDDING: ("F32", 3), OUTPUT: ("F32", 0.25)},
        ),
        ({"logit_scale": 4.0}, {EMBEDDING: ("F16", 1), OUTPUT: ("F32", 0.25)}),
        ({"embedding_scale": 0.25, "logit_scale": 4.0}, {EMBEDDING: ("F32", 0.25)}),
        ({}, {EMBEDDING: ("F16", 1)}),
    ],
)  # fmt: skip
def test_a_matrix_of_two_factors_becomes_two(tmp_path, scales, expected):
    with opened(tmp_path / "a.gguf", (EMBEDDING,), **scales) as file:
        check(convert_for_llama_cpp(file), expected)


def test_keys_and_values_of_heads_are_one_matrix(tmp_path):
    """The reader takes them apart again, also if the file does not say how wide values are."""
    rng = np.random.default_rng(1)
    parts = {
        f"blk.0.attn_{name}.weight": rng.standard_normal((2, *shape)).astype(np.float32)
        for name, shape in (("k_b", (32, 48)), ("v_b", (16, 32)))
    }
    prefix = "minicpm3."
    write_gguf(tmp_path / "a.gguf", SimpleNamespace(
        metadata={
            "general.architecture": "minicpm3", f"{prefix}embedding_length": 32,
            f"{prefix}attention.head_count": 2, f"{prefix}attention.head_count_kv": 1,
            f"{prefix}attention.key_length_mla": 64, f"{prefix}attention.value_length_mla": 16,
        },
        value_types={},
        tensors={name: TensorInfo(name, "F32", x.shape) for name, x in parts.items()},
        raw=lambda name: parts[name].reshape(-1).view(np.uint8),
    ))  # fmt: skip
    with GGUFFile(tmp_path / "a.gguf") as file:
        form = convert_for_llama_cpp(file)
        assert [*form.tensors.values()] == [TensorInfo("blk.0.attn_kv_b.weight", "F32", (128, 32))]
        sizes = {key: form.metadata[f"{prefix}attention.{key}"] for key in (
            "head_count_kv", "key_length", "value_length"
        )}  # fmt: skip
        assert sizes == {"head_count_kv": 2, "key_length": 64, "value_length": 16}
        absent = f"{prefix}attention.value_length"
        form.metadata = {key: form.metadata[key] for key in form.metadata if key != absent}
        write_gguf(tmp_path / "b.gguf", form)
    with open_gguf([tmp_path / "b.gguf"]) as again:
        for name, matrix in parts.items():
            assert np.array_equal(again.dequantize(name), matrix)


def test_nemotron_h_has_its_epsilon_twice(tmp_path):
    metadata = {"general.architecture": "nemotron_h"}
    metadata |= {"nemotron_h.attention.layer_norm_rms_epsilon": 0.5}
    write_gguf(tmp_path / "a.gguf", SimpleNamespace(
        metadata=metadata, value_types={}, tensors={}, raw=None
    ))  # fmt: skip
    with GGUFFile(tmp_path / "a.gguf") as file:
        form = convert_for_llama_cpp(file)
    assert form.metadata == metadata | {"nemotron_h.attention.layer_norm_epsilon": 0.5}


def test_a_dense_model_of_deepseek2_has_the_keys_of_experts(tmp_path):
    sizes = {"block_count": 3, "feed_forward_length": 96}
    keys = {"leading_dense_block_count": 3, "expert_feed_forward_length": 96}
    keys |= {"expert_shared_count": 0}
    for experts, added in ((0, keys), (8, {})):
        metadata = {"general.architecture": "deepseek2", "deepseek2.expert_count": experts}
        metadata |= {f"deepseek2.{key}": value for key, value in sizes.items()}
        write_gguf(tmp_path / f"{experts}.gguf", SimpleNamespace(
            metadata=metadata, value_types={}, tensors={}, raw=None
        ))  # fmt: skip
        with GGUFFile(tmp_path / f"{experts}.gguf") as file:
            form = convert_for_llama_cpp(file)
        assert form.metadata == metadata | {f"deepseek2.{k}": v for k, v in added.items()}


@pytest.mark.parametrize("value", [-1.0, "two", True, float("nan")])
def test_a_scale_that_is_no_number_above_0_is_refused(tmp_path, value):
    with (
        opened(tmp_path / "a.gguf", logit_scale=value) as file,
        pytest.raises(FormatError, match=r"falcon-h1\.logit_scale must be a finite number above 0"),
    ):
        convert_for_llama_cpp(file)


def test_other_architectures_stay_as_they_are(tmp_path):
    with opened(tmp_path / "a.gguf", embedding_scale=3.0) as file:
        file.metadata = {**file.metadata, "general.architecture": "llama"}
        assert convert_for_llama_cpp(file) is file
