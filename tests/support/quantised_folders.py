"""Folders of a small random llama whose matrices are quantised by each method, and their twins.

Codes, zeros and scales are drawn; each method packs them as its own program does, and says by its
definition, one weight at a time where that is short, which matrix they are. A twin has these
matrices as they are, in float32.
"""

import json
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from support import tiny_tokenizers

Array = NDArray[Any]
VOCAB = 384
HIDDEN, INNER, HEADS, KV_HEADS = 256, 384, 4, 2
IDS: list[int] = np.random.default_rng(1).integers(6, VOCAB, 60).tolist()
_DTYPES = {"f4": "F32", "f2": "F16", "i4": "I32", "i8": "I64", "i1": "I8", "u1": "U8"}


class Typed(NamedTuple):
    """Numbers whose dtype NumPy has not: their bytes, "BF16" or "F8_E4M3"."""

    dtype: str
    data: Array


class Quantised(NamedTuple):
    """The tensors of a matrix by their endings, and the matrix: float32 (out, in)."""

    parts: Mapping[str, Array | Typed]
    matrix: Array


def write_tensors(path: Path, tensors: Mapping[str, Array | Typed]) -> None:
    """A safetensors file with any of the dtypes above."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        numbers = tensor.data if isinstance(tensor, Typed) else tensor
        dtype = tensor.dtype if isinstance(tensor, Typed) else _DTYPES[tensor.dtype.str[1:]]
        raw = np.ascontiguousarray(numbers).tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype, "shape": list(numbers.shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_tensors(path: Path) -> dict[str, Array | Typed]:
    """What ``write_tensors`` wrote."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    plain = {name: dtype for dtype, name in _DTYPES.items()}
    found: dict[str, Array | Typed] = {}
    header.pop("__metadata__", None)
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        dtype = plain.get(entry["dtype"], "u2" if entry["dtype"] == "BF16" else "u1")
        numbers = np.frombuffer(data[first:last], f"<{dtype}").reshape(entry["shape"])
        found[name] = numbers if entry["dtype"] in plain else Typed(entry["dtype"], numbers)
    return found


def write_folder(folder: Path, method: "Method", seed: int = 0, **config: Any) -> Path:
    """A folder whose numbers follow from the seed; config: changes of config.json."""
    return _write(folder, method, seed, config, twin=False)


def write_twin(folder: Path, method: "Method", seed: int = 0, **config: Any) -> Path:
    """The twin of ``write_folder``'s."""
    return _write(folder, method, seed, config, twin=True)


def shapes(hidden: int, inner: int) -> dict[str, tuple[int, int]]:
    """Of each matrix of a layer: (out, in)."""
    head = hidden // HEADS
    return {
        "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (KV_HEADS * head, hidden),
        "self_attn.v_proj": (KV_HEADS * head, hidden), "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }  # fmt: skip


def _write(folder: Path, method: "Method", seed: int, config: Any, *, twin: bool) -> Path:
    rng = np.random.default_rng(seed)
    hidden, inner = config.get("hidden_size", HIDDEN), config.get("intermediate_size", INNER)
    layers = 2
    tensors: dict[str, Array | Typed] = {
        "model.embed_tokens.weight": rng.normal(size=(VOCAB, hidden)).astype(np.float32),
        "model.norm.weight": (1 + 0.3 * rng.normal(size=hidden)).astype(np.float32),
        "lm_head.weight": (rng.normal(size=(VOCAB, hidden)) / 16).astype(np.float32),
    }
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        orders: dict[int, Array] = {}
        for name, shape in shapes(hidden, inner).items():
            made = method.draw(rng, shape, orders)
            parts = {".weight": made.matrix} if twin else made.parts
            tensors |= {prefix + name + ending: part for ending, part in parts.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            numbers = 1 + 0.3 * rng.normal(size=hidden)
            tensors[f"{prefix}{norm}.weight"] = numbers.astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / "model.safetensors", tensors)
    values = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": VOCAB,
        "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
        "tie_word_embeddings": False, "rope_theta": 10000.0, "dtype": "float32",
    }  # fmt: skip
    if not twin:
        values["quantization_config"] = method.config
    (folder / "config.json").write_text(json.dumps(values | config))
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), folder)
    return folder


