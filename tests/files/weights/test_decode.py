"""Each decoder against the reference implementation, as bits; and whatever the blocks hold."""

import ctypes
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from cutaway import LLM
from cutaway.compute.loading.open import open_model
from cutaway.errors import CutawayError, FormatError
from cutaway.files.weights import FORMATS, FORMATS_BY_ID, GGUFFile, TensorInfo, dequantize
from cutaway.files.weights.file import ModelFile
from cutaway.files.weights.gguf_writer import write_gguf
from cutaway.files.weights.quantised import QuantisedFile
from random_blocks import BYTE_SCALES, set_scales
from support.random_llama import random_matrix, write_tiny_llama

IN_GGUF = [format.name for format in FORMATS_BY_ID.values()]
SPECIAL = np.array([0x7C00, 0xFC00, 0x7E00, 0x0000, 0x8000, 0x0001, 0x7BFF], np.uint16)
"""float16 inf, -inf, NaN, 0, -0, the smallest and the largest."""


def random_quant_blocks(format, count, scales):
    """`count` quant blocks of random bytes, with the given float16 patterns in d, m and dmin."""
    random = np.random.default_rng(format.type_id)
    raw = random.integers(0, 256, count * format.quant_block_bytes, np.uint8)
    if format.name not in ("F32", "F16", "BF16", *BYTE_SCALES):
        d, m, dmin = random.choice(scales, (3, count)).view(np.float16)
        set_scales(format.name, raw, d=d, m=m, dmin=dmin)
    return raw


def finite_scales():
    patterns = np.arange(1 << 16, dtype=np.uint16)
    return patterns[np.isfinite(patterns.view(np.float16))]


def oracle(format, raw):
    rows = raw.reshape(-1, format.quant_block_bytes)
    if format.name in BY_HAND:
        return np.float32([BY_HAND[format.name](row) for row in rows]).reshape(-1)
    with np.errstate(invalid="ignore", over="ignore"):
        return gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[format.name]).reshape(-1)


