"""What the libraries write is read, and is the matrix that they read themselves."""

import json

import numpy as np
import pytest

from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.quantization import METHODS
from cutaway.files.huggingface.quantization.mlx import Mlx
from cutaway.files.huggingface.shards import Shards
from cutaway.files.weights import FORMATS, dequantize
from support.quantised.affine import torchao_int4, torchao_tiles, torchao_words
from support.quantised.method import Typed

NEEDED = "needs what wrote it: pip install '.[test-transformers]'"
torch = pytest.importorskip("torch", reason=NEEDED)
library = pytest.importorskip("safetensors.torch", reason=NEEDED)

ROWS, COLS = 96, 256


@pytest.fixture
def weight():
    drawn = np.random.default_rng(0).normal(size=(ROWS, COLS)) * 0.1
    return torch.from_numpy(drawn.astype(np.float32))


def read(tmp_path, parts, config, metadata=None):
    """The one matrix that a file of these tensors holds, in the order of its input."""
    parts = {f"a.{name}": tensor.contiguous() for name, tensor in parts.items()}
    library.save_file(parts, tmp_path / "x.safetensors", metadata)
    return read_matrix(tmp_path, METHODS[config["quant_method"]](JsonObject(config, "config.json")))


def read_matrix(tmp_path, method):
    [matrix] = method.matrices(Shards([tmp_path / "x.safetensors"]))
    assert matrix.order is None
    numbers = dequantize(FORMATS[matrix.format], matrix.rows().reshape(-1)).reshape(matrix.shape)
    return numbers if matrix.factor is None else numbers * matrix.factor


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
    assert np.allclose(ours, theirs, rtol=2**-7, atol=0)  # they round twice: SCB, then 1/127


MLX = "needs mlx, which wrote it: pip install '.[test-mlx]'"
"""Its wheels are for newer systems than many; the formula in support.quantised runs everywhere."""


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_mlx(tmp_path, weight, bits, group, dtype):
    mx = pytest.importorskip("mlx.core", reason=MLX)
    packed = mx.quantize(mx.array(weight.numpy()).astype(getattr(mx, dtype)), group, bits)
    parts = dict(zip(("a.weight", "a.scales", "a.biases"), packed, strict=True))
    mx.save_safetensors(str(tmp_path / "x.safetensors"), parts)
    ours = read_matrix(tmp_path, Mlx.read(JsonObject({"group_size": group, "bits": bits}, "c")))
    wide = [packed[0], *(part.astype(mx.float32) for part in packed[1:])]
    theirs = np.array(mx.dequantize(*wide, group, bits))
    assert np.abs(ours - theirs).max() <= 2**-24  # a product is rounded before the sum, or not


@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8", "nvfp4"])
def test_mlx_s_floats(tmp_path, weight, mode):
    mx = pytest.importorskip("mlx.core", reason=MLX)
    packed = mx.quantize(mx.array(weight.numpy()), mode=mode)
    parts = dict(zip(("a.weight", "a.scales"), packed, strict=True))
    mx.save_safetensors(str(tmp_path / "x.safetensors"), parts)
    config = {"group_size": 16 if mode == "nvfp4" else 32, "mode": mode}
    ours = read_matrix(tmp_path, Mlx.read(JsonObject(config, "c")))
    theirs = np.array(mx.dequantize(*packed, mode=mode, dtype=mx.float32))
    assert np.array_equal(ours, theirs)
    assert np.abs(ours - weight.numpy()).max() < 0.1


TORCHAO = {
    "int8": ("Int8WeightOnlyConfig", {}),
    "float8-rows": ("Float8WeightOnlyConfig", {}),
    "float8-g64": ("Float8WeightOnlyConfig", {"granularity": 64}),
    "int8-g32": ("IntxWeightOnlyConfig", {"weight_dtype": torch.int8, "granularity": 32}),
    "int4-g64": ("IntxWeightOnlyConfig", {"weight_dtype": torch.int4, "granularity": 64}),
    "int4-asymmetric": (
        "IntxWeightOnlyConfig",
        {"weight_dtype": torch.int4, "granularity": 128, "mapping_type": "ASYMMETRIC"},
    ),
}