def quantise_folder(source: Path, target: Path, method: "Method", *, twin: bool) -> Path:
    """A copy of a folder with other numbers in its linear layers: quantised, or the same in F32."""
    shutil.copytree(source, target)
    rng, tensors = np.random.default_rng(0), dict[str, Array | Typed]()
    for name, tensor in read_tensors(source / "model.safetensors").items():
        base = name.removesuffix(".weight")
        if base.endswith("_proj") and not isinstance(tensor, Typed) and tensor.ndim == 2:
            rows, cols = tensor.shape
            made = method.draw(rng, (rows, cols), {})
            parts = {".weight": made.matrix} if twin else made.parts
            tensors |= {base + ending: part for ending, part in parts.items()}
        else:
            tensors[name] = tensor
    write_tensors(target / "model.safetensors", tensors)
    config = json.loads((target / "config.json").read_text())
    if not twin:
        config["quantization_config"] = method.config
    (target / "config.json").write_text(json.dumps(config))
    return target


class Method(NamedTuple):
    """A row of `METHODS`.

    config  config.json's quantization_config
    draw    makes a matrix: (rng, shape, the orders of act-order by width) -> Quantised
    format  what cutaway makes of most
    floats  whether activations stay unrounded
    """

    config: Mapping[str, Any]
    draw: Callable[[np.random.Generator, tuple[int, int], dict[int, Array]], Quantised]
    format: str
    floats: bool = False


# -- what is drawn ---------------------------------------------------------------------------------


def _codes(rng: np.random.Generator, shape: tuple[int, int], bits: int) -> Array:
    return rng.integers(0, 1 << bits, shape)


def _scales(rng: np.random.Generator, shape: tuple[int, ...], cols: int, bits: int) -> Array:
    """For matrices of an ordinary size."""
    drawn: Array = 1.2 / np.sqrt(cols) / 2 ** (bits - 1) * rng.uniform(0.5, 1.5, shape)
    return drawn


def bf16(numbers: Array) -> tuple[Typed, Array]:
    """Cut off to BF16: as a file has it, and as float32."""
    upper = np.ascontiguousarray(numbers, np.float32).view(np.uint32) >> 16
    return Typed("BF16", upper.astype(np.uint16)), (upper << 16).view(np.float32)


