"""Every method in every variant: the matrices of its definition, and the model that they are."""

import os
import shutil

import numpy as np
import pytest

from cutaway import LLM
from cutaway.compute.backends.cpu import tiers
from cutaway.errors import FormatError, InputError
from cutaway.files.huggingface import HuggingFaceFolder
from cutaway.files.weights.gguf_writer import write_gguf
from support import random_models, tiny_tokenizers
from support.adapters import random_lora, write_lora
from support.quantised.affine import mlx, torchao_bytes
from support.quantised.floats import fp8, nvfp4
from support.quantised.integers import awq, gptq, make_compressed
from support.quantised.method import Typed, bf16
from support.quantised.tensors import read_metadata, read_tensors, write_tensors
from support.quantised_folders import (
    HIDDEN,
    IDS,
    METHODS,
    VOCAB,
    quantise_folder,
    write_folder,
    write_twin,
)

FACTORS = (
    "bitnet", "bitnet-divided", "modelopt-nvfp4", "ct-nvfp4", "torchao-nvfp4",
    "torchao-nvfp4-swizzled",
)  # fmt: skip
"""Those with a number that multiplies products with a matrix."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """By a method's name: the folder, and the one that has the same matrices in F32."""
    folders = {}

    def of(name):
        if name not in folders:
            path = tmp_path_factory.mktemp(name)
            method = METHODS[name]
            folders[name] = write_folder(path / "q", method), write_twin(path / "twin", method)
        return folders[name]

    return of


def in_place(file, name):
    """A matrix with its columns where its input's numbers are."""
    matrix, order = file.dequantize_scaled(name), name.replace(".weight", ".order")
    if order not in file.tensors:
        return matrix
    placed = np.empty_like(matrix)
    placed[:, file.dequantize(order).astype(int)] = matrix
    return placed


@pytest.mark.parametrize("name", METHODS)
def test_matrices_are_those_of_the_definition(made, name):
    folder, twin = made(name)
    with HuggingFaceFolder(folder) as ours, HuggingFaceFolder(twin) as plain:
        formats = {info.format for info in ours.tensors.values()}
        assert METHODS[name].format in formats
        for tensor in plain.tensors:
            assert np.array_equal(in_place(ours, tensor), plain.dequantize(tensor)), tensor
        more = {tensor.rpartition(".")[2] for tensor in set(ours.tensors) - set(plain.tensors)}
        beside = {"order"} if "act-order" in name else {"scale"} if name in FACTORS else set()
        assert more == beside
        assert len(ours.tensors) - len(plain.tensors) == 14 * len(beside)


@pytest.mark.parametrize("name", METHODS)
def test_the_reference_s_logits_are_the_twin_s(made, name):
    folder, twin = made(name)
    ours, plain = (LLM(path, backend="reference").logits(IDS) for path in (folder, twin))
    if "act-order" in name or name in FACTORS:  # products are added up, or multiplied, otherwise
        assert np.abs(ours - plain).max() < 1e-4
    else:
        assert np.array_equal(ours, plain)


@pytest.mark.parametrize("name", METHODS)
def test_the_native_backend_is_close(made, name):
    """Activations have 8 bits where weights are integers."""
    folder, twin = made(name)
    exact, ours = (LLM(p, backend=b).logits(IDS) for p, b in ((twin, "reference"), (folder, "cpu")))
    error = np.sqrt(np.mean((ours - exact) ** 2) / np.mean(exact**2))
    assert error < (0.004 if METHODS[name].floats else 0.12)


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].floats])
def test_float_codes_have_the_bits_of_their_numbers_in_f32(made, name):
    folder, twin = made(name)
    assert np.array_equal(LLM(folder).logits(IDS), LLM(twin).logits(IDS))


@pytest.mark.parametrize("name", METHODS)
def test_bits_are_the_same_over_threads_and_cuts(made, name):
    folder, _ = made(name)
    llm = LLM(folder, threads=2)
    expected = llm.logits(IDS)
    assert np.array_equal(llm.logits(IDS, 50), expected[50:])
    assert np.array_equal(LLM(folder, threads=3).logits(IDS), expected)


@pytest.mark.parametrize(
    ("name", "tier"),
    [
        pytest.param(name, tier, marks=() if j == i % len(tiers()) else pytest.mark.slow)
        for i, name in enumerate(METHODS)
        for j, tier in enumerate(tiers())
    ],
)
def test_bits_are_the_same_on_every_tier(made, name, tier, monkeypatch):
    """Each method on one of them in turn; all on all are slow."""
    folder, _ = made(name)
    expected = LLM(folder, threads=1).logits(IDS)
    monkeypatch.setitem(os.environ, "CUTAWAY_ISA", tier)
    assert np.array_equal(LLM(folder, threads=1).logits(IDS), expected)


