"""What the libraries write is read, and is the matrix that they read themselves."""

import numpy as np
import pytest

from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.quantization import METHODS
from cutaway.files.huggingface.shards import Shards
from cutaway.files.weights import FORMATS, dequantize

NEEDED = "needs what wrote it: pip install '.[test-transformers]'"
torch = pytest.importorskip("torch", reason=NEEDED)
library = pytest.importorskip("safetensors.torch", reason=NEEDED)

ROWS, COLS = 96, 256


@pytest.fixture
def weight():
    drawn = np.random.default_rng(0).normal(size=(ROWS, COLS)) * 0.1
    return torch.from_numpy(drawn.astype(np.float32))


def read(tmp_path, parts, config):
    """The one matrix that a file of these tensors holds, in the order of its input."""
    parts = {f"a.{name}": tensor.contiguous() for name, tensor in parts.items()}
    library.save_file(parts, tmp_path / "x.safetensors")
    method = METHODS[config["quant_method"]](JsonObject(config, "config.json"))
    [matrix] = method.matrices(Shards([tmp_path / "x.safetensors"]))
    assert matrix.order is None
    return dequantize(FORMATS[matrix.format], matrix.rows().reshape(-1)).reshape(matrix.shape)


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("block", [64, 128, 256])
def test_bitsandbytes_nf4(tmp_path, weight, double, block):
    bnb = pytest.importorskip("bitsandbytes.functional", reason=NEEDED)
    packed, state = bnb.quantize_4bit(
        weight, blocksize=block, compress_statistics=double, quant_type="nf4"
    )
    parts = {"weight": packed}
    parts |= {f"weight.{name}": part for name, part in state.as_dict(packed=True).items()}
    ours = read(tmp_path, parts, {"quant_method": "bitsandbytes", "load_in_4bit": True})
    assert np.array_equal(ours, bnb.dequantize_4bit(packed, state).numpy())


def test_bitsandbytes_int8(tmp_path, weight):
    bnb = pytest.importorskip("bitsandbytes.functional", reason=NEEDED)
    codes, scales, _ = bnb.int8_vectorwise_quant(weight.half())
    parts = {"weight": codes, "SCB": scales, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    ours = read(tmp_path, parts, {"quant_method": "bitsandbytes", "load_in_8bit": True})
    theirs = bnb.int8_vectorwise_dequant(codes, scales).numpy()
    assert np.allclose(ours, theirs, rtol=3e-7, atol=0)  # they round twice: SCB, then 1/127


def scheme(**weights):
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))


COMPRESSED = {
    **{
        f"int{bits}-{'' if symmetric else 'a'}symmetric-{group or 'row'}": (
            "pack-quantized",
            {
                "num_bits": bits, "symmetric": symmetric, "group_size": group,
                "strategy": "group" if group else "channel",
            },
        )
        for bits in (4, 8)
        for symmetric in (True, False)
        for group in (32, 128, None)
    },
    "int8-bytes": ("int-quantized", {"num_bits": 8, "strategy": "channel"}),
    "int8-bytes-asymmetric": (
        "int-quantized", {"num_bits": 8, "strategy": "channel", "symmetric": False}
    ),
    "mxfp4": (
        "mxfp4-pack-quantized",
        {
            "num_bits": 4, "type": "float", "strategy": "group", "group_size": 32,
            "scale_dtype": torch.uint8,
        },
    ),
    "fp8-tensor": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}),
    "fp8-channel": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "fp8-group": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 64},
    ),
    "fp8-block": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [32, 64]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_tensors(tmp_path, weight, name):
    """Scales are float32 here, so that the library's own matrix is not rounded."""
    pytest.importorskip("compressed_tensors", reason=NEEDED)
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization.utils import calculate_qparams

    format, said = COMPRESSED[name]
    how = scheme(**said)
    low, high = _ends(weight, said)
    scale, zero = calculate_qparams(low, high, how.weights)
    state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
    compressor = BaseCompressor.get_value_from_registry(format)
    parts = compressor.compress(state, how)
    theirs = compressor.decompress(parts, how)["weight"].float().numpy()
    groups = {"group_0": {"weights": said}}
    config = {"quant_method": "compressed-tensors", "format": format, "config_groups": groups}
    assert np.array_equal(read(tmp_path, parts, config), theirs)
    assert np.abs(theirs - weight.numpy()).max() < 0.1


def _ends(weight, said):
    """The smallest and largest weight of each part that shares a scale, in the scales' shape."""
    if said["strategy"] == "tensor":
        return weight.min().reshape(1), weight.max().reshape(1)
    high, wide = said.get("block_structure", (1, said.get("group_size") or COLS))
    blocks = weight.reshape(ROWS // high, high, COLS // wide, wide)
    return blocks.amin((1, 3)), blocks.amax((1, 3))