def _words(fields: Array, bits: int) -> Array:
    """Codes (n, count) as words (n, count · bits / 32), lowest bits first, across words."""
    count = fields.shape[1]
    made = np.zeros((len(fields), -(-count * bits // 32)), np.uint64)
    for i in range(count):
        word, bit = divmod(i * bits, 32)
        value = fields[:, i].astype(np.uint64) << np.uint64(bit)
        made[:, word] |= value & np.uint64(0xFFFFFFFF)
        if bit + bits > 32:
            made[:, word + 1] |= value >> np.uint64(32)
    return made.astype(np.uint32).view(np.int32)


# -- the methods -----------------------------------------------------------------------------------


def gptq(
    bits: int = 4, group: int = 128, *, symmetric: bool = False, act_order: bool = False,
    version: str | None = "gptq", g_idx: bool = True,
) -> Method:  # fmt: skip
    """AutoGPTQ's: words along the inputs; zeros along the outputs, less 1 in the first version."""
    config: dict[str, Any] = {
        "quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": act_order,
        "sym": symmetric,
    }  # fmt: skip
    if version is not None:
        config["checkpoint_format"] = version

    def draw(
        rng: np.random.Generator, shape: tuple[int, int], orders: dict[int, Array]
    ) -> Quantised:
        rows, cols = shape
        size = cols if group == -1 else group
        groups_of = np.arange(cols) // size
        if act_order:  # the same for all that read the same
            groups_of = orders.setdefault(cols, rng.permutation(groups_of))
        groups = cols // size
        codes = _codes(rng, shape, bits)
        zeros = rng.integers(1, 1 << bits, (rows, groups))
        if symmetric:
            zeros[...] = 1 << (bits - 1)
        scales = _scales(rng, (rows, groups), cols, bits).astype(np.float16)
        numbers = scales.astype(np.float32)
        matrix = numbers[:, groups_of] * (codes - zeros[:, groups_of]).astype(np.float32)
        stored = zeros if version == "gptq_v2" else zeros - 1
        parts = {
            ".qweight": np.ascontiguousarray(_words(codes, bits).T),
            ".qzeros": _words(stored.T, bits),
            ".scales": np.ascontiguousarray(scales.T),
        }
        if g_idx:
            parts[".g_idx"] = groups_of.astype(np.int32)
        return Quantised(parts, matrix)

    longest = 128 if group == -1 else min(group, 128)
    return Method(config, draw, f"INT{8 if bits == 8 else 4}_G{longest}")


def awq(group: int = 128) -> Method:
    """AutoAWQ's gemm: words along the outputs, in its order."""
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def words(fields: Array) -> Array:  # (n, outputs)
        made = np.zeros((len(fields), fields.shape[1] // 8), np.uint32)
        for word in range(made.shape[1]):
            for i, of in enumerate(order):
                made[:, word] |= fields[:, 8 * word + of].astype(np.uint32) << np.uint32(4 * i)
        return made.view(np.int32)

    def draw(
        rng: np.random.Generator, shape: tuple[int, int], _orders: dict[int, Array]
    ) -> Quantised:
        rows, cols = shape
        size = cols if group == -1 else group
        codes, zeros = _codes(rng, shape, 4), rng.integers(0, 16, (rows, cols // size))
        scales = _scales(rng, zeros.shape, cols, 4).astype(np.float16)
        of = np.arange(cols) // size
        matrix = scales.astype(np.float32)[:, of] * (codes - zeros[:, of]).astype(np.float32)
        return Quantised(
            {".qweight": words(codes.T), ".qzeros": words(zeros.T), ".scales": scales.T.copy()},
            matrix,
        )

    config = {
        "quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True,
        "version": "gemm", "modules_to_not_convert": None,
    }  # fmt: skip
    return Method(config, draw, f"INT4_G{128 if group == -1 else min(group, 128)}")


def compressed(
    bits: int = 4, group: int | None = 128, *, symmetric: bool = True, packed: bool = True,
    act_order: bool = False, half: bool = False,
) -> Method:  # fmt: skip
    """compressed-tensors' integers. group None: one scale a row; half: scales in F16, else BF16."""
    weights = {
        "num_bits": bits, "type": "int", "symmetric": symmetric, "group_size": group,
        "strategy": "channel" if group is None else "group",
        "actorder": "group" if act_order else None, "dynamic": False, "observer": "minmax",
    }  # fmt: skip
    name = "pack-quantized" if packed else "int-quantized"
    scheme = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    config = {
        "quant_method": "compressed-tensors", "format": name, "ignore": ["lm_head"],
        "quantization_status": "compressed", "config_groups": {"group_0": scheme},
    }  # fmt: skip

    def draw(
        rng: np.random.Generator, shape: tuple[int, int], orders: dict[int, Array]
    ) -> Quantised:
        rows, cols = shape
        size, offset = group or cols, 1 << (bits - 1)
        of = np.arange(cols) // size
        if act_order:
            of = orders.setdefault(cols, rng.permutation(of))
        q = _codes(rng, shape, bits) - offset
        zeros = np.zeros((rows, cols // size), np.int64)
        if not symmetric:
            zeros = rng.integers(-offset, offset, zeros.shape)
        drawn = _scales(rng, zeros.shape, cols, bits)
        scale: Array | Typed = drawn.astype(np.float16)
        if not half:
            scale, _ = bf16(drawn)
        numbers = bf16(drawn)[1] if not half else drawn.astype(np.float16).astype(np.float32)
        matrix = numbers[:, of] * (q - zeros[:, of]).astype(np.float32)
        parts: dict[str, Array | Typed] = {".weight_scale": scale}
        if packed:
            parts[".weight_packed"] = _words(q + offset, bits)
            parts[".weight_shape"] = np.array(shape, np.int64)
        else:
            parts[".weight"] = q.astype(np.int8)
        if not symmetric:
            as_words = np.ascontiguousarray(_words(zeros.T + offset, bits).T)
            parts[".weight_zero_point"] = as_words if packed else zeros.astype(np.int8)
        if act_order:
            parts[".weight_g_idx"] = of.astype(np.int32)
        return Quantised(parts, matrix)

    return Method(config, draw, f"INT{bits}_G{128 if group is None else min(group, 128)}")


def _e4m3(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Typed, Array]:
    """Bytes that are no NaN, and what each is by its definition."""
    codes = rng.integers(0, 256, shape).astype(np.uint8)
    codes[codes & 127 == 127] = 0
    exponent, fraction = (codes >> 3 & 15).astype(int), (codes & 7).astype(int)
    magnitude = np.where(
        exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7)
    )
    return Typed("F8_E4M3", codes), np.where(codes & 128, -magnitude, magnitude).astype(np.float32)


def fp8(block: int | None = 128, *, scale: str = "") -> Method:
    """Blocks of both sides, as DeepSeek and Qwen have them; None: of a "tensor" or "channel"."""
    config: dict[str, Any]
    if block is not None:
        config = {
            "quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
            "weight_block_size": [block, block],
        }  # fmt: skip
    else:
        weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": scale}
        scheme = {"targets": ["Linear"], "weights": weights, "input_activations": None}
        config = {
            "quant_method": "compressed-tensors", "format": "float-quantized",
            "ignore": ["lm_head"], "config_groups": {"group_0": scheme},
        }  # fmt: skip

    def draw(
        rng: np.random.Generator, shape: tuple[int, int], _orders: dict[int, Array]
    ) -> Quantised:
        rows, cols = shape
        stored, numbers = _e4m3(rng, shape)
        size = 1.0 / np.sqrt(cols) / 100
        if block is not None:
            sides = (-(-rows // block), -(-cols // block))
            scales = (size * rng.uniform(0.5, 1.5, sides)).astype(np.float32)
            each = scales[np.arange(rows)[:, None] // block, np.arange(cols) // block]
            return Quantised({".weight": stored, ".weight_scale_inv": scales}, numbers * each)
        count = (rows, 1) if scale == "channel" else (1,)
        as_stored, scales = bf16(size * rng.uniform(0.5, 1.5, count))
        parts: dict[str, Array | Typed] = {".weight": stored, ".weight_scale": as_stored}
        parts[".input_scale"] = np.ones(1, np.float32)
        return Quantised(parts, numbers * scales.reshape(-1, 1))

    return Method(config, draw, f"FP8_G{32 if block == 96 else 128}", floats=True)


NF4_TABLE = np.array(
    [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
     -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
     0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
     0.7229568362236023, 1.0], np.float32,
)  # fmt: skip


def nf4(*, double: bool = True, block: int = 64) -> Method:
    """bitsandbytes': the first of two codes in the high half; scales of scales of 256 blocks."""
    config = {
        "quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": double, "bnb_4bit_quant_storage": "uint8",
        "bnb_4bit_compute_dtype": "float32",
    }  # fmt: skip

    def draw(
        rng: np.random.Generator, shape: tuple[int, int], _orders: dict[int, Array]
    ) -> Quantised:
        rows, cols = shape
        codes = _codes(rng, shape, 4).astype(np.uint8).reshape(-1)
        blocks = rows * cols // block
        state = {"quant_type": "nf4", "blocksize": block, "dtype": "float32", "shape": [rows, cols]}
        parts: dict[str, Array | Typed] = {
            ".weight": (codes[::2] << 4 | codes[1::2])[:, None],
            ".weight.quant_map": NF4_TABLE,
        }
        if double:
            table = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32)
            indexes = rng.integers(0, 256, blocks).astype(np.uint8)
            factors = (0.02 * rng.uniform(0.5, 1, -(-blocks // 256))).astype(np.float32)
            offset = 0.1
            each = [
                table[i] * factors[b // 256] + np.float32(offset) for b, i in enumerate(indexes)
            ]
            absmax = np.array(each, np.float32)
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
            parts[".weight.absmax"] = indexes
            parts[".weight.nested_absmax"], parts[".weight.nested_quant_map"] = factors, table
        else:
            absmax = (0.1 * rng.uniform(0.5, 1.5, blocks)).astype(np.float32)
            parts[".weight.absmax"] = absmax
        said = np.frombuffer(json.dumps(state).encode(), np.uint8)
        parts[".weight.quant_state.bitsandbytes__nf4"] = said
        matrix = NF4_TABLE[codes] * np.repeat(absmax, block)
        return Quantised(parts, matrix.reshape(shape))

    return Method(config, draw, "NF4", floats=True)


def llm_int8() -> Method:
    """bitsandbytes' LLM.int8: a row's scale is SCB / 127."""

    def draw(
        rng: np.random.Generator, shape: tuple[int, int], _orders: dict[int, Array]
    ) -> Quantised:
        rows, cols = shape
        q = rng.integers(-127, 128, shape)
        peak = (1.5 / np.sqrt(cols) * rng.uniform(1, 3, rows)).astype(np.float32)
        matrix = (peak / np.float32(127))[:, None] * q.astype(np.float32)
        parts = {
            ".weight": q.astype(np.int8), ".SCB": peak,
            ".weight_format": np.array(0, np.uint8),
        }  # fmt: skip
        return Quantised(parts, matrix)

    config = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    return Method(config, draw, "INT8_G128")


E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def mxfp4() -> Method:
    """compressed-tensors': bytes of two codes, the first in the low half, and exponents + 127."""
    weights = {
        "num_bits": 4, "type": "float", "symmetric": True, "group_size": 32, "strategy": "group",
        "scale_dtype": "torch.uint8",
    }  # fmt: skip
    config = {
        "quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }  # fmt: skip

    def draw(
        rng: np.random.Generator, shape: tuple[int, int], _orders: dict[int, Array]
    ) -> Quantised:
        rows, cols = shape
        codes = _codes(rng, shape, 4).astype(np.uint8)
        exponents = rng.integers(119, 122, (rows, cols // 32)).astype(np.uint8)
        numbers = np.array([*E2M1, *(-x for x in E2M1)], np.float32)[codes]
        powers = np.ldexp(np.float32(1), exponents.astype(int) - 127)
        parts = {".weight_packed": codes[:, ::2] | codes[:, 1::2] << 4, ".weight_scale": exponents}
        return Quantised(parts, numbers * np.repeat(powers, 32, axis=1))

    return Method(config, draw, "MXFP4")


METHODS: Mapping[str, Method] = {
    "gptq": gptq(),
    "gptq-g32": gptq(group=32),
    "gptq-g64": gptq(group=64),
    "gptq-row": gptq(group=-1),
    "gptq-symmetric": gptq(symmetric=True),
    "gptq-act-order": gptq(act_order=True),
    "gptq-act-order-g32": gptq(group=32, act_order=True, symmetric=True),
    "gptq-v2": gptq(version="gptq_v2"),
    "gptq-old": gptq(version=None, g_idx=False),
    "gptq-2bit": gptq(bits=2, group=64),
    "gptq-3bit": gptq(bits=3),
    "gptq-8bit": gptq(bits=8),
    "gptq-8bit-act-order": gptq(bits=8, act_order=True, group=32),
    "awq": awq(),
    "awq-g64": awq(64),
    "awq-g32": awq(32),
    "awq-row": awq(-1),
    "ct-int4": compressed(),
    "ct-int4-g32": compressed(group=32, half=True),
    "ct-int4-row": compressed(group=None),
    "ct-int4-asymmetric": compressed(symmetric=False),
    "ct-int4-act-order": compressed(act_order=True, symmetric=False),
    "ct-int8-packed": compressed(bits=8, group=None),
    "ct-int8-packed-asymmetric": compressed(bits=8, symmetric=False),
    "ct-int8": compressed(bits=8, group=None, packed=False),
    "ct-int8-g64": compressed(bits=8, group=64, packed=False, half=True),
    "ct-int8-asymmetric": compressed(bits=8, group=None, packed=False, symmetric=False),
    "fp8": fp8(),
    "fp8-block-96": fp8(96),
    "ct-fp8-tensor": fp8(None, scale="tensor"),
    "ct-fp8-channel": fp8(None, scale="channel"),
    "ct-mxfp4": mxfp4(),
    "nf4": nf4(),
    "nf4-plain": nf4(double=False),
    "nf4-block-128": nf4(block=128),
    "llm-int8": llm_int8(),
}
"""Every method in every variant that is read, by name."""