OTHERS = {
    ("qwen3_moe", "fp8"): fp8(32),
    ("qwen3_moe", "awq"): awq(32),
    ("phi3", "gptq"): gptq(group=32, symmetric=True),
    ("qwen2", "int8"): make_compressed(bits=8, group=None, packed=False),
    ("gemma3", "gptq"): gptq(group=32),
    ("qwen3_moe", "mlx"): mlx(group=32),
    ("phi3", "torchao"): torchao_bytes(group=32),
}
"""Experts, two matrices in one, biases, norms that are stored less 1."""


@pytest.mark.parametrize(("family", "kind"), OTHERS)
def test_other_families_are_their_twins(random_model, tmp_path, family, kind):
    pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
    source, _ = random_model(family)
    method, folders = OTHERS[family, kind], []
    for name in ("ours", "twin"):
        folders.append(quantise_folder(source, tmp_path / name, method, twin=name == "twin"))
    ours, twin = (LLM(path, backend="reference").logits(IDS) for path in folders)
    assert np.array_equal(ours, twin)
    error = np.sqrt(np.mean((LLM(folders[0]).logits(IDS) - twin) ** 2) / np.mean(twin**2))
    assert error < (0.004 if method.floats else 0.2)


def test_each_expert_has_its_factor(tmp_path):
    """Of NVFP4; factors are of products, not of numbers, so the last bits differ."""
    pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
    wide = random_models.row("qwen3_moe")
    sizes = {"moe_intermediate_size": 64, "intermediate_size": 128}
    wide = wide._replace(values={**wide.values, **sizes})
    random_models.save_row(wide, tmp_path / "plain", "float32", tiny_tokenizers.byte_level())
    folders = [
        quantise_folder(tmp_path / "plain", tmp_path / name, nvfp4("modelopt"), twin=name == "twin")
        for name in ("ours", "twin")
    ]
    ours, twin = (LLM(path, backend="reference").logits(IDS) for path in folders)
    assert np.abs(ours - twin).max() < 1e-4
    native = LLM(folders[0]).logits(IDS)
    assert np.sqrt(np.mean((native - twin) ** 2) / np.mean(twin**2)) < 0.2


@pytest.mark.parametrize("name", ["mlx", "mlx-8bit", "torchao-int8"])
def test_a_tied_embedding_may_be_quantised(made, tmp_path, name):
    """As MLX quantises it, and torchao if it is asked to."""
    folders = []
    for folder, is_twin in zip(made(name), (False, True), strict=True):
        path = shutil.copytree(folder, tmp_path / folder.name)
        matrix = METHODS[name].draw(np.random.default_rng(9), (VOCAB, HIDDEN), {})
        tensors = read_tensors(path / "model.safetensors")
        del tensors["lm_head.weight"], tensors["model.embed_tokens.weight"]
        parts = {".weight": matrix.matrix} if is_twin else matrix.parts
        tensors |= {f"model.embed_tokens{ending}": part for ending, part in parts.items()}
        texts = read_metadata(path / "model.safetensors")
        if texts:
            texts["model.embed_tokens.weight"] = matrix.metadata
        write_tensors(path / "model.safetensors", tensors, texts)
        random_models.edit(path / "config.json", tie_word_embeddings=True)
        folders.append(path)
    ours, twin = (LLM(path, backend="reference").logits(IDS) for path in folders)
    assert np.array_equal(ours, twin)
    native = LLM(folders[0]).logits(IDS)
    assert np.sqrt(np.mean((native - twin) ** 2) / np.mean(twin**2)) < 0.12


BITS = {
    "mlx-2bit": 5, "mlx-3bit": 5, "mlx": 5, "mlx-5bit": 6, "mlx-6bit": 9, "mlx-8bit": 9,
    "mlx-f32": 9, "mlx-mxfp4": 4.25, "mlx-mxfp8": 9, "mlx-nvfp4": 4.5, "torchao-int4": 4.5,
    "torchao-int4-g64": 5, "torchao-int4-g32": 6, "torchao-float8": 8.25,
    "torchao-mxfp4": 4.25, "torchao-mxfp8": 9, "torchao-nvfp4": 4.5,
}  # fmt: skip
"""How many bits a weight takes in memory."""


@pytest.mark.parametrize("name", BITS)
def test_no_matrix_becomes_float32(made, name):
    folder, _ = made(name)
    with HuggingFaceFolder(folder) as file:
        tensors = [file.tensors[f"blk.0.{end}.weight"] for end in ("attn_q", "ffn_down")]
    weights = [rows * columns for rows, columns in (tensor.shape for tensor in tensors)]
    assert [8 * tensor.nbytes / n for tensor, n in zip(tensors, weights, strict=True)] == [
        BITS[name]
    ] * 2