def q1_0(raw):
    d = raw[:2].view("<f2").astype(np.float32)
    return np.concatenate([d if raw[2 + i // 8] >> i % 8 & 1 else -d for i in range(128)])


def q2_0(raw):
    d = raw[:2].view("<f2").astype(np.float32)
    with np.errstate(invalid="ignore"):
        return np.concatenate([d * (int(raw[2 + i // 4] >> i % 4 * 2 & 3) - 1) for i in range(64)])


BY_HAND = {"Q1_0": q1_0, "Q2_0": q2_0}
"""By the definition: gguf-py 0.19 does not decode these."""


@pytest.mark.parametrize("count", [1, 1025, 2500])
@pytest.mark.parametrize("name", IN_GGUF)
def test_random_bytes_decode_to_the_same_bits(name, count):
    format = FORMATS[name]
    raw = random_quant_blocks(format, count, finite_scales())
    ours, theirs = dequantize(format, raw), oracle(format, raw)
    assert ours.dtype == np.float32
    assert ours.shape == (count * format.quant_block_elements,)
    assert_same_bits(ours, theirs)


@pytest.mark.parametrize("name", IN_GGUF)
def test_special_scales_decode_to_the_same_bits(name):
    format = FORMATS[name]
    raw = random_quant_blocks(format, 500, SPECIAL)
    assert_same_bits(dequantize(format, raw), oracle(format, raw))


def assert_same_bits(ours, theirs):
    """Equal as uint32, but that the payload and sign of a NaN are the processor's affair."""
    nan = np.isnan(theirs)
    np.testing.assert_array_equal(np.isnan(ours), nan)
    np.testing.assert_array_equal(ours[~nan].view(np.uint32), theirs[~nan].view(np.uint32))


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_every_float_pattern_crosses_the_chunks(name):
    format = FORMATS[name]
    patterns = np.append(np.arange(1 << 16, dtype=np.uint16), np.uint16(1))  # an odd tail
    if name == "F32":
        patterns = patterns.astype(np.uint32) << 16 | 0x1234
    raw = patterns.view(np.uint8)
    assert_same_bits(dequantize(format, raw), oracle(format, raw))


@pytest.mark.parametrize("name", ["Q4_1", "Q6_K"])
def test_a_quant_block_by_hand(name):
    """Independent of any library: the definition, one weight at a time."""
    format = FORMATS[name]
    raw = random_quant_blocks(format, 3, finite_scales())
    definition = {"Q4_1": q4_1, "Q6_K": q6_k}[name]
    expected = [definition(b) for b in raw.reshape(3, -1)]
    assert dequantize(format, raw).tolist() == np.float32(expected).reshape(-1).tolist()


def q4_1(raw):
    d, m = np.float32(raw[:4].view("<f2"))
    nibble = [raw[4 + i % 16] >> (0 if i < 16 else 4) & 15 for i in range(32)]
    return [d * np.float32(q) + m for q in nibble]


def q6_k(raw):
    low, high, scales = raw[:128], raw[128:192], raw[192:208].view(np.int8)
    d = np.float32(raw[208:].view("<f2")[0])
    weights = []
    for i in range(256):
        half, k = divmod(i, 128)
        nibble = low[64 * half + k % 64] >> 4 * (k // 64) & 15
        pair = high[32 * half + k % 32] >> 2 * (k // 32) & 3
        q = int(nibble) + 16 * int(pair) - 32
        weights.append(d * np.float32(scales[i // 16]) * np.float32(q))
    return weights


def test_part_of_a_quant_block_is_refused():
    with pytest.raises(ValueError):
        dequantize(FORMATS["Q4_0"], np.zeros(17, np.uint8))


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_decodes_to_nothing(name):
    assert dequantize(FORMATS[name], np.zeros(0, np.uint8)).shape == (0,)


# -- factors of a whole matrix, which llama.cpp's converter writes beside NVFP4 --------------------


WIDE = {"heads": 4, "kv_heads": 2, "head_dim": 64, "hidden": 256, "feed_forward": 256, "layers": 1}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "factors.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("one.weight", np.ones((2, 3), np.float32))
    writer.add_tensor("one.scale", np.float32([0.5]))
    writer.add_tensor("several.weight", np.ones((2, 1, 3), np.float32))
    writer.add_tensor("several.scale", np.float32([2, 3]))
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_matrix_or_each_of_a_stack_is_multiplied(path):
    with GGUFFile(path) as file:
        assert file.dequantize_scaled("one.weight").tolist() == [[0.5] * 3] * 2
        assert file.dequantize_scaled("several.weight").tolist() == [[[2] * 3], [[3] * 3]]
        assert file.dequantize("one.weight").tolist() == [[1] * 3] * 2
        assert file.factors("one.scale") is None
        assert file.dequantize_scaled("one.scale").tolist() == [0.5]


def scaled(directory, factor):
    """A model whose up projection has a factor, and an input_scale that only 4 bits would read."""
    extra = {"blk.0.ffn_up.scale": factor, "blk.0.ffn_up.input_scale": [0.1]}
    return write_tiny_llama(
        directory / "scaled.gguf", **WIDE, format="NVFP4",
        vectors={name: np.float32(values) for name, values in extra.items()},
    )  # fmt: skip


@pytest.mark.parametrize("factor", [1.0, -3.0])
def test_a_factor_multiplies_products(factor, tmp_path):
    llm = pytest.importorskip("cutaway").LLM
    native, reference = (
        llm(scaled(tmp_path, [factor]), backend=backend, progress=False)
        for backend in ("cpu", "reference")
    )
    tokens = list(range(3, 40))
    ours, theirs = native.logits(tokens), reference.logits(tokens)
    assert np.linalg.norm(ours - theirs) < 0.05 * np.linalg.norm(theirs)
    plain = llm(write_tiny_llama(tmp_path / "plain.gguf", **WIDE, format="NVFP4"), progress=False)
    assert np.array_equal(plain.logits(tokens), ours) == (factor == 1)


def test_a_factor_of_another_shape_is_refused(tmp_path):
    llm = pytest.importorskip("cutaway").LLM
    with pytest.raises(FormatError, match=r"blk.0.ffn_up.scale has shape \(2,\), not \(1,\)"):
        llm(scaled(tmp_path, [1, 2]), progress=False)


# -- any bytes in the blocks of a file give a text, or one sentence --------------------------------


@pytest.mark.parametrize("name", [known.name for known in FORMATS_BY_ID.values()])
def test_any_bytes_in_the_blocks_of_a_matrix(tmp_path, name):
    path = write_tiny_llama(
        tmp_path / "t.gguf", format=name, hidden=256, feed_forward=256, heads=4, kv_heads=2,
        head_dim=64, layers=1,
    )  # fmt: skip
    with GGUFFile(path) as file:
        raw = file.raw("blk.0.ffn_down.weight")[:].tobytes()
    whole = path.read_bytes()
    at = whole.index(raw)
    rng = np.random.default_rng(len(raw))
    for share in (0.001, 1.0):
        damaged = np.frombuffer(whole, np.uint8).copy()
        hit = at + np.flatnonzero(rng.random(len(raw)) < share)
        damaged[hit] = rng.integers(0, 256, len(hit), np.uint8)
        path.write_bytes(damaged.tobytes())
        try:
            with LLM(path, threads=1, progress=False) as llm:
                assert llm.generate("a", max_tokens=2, seed=1).steps
        except CutawayError as error:
            assert "\n" not in str(error)


# -- apart -----------------------------------------------------------------------------------------

# Tensors that hold several are read as those: the same numbers, the same model.


class Held(ModelFile):
    """A file whose tensors are in memory."""

    def __init__(self, path, metadata):
        self.path, self.metadata, self.tensors, self.bytes = path, metadata, {}, {}

    def raw(self, name):
        return self.bytes[name]

    def close(self):
        pass


class Fused(Held):
    """A file with gate and up of all experts of a layer in one tensor."""

    def __init__(self, file):
        super().__init__(file.path, file.metadata)
        for name, info in file.tensors.items():
            stored = file.raw(name)[:]
            if "_up_exps" in name:
                continue
            if "_gate_exps" in name:
                count, rows, cols = info.shape
                up = file.raw(name.replace("_gate_exps", "_up_exps"))[:]
                halves = [part.reshape(count, rows, -1) for part in (stored, up)]
                stored = np.concatenate(halves, axis=1).reshape(-1)
                name = name.replace("_gate_exps", "_gate_up_exps")  # noqa: PLW2901
                info = replace(info, name=name, shape=(count, 2 * rows, cols))  # noqa: PLW2901
            self.tensors[name] = TensorInfo(name, info.format, info.shape)
            self.bytes[name] = stored


@pytest.mark.parametrize("format", [None, "q8_0"])
def test_gate_and_up_in_one_tensor_are_the_same_model(tmp_path, format):
    whole, one = tmp_path / "whole.gguf", tmp_path / "one.gguf"
    with open_model(write_tiny_llama(tmp_path / "f32.gguf", experts=4)) as exact:
        file = QuantisedFile(exact, format) if format else exact
        write_gguf(whole, file)
        write_gguf(one, Fused(file))
    with open_model(whole) as apart, open_model(one) as ours:
        assert {*ours.tensors} == {*apart.tensors}
        for name, info in apart.tensors.items():
            assert (ours.info(name).shape, ours.info(name).format) == (info.shape, info.format)
            assert np.array_equal(ours.raw(name)[:], apart.raw(name)[:])
    expected, found = (LLM(path, progress=False).logits([3, 4, 5]) for path in (whole, one))
    assert np.array_equal(found, expected)


def test_one_that_cannot_be_halved_or_is_there_twice_is_refused(tmp_path):
    odd = {"blk.0.ffn_gate_up_exps.weight": np.ones((2, 3, 32), np.float32)}
    with pytest.raises(FormatError, match=r"ffn_gate_up_exps\.weight has 3 rows"):
        open_model(write_tiny_llama(tmp_path / "odd.gguf", vectors=odd))
    twice = {
        f"blk.0.ffn_{x}_exps.weight": np.ones((2, 2, 32), np.float32) for x in ("gate_up", "up")
    }
    with pytest.raises(FormatError, match=r"ffn_up_exps\.weight' is there twice"):
        open_model(write_tiny_llama(tmp_path / "twice.gguf", vectors=twice))


LATENT = {
    "context_length": 64, "embedding_length": 32, "block_count": 1, "expert_count": 0,
    "attention.head_count": 2, "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.kv_lora_rank": 32, "rope.dimension_count": 16, "rope.freq_base": 900.0,
}  # fmt: skip
OLD = {
    "attention.head_count_kv": 2, "attention.key_length": 48, "attention.value_length": 32,
}  # fmt: skip
NEW = {
    "attention.head_count_kv": 1, "attention.key_length": 48, "attention.value_length": 32,
    "attention.key_length_mla": 48, "attention.value_length_mla": 32,
}  # fmt: skip


def latent_files(tmp_path, kind):
    """DeepSeek's tensors of one layer, with keys and values in one, apart, and in both ways."""
    with open_model(write_tiny_llama(tmp_path / "words.gguf")) as words:
        tokens = {k: v for k, v in words.metadata.items() if k.startswith("tokenizer")}
        vocab = words.info("token_embd.weight").shape[0]
    rng = np.random.default_rng(4)
    shapes = {
        "token_embd": (vocab, 32), "output_norm": (32,), "blk.0.attn_norm": (32,),
        "blk.0.attn_q": (96, 32), "blk.0.attn_kv_a_mqa": (48, 32), "blk.0.attn_kv_a_norm": (32,),
        "blk.0.attn_kv_b": (2 * 64, 32), "blk.0.attn_output": (32, 64), "blk.0.ffn_norm": (32,),
        "blk.0.ffn_gate": (64, 32), "blk.0.ffn_up": (64, 32), "blk.0.ffn_down": (32, 64),
    }  # fmt: skip
    for name, keys, ways in (("old", OLD, "kv"), ("new", NEW, "k v"), ("both", NEW, "kv k v")):
        metadata = {f"deepseek2.{k}": v for k, v in (LATENT | keys).items()}
        file = Held(tmp_path, {"general.architecture": "deepseek2"} | metadata | tokens)
        rng = np.random.default_rng(4)
        for tensor, shape in shapes.items():
            format = kind if len(shape) > 1 else "F32"
            found = random_matrix(rng, format, shape, shape[-1] ** -0.5).view(np.uint8)
            made = {tensor: (format, shape, found)}
            if "kv_b" in tensor:
                each = found.reshape(2, 64, -1)
                numbers = dequantize(FORMATS[format], found.reshape(-1)).reshape(2, 64, 32)
                turned = np.ascontiguousarray(numbers[:, :32].swapaxes(1, 2))
                made |= {
                    "blk.0.attn_k_b": ("F32", (2, 32, 32), turned.view(np.uint8)),
                    "blk.0.attn_v_b": (format, (2, 32, 32), np.ascontiguousarray(each[:, 32:])),
                }
                made = {f"blk.0.attn_{way}_b": made[f"blk.0.attn_{way}_b"] for way in ways.split()}
            for one, (stored, size, data) in made.items():
                file.tensors[f"{one}.weight"] = TensorInfo(f"{one}.weight", stored, size)
                file.bytes[f"{one}.weight"] = data.reshape(-1)
        write_gguf(tmp_path / f"{name}.gguf", file)
        yield tmp_path / f"{name}.gguf"


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_keys_and_values_of_a_latent_in_one_matrix_are_those_of_two(tmp_path, kind):
    """Files of DeepSeek from before 2025, from after, and those that have both."""
    ids = [3, 4, 5, 100, 7]
    first, *others = (LLM(path, progress=False) for path in latent_files(tmp_path, kind))
    expected = first.logits(ids)
    for other in others:
        assert np.array_equal(other.logits(ids), expected)
    bytes_a_token = 2 * (16 + 32)  # one layer's latent and rotated numbers, in halves
    assert first.model.kv.bytes_per_token == bytes_a_token
    reference = LLM(tmp_path / "old.gguf", backend="reference", progress=False).logits(ids)
    near = 0.005 if kind == "F32" else 0.05
    assert np.linalg.norm(expected - reference) < near * np.linalg.norm(reference)


# -- ggml decode -----------------------------------------------------------------------------------

# Each decoder against ggml itself, which comes with llama-cpp-python: the same bits.


COUNT = 600  # blocks: every pattern is named, since a block names at least 32


class Traits(ctypes.Structure):
    """`struct ggml_type_traits`."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("elements", ctypes.c_int64), ("interleaved", ctypes.c_int64),
        ("bytes", ctypes.c_size_t), ("quantised", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
        ("from_float", ctypes.c_void_p),
    )  # fmt: skip


@pytest.fixture(scope="module")
def traits():
    """By ggml type id."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="needs llama-cpp-python: ggml is in it")
    path = min(
        (Path(llama_cpp.__file__).parent / "lib").glob("*ggml-base.*")
    )  # the others link to it
    library = ctypes.CDLL(str(path))
    library.ggml_get_type_traits.restype = ctypes.POINTER(Traits)
    return lambda type_id: library.ggml_get_type_traits(type_id).contents


@pytest.mark.slow
@pytest.mark.parametrize("name", [f.name for f in FORMATS_BY_ID.values() if f.name != "F32"])
def test_random_blocks_decode_to_the_bits_of_ggml(name, traits):
    format = FORMATS[name]
    theirs = traits(format.type_id)
    assert (theirs.elements, theirs.bytes) == (
        format.quant_block_elements,
        format.quant_block_bytes,
    )
    rng = np.random.default_rng(format.type_id)
    raw = rng.integers(0, 256, COUNT * format.quant_block_bytes, np.uint8)
    if name not in ("F16", "BF16", *BYTE_SCALES):
        halves = rng.integers(0, 0x7C00, (3, COUNT)) | rng.integers(0, 2, (3, COUNT)) << 15
        d, m, dmin = halves.astype(np.uint16).view(np.float16)
        set_scales(name, raw, d=d, m=m, dmin=dmin)
    expected = np.empty(COUNT * format.quant_block_elements, np.float32)
    theirs.to_float(raw.ctypes.data, expected.ctypes.data, expected.size)
    ours, nan = dequantize(format, raw), np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(ours), nan)
    np.testing.assert_array_equal(ours[~nan].view(np.uint32), expected[~nan].view(np.uint32))
