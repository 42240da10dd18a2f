"""The form of a file that llama.cpp reads: factors in matrices, and its names of tensors."""

from types import SimpleNamespace

import numpy as np
import pytest

from cutaway.errors import FormatError
from cutaway.files.weights import GGUFFile, TensorInfo, open_gguf
from cutaway.files.weights.cursor import NUMBERS
from cutaway.files.weights.gguf_writer import write_gguf
from cutaway.files.weights.llama_cpp import convert_for_llama_cpp

EMBEDDING, OUTPUT, NORM = "token_embd.weight", "output.weight", "blk.0.ffn_norm.weight"
TYPES = {dtype: type_id for type_id, dtype in NUMBERS.items()}
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


@pytest.mark.parametrize("names", ["kv", "vk"])
def test_keys_and_values_of_heads_are_one_matrix(tmp_path, names):
    """The reader takes them apart again, also if the file does not say how wide values are."""
    rng = np.random.default_rng(1)
    parts = {
        f"blk.0.attn_{name}.weight": rng.standard_normal((2, *shape)).astype(np.float32)
        for name, shape in (("k_b", (32, 48)), ("v_b", (16, 32)))
    }
    parts = {f"blk.0.attn_{x}_b.weight": parts[f"blk.0.attn_{x}_b.weight"] for x in names}
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


def test_a_product_that_is_too_large_is_refused(tmp_path):
    with opened(tmp_path / "a.gguf", embedding_scale=1e15) as file:
        form = convert_for_llama_cpp(file)
        file.dequantize = lambda _name: np.full((4, 32), 1e30, np.float32)
        with pytest.raises(FormatError, match=r"'token_embd.weight' times 1e.15 are too"):
            form.raw(EMBEDDING)


def test_a_tensor_under_both_names_is_refused(tmp_path):
    told = "'blk.0.ffn_norm' .4, 32. and 'blk.0.ffn_norm.weight' .4, 32. are the same"
    with (
        opened(tmp_path / "a.gguf", (EMBEDDING, NORM, "blk.0.ffn_norm")) as file,
        pytest.raises(FormatError, match=told),
    ):
        convert_for_llama_cpp(file)


def zeros(path, metadata, **shapes):
    """A file of zeros: blk.0.NAME.weight has the shape."""
    tensors = {f"blk.0.{name}.weight": shape for name, shape in shapes.items()}
    write_gguf(path, SimpleNamespace(
        metadata=metadata, value_types={},
        tensors={name: TensorInfo(name, "F32", shape) for name, shape in tensors.items()},
        raw=lambda name: np.zeros(tensors[name], np.float32).reshape(-1).view(np.uint8),
    ))  # fmt: skip
    return GGUFFile(path)


@pytest.mark.parametrize("shapes", [
    {"attn_k_b": (96, 32), "attn_v_b": (2, 16, 32)},
    {"attn_k_b": (2, 32, 48), "attn_v_b": (32, 32)},
    {"attn_k_b": (2, 32, 48), "attn_v_b": (32,)},
    {"attn_k_b": (2, 32, 48), "attn_v_b": (3, 16, 32)},
    {"attn_k_b": (2, 32, 48), "attn_v_b": (2, 16, 64)},
    {"attn_k_b": (2, 32, 48)},
    {"attn_v_b": (2, 16, 32)},
    {"attn_k_b": (2, 32, 48), "attn_v_b": (2, 16, 32), "attn_kv_b": (128, 32)},
    {"attn_kv_b": (128, 32), "attn_v_b": (2, 16, 32)},
])  # fmt: skip
def test_keys_and_values_that_cannot_be_one_matrix_are_refused(tmp_path, shapes):
    tensors = " and ".join(f"'blk.0.{n}.weight' {s}" for n, s in sorted(shapes.items()))
    with (
        zeros(tmp_path / "a.gguf", {"general.architecture": "minicpm3"}, **shapes) as file,
        pytest.raises(FormatError) as error,
    ):
        convert_for_llama_cpp(file)
    assert f"{tensors} cannot become blk.0.attn_kv_b.weight" in str(error.value)


def test_one_matrix_of_keys_and_values_stays_as_it_is(tmp_path):
    with zeros(
        tmp_path / "a.gguf", {"general.architecture": "minicpm3"}, attn_kv_b=(128, 32)
    ) as file:
        assert convert_for_llama_cpp(file).tensors == {
            "blk.0.attn_kv_b.weight": TensorInfo("blk.0.attn_kv_b.weight", "F32", (128, 32))
        }


@pytest.mark.parametrize(("architecture", "heads"), [("deepseek2", 2), ("minicpm3", 64)])
def test_a_length_of_values_that_cannot_be_guessed_is_missed(tmp_path, architecture, heads):
    """Only MiniCPM 3's files leave it out; it is the hidden size divided by the heads."""
    metadata = {"general.architecture": architecture, f"{architecture}.embedding_length": 32}
    metadata |= {f"{architecture}.attention.head_count": heads}
    zeros(tmp_path / "a.gguf", metadata, attn_kv_b=(128, 32)).close()
    with pytest.raises(FormatError, match=rf"lacks .* {architecture}\.attention\.value_length"):
        open_gguf([tmp_path / "a.gguf"])


@pytest.mark.parametrize("experts", [np.array([8, 8], np.int32), "8", 8.0, True])
def test_a_number_of_experts_that_is_not_whole_is_refused(tmp_path, experts):
    metadata = {"general.architecture": "deepseek2", "deepseek2.expert_count": experts}
    with (
        zeros(tmp_path / "a.gguf", metadata) as file,
        pytest.raises(FormatError, match=r"deepseek2.expert_count must be a whole number, not"),
    ):
        convert_for_llama_cpp(file)


@pytest.mark.parametrize(("count", "stored"), [(400, np.uint8), (3, np.bool_), (3, np.float32)])
def test_a_value_of_another_key_has_the_type_of_that_key(tmp_path, count, stored):
    prefix = "minicpm3.attention."
    metadata = {"general.architecture": "minicpm3", f"{prefix}head_count_kv": 1}
    metadata |= {f"{prefix}head_count": count}
    types = {f"{prefix}head_count_kv": TYPES[np.dtype(stored)], f"{prefix}head_count": 10}
    write_gguf(tmp_path / "a.gguf", SimpleNamespace(
        metadata=metadata, value_types=types, tensors={}, raw=None
    ))  # fmt: skip
    with GGUFFile(tmp_path / "a.gguf") as file:
        write_gguf(tmp_path / "b.gguf", convert_for_llama_cpp(file))
    with GGUFFile(tmp_path / "b.gguf") as again:
        keys = [f"{prefix}head_count_kv", f"{prefix}head_count"]
        assert [(again.metadata[key], again.value_types[key]) for key in keys] == [(count, 10)] * 2
        assert type(again.metadata[keys[0]]) is int


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


@pytest.mark.parametrize("value", [-1.0, "two", True, float("nan"), 1e-40, 3e38])
@pytest.mark.parametrize("key", ["embedding_scale", "logit_scale"])
def test_a_scale_that_is_no_positive_number_of_an_ordinary_size_is_refused(tmp_path, key, value):
    with (
        opened(tmp_path / "a.gguf", **{key: value}) as file,
        pytest.raises(FormatError, match=rf"falcon-h1\.{key} must be a positive number of an ord"),
    ):
        convert_for_llama_cpp(file)


def test_other_architectures_stay_as_they_are(tmp_path):
    with opened(tmp_path / "a.gguf", embedding_scale=3.0) as file:
        file.metadata = {**file.metadata, "general.architecture": "llama"}
        assert convert_for_llama_cpp(file) is file