@pytest.mark.parametrize("name", TORCHAO)
def test_torchao(tmp_path, weight, name):
    ao = pytest.importorskip("torchao.quantization", reason=NEEDED)
    from torchao.prototype.safetensors import safetensors_support

    config, said = TORCHAO[name]
    if "granularity" in said:
        said = said | {"granularity": ao.PerGroup(said["granularity"])}
    if "mapping_type" in said:
        said = said | {"mapping_type": ao.MappingType.ASYMMETRIC}
    linear = torch.nn.Linear(COLS, ROWS, bias=False)
    linear.weight = torch.nn.Parameter(weight.to(torch.bfloat16))
    ao.quantize_(linear, getattr(ao, config)(**said))
    parts, metadata = safetensors_support.flatten_tensor_state_dict({"a.weight": linear.weight})
    parts = {name.removeprefix("a."): part for name, part in parts.items()}
    ours = read(tmp_path, parts, {"quant_method": "torchao"}, metadata)
    theirs = linear.weight.dequantize().float().numpy()
    assert np.allclose(ours, theirs, rtol=2**-8, atol=0)  # theirs is rounded to BF16
    assert np.abs(ours - weight.numpy()).max() < 0.05


@pytest.mark.parametrize("is_swizzled", [False, True])
@pytest.mark.parametrize("kind", ["mxfp4", "mxfp8", "nvfp4", "nvfp4-unscaled"])
def test_torchao_s_blocks_of_floats(tmp_path, weight, kind, is_swizzled):
    pytest.importorskip("torchao.quantization", reason=NEEDED)
    from torchao.prototype.mx_formats import mx_tensor, nvfp4_tensor
    from torchao.prototype.safetensors import safetensors_support

    if kind.startswith("mx"):
        element = torch.float8_e4m3fn if kind == "mxfp8" else torch.float4_e2m1fn_x2
        weight = weight[:, :160].contiguous()  # 5 groups in a row, and 4 are in a tile
        theirs = mx_tensor.MXTensor.to_mx(weight, element, 32, is_swizzled_scales=is_swizzled)
    else:
        scale = nvfp4_tensor.per_tensor_amax_to_scale(weight.abs().max())
        theirs = nvfp4_tensor.NVFP4Tensor.to_nvfp4(
            weight, per_tensor_scale=scale if kind == "nvfp4" else None,
            is_swizzled_scales=is_swizzled,
        )  # fmt: skip
    parts, metadata = safetensors_support.flatten_tensor_state_dict({"a.weight": theirs})
    parts = {name.removeprefix("a."): part for name, part in parts.items()}
    ours = read(tmp_path, parts, {"quant_method": "torchao"}, metadata)
    assert np.allclose(ours, theirs.dequantize(torch.float32).numpy(), rtol=2**-22, atol=0)
    assert np.abs(ours - weight.numpy()).max() < 0.1


@pytest.mark.parametrize("draw", [torchao_int4, torchao_tiles, torchao_words])
def test_torchao_s_classes_for_gpus(tmp_path, draw):
    """A GPU packs their codes: these are drawn, and the library names and describes the parts."""
    ao = pytest.importorskip("torchao.quantization", reason=NEEDED)
    from torchao.prototype.safetensors import safetensors_support

    drawn = draw(64).draw(np.random.default_rng(0), (ROWS, COLS), {})
    parts = {name.removeprefix("._weight_"): as_torch(part) for name, part in drawn.parts.items()}
    kind = getattr(ao, json.loads(drawn.metadata)["_type"])
    theirs = kind(**parts, block_size=[1, 64], shape=torch.Size((ROWS, COLS)))
    parts, metadata = safetensors_support.flatten_tensor_state_dict({"a.weight": theirs})
    parts = {name.removeprefix("a."): part for name, part in parts.items()}
    ours = read(tmp_path, parts, {"quant_method": "torchao"}, metadata)
    assert np.array_equal(ours, drawn.matrix)


def as_torch(part):
    if isinstance(part, Typed):
        return torch.from_numpy(part.data.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(part))


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


def test_compressed_tensors_nvfp4(tmp_path, weight):
    """The library computes in BF16, and rounds the scale and the product."""
    pytest.importorskip("compressed_tensors", reason=NEEDED)
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    settings = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    how = scheme(**settings, scale_dtype=torch.float8_e4m3fn)
    whole = generate_gparam(weight.min().reshape(1), weight.max().reshape(1))
    ends = _ends(weight, {"strategy": "group", "group_size": 16})
    scale, zero = calculate_qparams(*ends, how.weights, global_scale=whole)
    state = {
        "weight": weight, "weight_scale": scale, "weight_zero_point": zero,
        "weight_global_scale": whole,
    }  # fmt: skip
    format = "nvfp4-pack-quantized"
    compressor = BaseCompressor.get_value_from_registry(format)
    parts = compressor.compress(state, how)
    theirs = compressor.decompress(parts, how)["weight"].float().numpy()
    config = {"quant_method": "compressed-tensors", "format": format, "config_groups": {}}
    assert np.allclose(read(tmp_path, parts, config), theirs, rtol=2**-7, atol=0)
    assert np.abs(theirs - weight.numpy()).max() < 0.1