def test_experts_of_mlx_are_one_tensor(random_model, tmp_path):
    pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
    source, _ = random_model("qwen3_moe")
    path = quantise_folder(source, tmp_path / "apart", mlx(group=32), twin=False)
    stacked = shutil.copytree(path, tmp_path / "stacked")
    tensors, experts = {}, {}
    for name, tensor in read_tensors(path / "model.safetensors").items():
        place, inside, number = name.partition(".experts.")
        if inside:
            number, _, ending = number.partition(".")
            experts.setdefault(f"{place}.switch_mlp.{ending}", {})[int(number)] = tensor
        else:
            tensors[name] = tensor
    for name, of_numbers in experts.items():
        parts = [of_numbers[number] for number in sorted(of_numbers)]
        is_typed = isinstance(parts[0], Typed)
        numbers = np.stack([part.data if is_typed else part for part in parts])
        tensors[name] = Typed(parts[0].dtype, numbers) if is_typed else numbers
    write_tensors(stacked / "model.safetensors", tensors)
    assert np.array_equal(LLM(stacked).logits(IDS), LLM(path).logits(IDS))


def test_experts_with_act_order_are_refused(random_model, tmp_path):
    pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
    source, _ = random_model("qwen3_moe")
    method = gptq(group=32, act_order=True)
    path = quantise_folder(source, tmp_path / "moe", method, twin=False)
    with pytest.raises(FormatError, match=r"experts.0.*' has act-order .desc_act., which is not"):
        HuggingFaceFolder(path)


def test_act_order_within_what_is_looked_into(made):
    """Weights have their input's order; what matrices read is rounded in the other."""
    folder, twin = made("gptq-act-order")
    for backend in ("cpu", "reference"):
        ours, plain = (LLM(path, backend=backend).model.backend for path in (folder, twin))
        name = "blk.1.ffn_down.weight"
        assert np.array_equal(ours.weight(name, 3, 9), plain.weight(name, 3, 9))
        x = np.random.default_rng(0).normal(size=(2, 384)).astype(np.float32)
        assert np.abs(ours.as_read(name, x) - x).max() < (0.03 if backend == "cpu" else 1e-9)


def test_an_adapter_reads_the_input_in_its_own_order(made, tmp_path):
    shapes = {"blk.0.attn_q.weight": (256, 256), "blk.1.ffn_down.weight": (256, 384)}
    adapter = write_lora(tmp_path / "lora.gguf", random_lora(shapes))
    folder, twin = made("gptq-act-order")
    ours, plain, without = (
        LLM(path, backend="reference", lora=lora).logits(IDS)
        for path, lora in ((folder, adapter), (twin, adapter), (twin, None))
    )
    assert np.abs(ours - plain).max() < 1e-4 < np.abs(plain - without).max()
    native = LLM(folder, lora=adapter).logits(IDS)
    assert np.sqrt(np.mean((native - plain) ** 2) / np.mean(plain**2)) < 0.12


def test_a_model_with_act_order_is_no_gguf_file(made, tmp_path):
    for name in ("gptq-act-order", "awq"):
        with (
            HuggingFaceFolder(made(name)[0]) as file,
            pytest.raises(InputError, match="no word for"),
        ):
            write_gguf(tmp_path / "x.gguf", file)


class Disordered(HuggingFaceFolder):
    """One column is for an input that is not there."""

    def raw(self, name):
        data = super().raw(name)[:]
        if name.endswith(".order"):
            data = data.copy()
            data[:4].view(np.float32)[0] = 1e6
        return data


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_an_order_that_is_none_is_refused(made, backend):
    from cutaway.compute import backends, model

    with Disordered(made("gptq-act-order")[0]) as file:
        shapes = {name: info.shape for name, info in file.tensors.items()}
        _, graph = model.build(file.metadata, shapes)
        with pytest.raises(FormatError, match="order' must hold each number from 0 to 255 once"):
            backends.load(backend, graph, file, kv_blocks=1, context=32)


def test_the_mean_of_master_weights_is_the_nearest(tmp_path):
    """In float32 a sum of 2^24 and ones loses some of the ones: 256, not 258, would be nearest."""
    path = write_folder(tmp_path, METHODS["bitnet-master"])
    tensors, name = (
        read_tensors(path / "model.safetensors"),
        "model.layers.0.self_attn.q_proj.weight",
    )
    numbers = np.ones(tensors[name].data.size)
    numbers[0], numbers[-9:] = 2.0**24, 2.0
    tensors[name] = bf16(numbers.reshape(tensors[name].data.shape))[0]
    write_tensors(path / "model.safetensors", tensors, read_metadata(path / "model.safetensors"))
    with HuggingFaceFolder(path) as file:
        assert file.dequantize_scaled("blk.0.attn_q.weight").max() == 258
