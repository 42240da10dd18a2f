"""What is wrong with a quantised folder is one sentence that names the tensor or the field."""

import json
import shutil

import numpy as np
import pytest
from hypothesis import strategies as st

from cutaway.errors import CutawayError, FormatError
from cutaway.files.huggingface import HuggingFaceFolder
from support.examples import few_or_many
from support.quantised.integers import gptq
from support.quantised.method import Typed
from support.quantised.tensors import read_metadata, read_tensors, write_tensors
from support.quantised_folders import METHODS, write_folder
from support.random_models import edit

PLAIN = {"hidden_size": 64, "intermediate_size": 128}  # of tests that need no long rows
FIRST = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder by its method's name, small, not to be changed."""
    made = {}

    def of(name):
        if name not in made:
            made[name] = write_folder(tmp_path_factory.mktemp(name), METHODS[name])
        return made[name]

    return of


@pytest.fixture
def changed(folders, tmp_path):
    """A folder with tensors of the first matrix changed: by ending, None removes one."""

    def change(name, config=None, texts=None, **parts):
        path = shutil.copytree(folders(name), tmp_path / "changed")
        tensors = read_tensors(path / "model.safetensors")
        for ending, make in parts.items():
            full = f"{FIRST}.{ending}"
            new = make(tensors[full]) if make else None
            tensors = {k: v for k, v in tensors.items() if k != full}
            if new is not None:
                tensors[full] = new
        metadata = read_metadata(path / "model.safetensors")
        write_tensors(path / "model.safetensors", tensors, metadata | (texts or {}))
        if config is not None:
            key = METHODS[name].key
            said = json.loads((path / "config.json").read_text())[key]
            edit(path / "config.json", **{key: {**said, **config}})
        return path

    return change


def opened(path):
    with HuggingFaceFolder(path) as file:
        for name in file.tensors:
            file.raw(name)


REFUSED_METHODS = ("hqq", "eetq", "aqlm", "spqr", "vptq", "quark", "quanto",
                   "higgs", "fp_quant", "sinq", "")  # fmt: skip


@pytest.mark.parametrize("method", REFUSED_METHODS)
def test_other_methods_are_refused_by_name(changed, method):
    path = changed("awq", {"quant_method": method})
    what = repr(method) if method else "a method that it does not name"
    with pytest.raises(FormatError, match=f"quantised with {what}, and cutaway reads awq, gptq"):
        HuggingFaceFolder(path)


CONFIGS = [
    ("auto-round", {"packing_format": "auto_round:marlin"}, "packing_format is 'auto_round:mar"),
    ("auto-round", {"packing_format": None}, "packing_format is None, .*auto_round:auto_gptq, "),
    ("auto-round", {"data_type": "mx_fp"}, "data_type is 'mx_fp', which is not supported; only 'i"),
    ("auto-round", {"extra_config": 3}, "extra_config is 3; it must be an object"),
    ("awq", {"version": "gemv"}, "version is 'gemv', which is not supported; only 'gemm' is"),
    ("awq", {"bits": 8}, "bits is 8, which is not supported; only 4 is"),
    ("gptq", {"bits": 5}, "bits is 5, which is not supported"),
    ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
    ("gptq", {"is_marlin_format": True}, "is_marlin_format is True"),
    ("fp8", {"fmt": "e5m2"}, "fmt is 'e5m2', which is not supported; only 'e4m3' is"),
    ("fp8", {"weight_block_size": [128]}, "weight_block_size is .128.; it must be a list of two"),
    ("fp8", {"weight_block_size": [0, 128]}, "weight_block_size"),
    ("fp8", {"weight_block_size": [64, 128]}, "2 x 2 scales, which are not those of blocks of 64"),
    ("ct-int4", {"format": "marlin-24"}, "format is 'marlin-24', which is not supported"),
    ("ct-int4", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config: format"),
    ("ct-int4", {"transform_config": {"config_groups": {"R1": {}}}}, "transform_config: config_gr"),
    ("ct-int4", {"config_groups": {"a": {"format": "marlin-24"}}}, "format is 'marlin-24'"),
    ("nf4", {"bnb_4bit_quant_type": "fp4"}, "bnb_4bit_quant_type is 'fp4'"),
    ("nf4", {"bnb_4bit_quant_storage": "bfloat16"}, "bnb_4bit_quant_storage is 'bfloat16'"),
    ("modelopt-nvfp4", {"quant_algo": "NVFP4_SVD"}, "quant_algo is 'NVFP4_SVD'"),
    ("mlx", {"mode": "fp6"}, "mode is 'fp6', which is not supported; only 'affine' or 'mxfp4' or"),
    ("mlx", {"group_size": 0}, "group_size is 0, which is not supported; only 64 or 32 or 128 is"),
    ("mlx", {"mode": "nvfp4"}, "group_size is 64, which is not supported; only 16 is"),
    ("mlx", {FIRST: {"group_size": 64, "mode": "fp6"}}, "q_proj: mode is 'fp6'"),
    ("mlx", {FIRST: {"group_size": 32, "mode": "mxfp4"}}, "q_proj.scales' is stored as BF16; it m"),
    ("mlx-3bit", {"group_size": 128}, "has 24 words for 4 groups of 128: cutaway reads codes of"),
    ("mlx-mxfp8", {"mode": "mxfp4"}, "has 64 words for 8 groups of 32: cutaway reads codes of 4"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "config", "match"), CONFIGS)
def test_variants_that_are_not_read_are_refused(changed, name, config, match):
    with pytest.raises(FormatError, match=match):
        HuggingFaceFolder(changed(name, config))


def cut(tensor):
    """One column less, or one of a vector."""
    if isinstance(tensor, Typed):
        return Typed(tensor.dtype, tensor.data[..., :-1])
    return tensor[..., :-1]


def as_float(tensor):
    return np.zeros(tensor.shape, np.float32)


def first(number):
    """The same tensor with another first number."""

    def change(tensor):
        data = (tensor.data if isinstance(tensor, Typed) else tensor).copy()
        data.reshape(-1)[0] = number
        return Typed(tensor.dtype, data) if isinstance(tensor, Typed) else data

    return change


def one_group_more(g_idx):
    return np.append(g_idx[:-1], np.int32(g_idx.max() + 1)).astype(np.int32)


def uneven(g_idx):
    return np.where(np.arange(len(g_idx)) == 0, g_idx.max(), g_idx).astype(np.int32)


def nan(weight):
    data = weight.data.copy()
    data[0, 0] = 0x7F
    return Typed(weight.dtype, data)


def other_table(table):
    return (table * 2).astype(np.float32)


def other_state(**changes):
    def change(state):
        said = {**json.loads(state.tobytes()), **changes}
        return np.frombuffer(json.dumps(said).encode(), np.uint8)

    return change


STATE = "weight.quant_state.bitsandbytes__nf4"
TENSORS = [
    ("gptq", "scales", None, "q_proj.scales' is missing"),
    ("gptq", "qzeros", None, "q_proj.qzeros' is missing"),
    ("gptq", "scales", cut, "scales' has the shape .2, 255., which is not .2, 256."),
    ("gptq", "qzeros", cut, "qzeros' has the shape .2, 31., which is not .2, 32."),
    ("gptq", "qweight", as_float, "qweight' is stored as F32; it must be I32"),
    ("gptq", "scales", lambda s: np.repeat(s, 3, 0)[:5], "qzeros' has the shape .2, 32., which is"),
    ("gptq", "g_idx", one_group_more, "g_idx' names groups from 0 to 2, and there are scales"),
    ("gptq", "g_idx", uneven, "g_idx' puts 127 columns into group 0, and each of the 2 groups"),
    ("gptq", "g_idx", cut, "q_proj.qweight' has 32 words for 255 inputs"),
    ("gptq", "g_idx", lambda g: g[None], "g_idx' has the shape .1, 256."),
    ("gptq", "qweight", lambda w: w[:0], "qweight' has the shape .0, 256.: it holds nothing"),
    ("gptq", "qweight", lambda w: w[0], "qweight' has 1 dimensions, not 2"),
    ("awq", "scales", None, "q_proj.scales' is missing"),
    ("awq", "qzeros", cut, "qzeros' has the shape .2, 31., which is not .2, 32."),
    ("awq", "qweight", lambda w: w[:-1], "scales' has scales for 2 groups, into which rows of 255"),
    ("ct-int4", "weight_scale", None, "weight_scale' is missing"),
    ("ct-int4", "weight_scale", cut, "a scale for each 256 weights of a row, and config.json's gr"),
    ("gptq", "g_idx", lambda g: g // 2, "group"),
    ("ct-int4", "weight_shape", None, "weight_shape' is missing"),
    ("ct-int4", "weight_shape", lambda s: s[::-1] * 2, "256 x 32 words for 512 x 512 weights"),
    ("ct-int4", "weight_shape", lambda s: s * -1, "256 x 32 words for -256 x -256 weights"),
    ("ct-int4-asymmetric", "weight_zero_point", cut, "weight_zero_point' has the shape .32, 1."),
    ("ct-int4-act-order", "weight_g_idx", cut, "weight_g_idx' has the shape .255,., which is not"),
    ("ct-int8", "weight_scale", lambda s: Typed(s.dtype, s.data[:9]), "scales for 9 outputs, and"),
    ("ct-int8-asymmetric", "weight_zero_point", cut, "weight_zero_point"),
    ("fp8", "weight_scale_inv", None, "q_proj.weight_scale' is missing"),
    ("fp8", "weight_scale_inv", cut, "weight_scale_inv' has 2 x 1 scales, which are not those of"),
    ("fp8", "weight", nan, "q_proj.weight' holds weights that are not finite"),
    ("ct-fp8-channel", "weight_scale", lambda s: Typed(s.dtype, s.data[:99]), "99 x 1 scales"),
    ("ct-fp8-channel", "weight_scale", lambda s: np.zeros((1, 1, 1), np.float32), "no scale for"),
    ("nf4", "weight.absmax", None, "weight.absmax' is missing"),
    ("nf4", "weight.absmax", cut, "absmax' has the shape .1023,., which is not .1024,."),
    ("nf4", "weight.nested_absmax", cut, "nested_absmax' has the shape .3,., which is not .4,."),
    ("nf4", "weight.quant_map", other_table, "quant_map' is another table than NF4's"),
    ("nf4", "weight", lambda w: w.T.copy(), "weight' has the shape .1, 32768., which is not"),
    ("nf4", STATE, other_state(quant_type="fp4"), "quant_type is 'fp4'"),
    ("nf4", STATE, other_state(blocksize=32), "blocks of 32 in rows of 256, and cutaway reads"),
    ("nf4", STATE, other_state(shape=[65536]), "shape is .65536.; it must be a list of two"),
    ("nf4", STATE, other_state(nested_offset="x"), "nested_offset is 'x'; it must be a number"),
    ("nf4", STATE, lambda s: s[:9], "quant_state.* is no JSON object"),
    ("ct-mxfp4", "weight_scale", None, "q_proj.weight_scale' is missing"),
    ("ct-mxfp4", "weight_scale", cut, "weight_scale' has the shape .256, 7., which is not"),
    ("ct-mxfp4", "weight_scale", lambda s: s | 255, "weight_scale' holds scales that are not fin"),
    ("ct-mxfp4", "weight_packed", cut, "rows of 254 weights, which are no whole groups of 32"),
    ("modelopt-nvfp4", "weight_scale", nan, "weight_scale' holds scales that are not finite"),
    ("modelopt-nvfp4", "weight_scale", cut, "weight_scale' has the shape .256, 15., which is"),
    ("modelopt-nvfp4", "weight", cut, "rows of 254 weights, and cutaway reads NVFP4 in rows"),
    ("modelopt-nvfp4", "weight_scale_2", np.negative, "weight_scale_2' is -.*, and it must be a f"),
    ("modelopt-nvfp4", "weight_scale", None, "q_proj.weight_scale' is missing"),
    ("modelopt-nvfp4-awq", "pre_quant_scale", cut, "has the shape .255,., which is not .256,. as"),
    ("modelopt-w4a8", "weight_scale_2", lambda s: np.stack([s] * 2), "it must be one number"),
    ("modelopt-int4", "weight", cut, "rows of 255 cannot be divided; download the model again"),
    ("modelopt-nvfp4-awq", "pre_quant_scale", first(0x7F80), "scale' holds factors that are not"),
    ("ct-nvfp4", "weight_global_scale", lambda s: s.repeat(2), "it must be one number"),
    ("ct-nvfp4", "weight_global_scale", first(1e-40), "is 9.*e-41, and its inverse must be a fin"),
    ("ct-nvfp4", "weight_global_scale", first(0), "is 0.0, and its inverse must be a finite num"),
    ("bitnet-divided", "weight_scale", first(1), "is 9.*e-41, and its inverse must be a finite"),
    ("bitnet", "weight_scale", first(0x7F80), "is inf, and it must be a finite number above 0"),
    ("bitnet", "weight", first(0x40 * 3), "q_proj.weight' holds the code 3, and a weight is -1"),
    ("bitnet-master", "weight", first(0x7F80), "q_proj.weight' holds weights that are not finite"),
    ("bitnet-master", "weight", first(0x7F7F), "holds weights that are not finite, or too large"),
    ("bitnet-master", "weight", first(0x7FC0), "q_proj.weight' holds weights that are not finite"),
    ("mlx", "biases", None, "q_proj.biases' is missing"),
    ("mlx", "scales", None, "q_proj.biases' has no place in this family"),
    ("mlx-mxfp4", "scales", first(255), "q_proj.scales' holds scales that are not finite"),
    ("mlx-mxfp8", "weight", first(127), "q_proj.weight' holds weights that are not finite"),
    ("mlx-nvfp4", "scales", first(128), "q_proj.scales' holds scales that are not finite, or bel"),
    ("torchao-tiles", "_weight_qdata", cut, "qdata' has the shape .*, which is no tiles of 32 x 4"),
    ("torchao-tiles", "_weight_scale_and_zero", None, "_weight_scale_and_zero' is missing"),
    ("torchao-tiles", "_weight_scale_and_zero", cut, "_scale_and_zero' has the shape .16, 256, 1."),
    ("torchao-words", "_weight_zero_point", as_float, "point' is stored as F32; it must be I8"),
    ("torchao-float8", "_weight_qdata", first(127), "qdata' holds weights that are not finite"),
    ("torchao-float8", "_weight_scale", cut, "_weight_scale' has the shape .256, 0.: it holds"),
    ("mlx-g32-half", "scales", lambda s: s * np.inf, "has scales or biases beyond 65,504"),
    ("torchao-int8", "_weight_scale", None, "q_proj._weight_scale' is missing"),
    ("torchao-int8", "_weight_scale", cut, "_weight_scale' has the shape .256, 0.: it holds"),
    ("torchao-int8-asymmetric", "_weight_zero_point", lambda z: z[:9], "another shape than the s"),
    ("torchao-int4-bytes", "_weight_qdata", first(8), "_weight_qdata' holds numbers outside of -"),
    ("torchao-int4-bytes", "_weight_qdata", first(-9), "_weight_qdata' holds numbers outside of -"),
    ("torchao-int4-bytes", "_weight_zero_point", first(8), "_zero_point' holds numbers outside of"),
    ("torchao-mxfp8-swizzled", "_weight_scale", cut, "swizzled scales of 256 x 8 groups have .64,"),
    ("torchao-int4", "_weight_zero_point", None, "q_proj._weight_zero_point' is missing"),
    ("llm-int8", "SCB", None, "q_proj.SCB' is missing"),
    ("llm-int8", "weight_format", lambda w: np.array(1, np.uint8), "rows are mixed for a GPU"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "ending", "make", "match"), TENSORS)
def test_parts_that_do_not_fit_are_refused(changed, name, ending, make, match):
    with pytest.raises(FormatError, match=match) as refused:
        opened(changed(name, **{ending: make}))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("modelopt-nvfp4", "W4A16_NVFP4"), ("modelopt-nvfp4", "W4A8_NVFP4_FP8"),
        ("ct-fp8-channel", "FP8_PER_CHANNEL_PER_TOKEN"),
    ],
)  # fmt: skip
def test_algorithms_of_modelopt_that_differ_in_activations_alone(folders, changed, name, algorithm):
    settings = {"quant_method": "modelopt", "quant_algo": algorithm}
    path = changed(name, settings)
    with HuggingFaceFolder(path) as file, HuggingFaceFolder(folders(name)) as plain:
        assert [*file.tensors] == [*plain.tensors]
        for tensor in plain.tensors:
            assert np.array_equal(file.raw(tensor)[:], plain.raw(tensor)[:])


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('{"_type": "QTensor"}', "_type is 'QTensor'.*, NVFP4Tensor are: save it as one of these"),
        (
            '{"_type": "MXTensor", "_data": {"block_size": 32}}',
            "_data: is_swizzled_scales is missing; it must be true or false",
        ),
        (
            '{"_type": "MXTensor", "_data": {"is_swizzled_scales": false, "block_size": 16}}',
            "_data: block_size is 16, which is not supported; only 32 is",
        ),
        ("[", "does not say how '.*q_proj.weight' is quantised"),
    ],
)
def test_other_classes_of_torchao_are_refused_by_name(changed, text, match):
    with pytest.raises(FormatError, match=match):
        HuggingFaceFolder(changed("torchao-int8", texts={f"{FIRST}.weight": text}))


@pytest.mark.parametrize("shape", ["256", "[256]", "[256, 2048]", "[0, 256]", '[256, "a"]'])
def test_tiles_of_torchao_that_hold_no_such_matrix(changed, shape):
    text = f'{{"_type": "Int4TilePackedTo4dTensor", "_data": {{"shape": {shape}}}}}'
    with pytest.raises(FormatError, match=r"q_proj.weight': _data: shape is .*; it must be "):
        HuggingFaceFolder(changed("torchao-tiles", texts={f"{FIRST}.weight": text}))


def test_settings_of_modelopt_may_be_in_a_file_of_their_own(folders, tmp_path):
    path = shutil.copytree(folders("modelopt-nvfp4"), tmp_path / "modelopt")
    edit(path / "config.json", quantization_config=None)
    file = path / "hf_quant_config.json"
    file.write_text(json.dumps({"quantization": {"quant_algo": "NVFP4", "group_size": 16}}))
    with HuggingFaceFolder(path) as ours, HuggingFaceFolder(folders("modelopt-nvfp4")) as theirs:
        for tensor in theirs.tensors:
            assert np.array_equal(ours.raw(tensor)[:], theirs.raw(tensor)[:])
    file.write_text(json.dumps({"quantization": {"quant_algo": "NVFP4_SVD"}}))
    with pytest.raises(
        FormatError, match=r"hf_quant_config.json: quantization: quant_algo is 'NVFP4_S"
    ):
        HuggingFaceFolder(path)


def test_groups_that_are_no_whole_blocks(tmp_path):
    write_folder(tmp_path, gptq(group=16), **PLAIN)
    with pytest.raises(
        FormatError, match=r"has groups of 16 in rows of 64, and cutaway reads groups"
    ):
        HuggingFaceFolder(tmp_path)


def test_a_config_that_says_more_than_there_is(folders, tmp_path):
    path = shutil.copytree(folders("awq"), tmp_path / "plain")
    tensors = read_tensors(path / "model.safetensors")
    plain = {name: part for name, part in tensors.items() if name.endswith(".weight")}
    write_tensors(path / "model.safetensors", plain)
    with pytest.raises(FormatError, match="and none is: remove it to use the weights as they are"):
        HuggingFaceFolder(path)


def test_a_matrix_that_is_there_twice(folders, tmp_path):
    path = shutil.copytree(folders("awq"), tmp_path / "twice")
    tensors = read_tensors(path / "model.safetensors")
    tensors[f"{FIRST}.weight"] = np.zeros((256, 256), np.float32)
    write_tensors(path / "model.safetensors", tensors)
    with pytest.raises(FormatError, match=r"q_proj.weight' is there twice, once quantised"):
        HuggingFaceFolder(path)


def test_the_config_of_old_folders_is_a_file_of_its_own(folders, tmp_path):
    from cutaway.files.huggingface import parts

    for name, old in (("gptq", "quantize_config.json"), ("awq", "quant_config.json")):
        path = shutil.copytree(folders(name), tmp_path / name)
        said = json.loads((path / "config.json").read_text())["quantization_config"]
        del said["quant_method"]
        edit(path / "config.json", quantization_config=None)
        (path / old).write_text(json.dumps(said))
        with HuggingFaceFolder(path) as ours, HuggingFaceFolder(folders(name)) as theirs:
            for tensor in theirs.tensors:
                assert np.array_equal(ours.raw(tensor)[:], theirs.raw(tensor)[:])
        assert path / old in parts(path)


def test_a_quantised_folder_is_not_quantised_again(folders):
    from cutaway import LLM
    from cutaway.errors import InputError

    with pytest.raises(InputError, match=r"is quantised already \(INT4_G128\), and a second time"):
        LLM(folders("awq"), quantize="q8_0")


# -- whatever is changed ---------------------------------------------------------------------------


@few_or_many(40, 400, st.data())
def test_any_change_opens_or_is_refused(folders, tmp_path_factory, data):
    """A part of another shape, dtype or number, or none: no other error, and no other matrix."""
    path = folders(data.draw(st.sampled_from(sorted(METHODS))))
    tensors = read_tensors(path / "model.safetensors")
    name = data.draw(st.sampled_from([n for n in tensors if n.startswith(FIRST)]))
    tensor = tensors.pop(name)
    dtype, numbers = tensor if isinstance(tensor, Typed) else (None, tensor)
    how = data.draw(st.sampled_from(["gone", "shape", "dtype", "numbers"]))
    if how == "shape":
        shape = data.draw(st.lists(st.integers(0, 300), max_size=3))
        numbers = np.resize(numbers, shape).astype(numbers.dtype)
    elif how == "dtype":
        dtype, kind = data.draw(
            st.sampled_from([(None, k) for k in ("i4", "i1", "u1", "f4", "i8")])
        )
        numbers = numbers.astype(kind)
    elif how == "numbers":
        raw = bytearray(np.ascontiguousarray(numbers).tobytes())
        for _ in range(data.draw(st.integers(1, 5))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        numbers = np.frombuffer(bytes(raw), numbers.dtype).reshape(numbers.shape)
    if how != "gone":
        tensors[name] = numbers if dtype is None else Typed(dtype, numbers)
    changed = tmp_path_factory.mktemp("any")
    for file in path.iterdir():
        if file.suffix == ".json":
            shutil.copy(file, changed)
    metadata = read_metadata(path / "model.safetensors")
    write_tensors(changed / "model.safetensors", tensors, metadata)
    try:
        with HuggingFaceFolder(changed) as file:
            file.dequantize("blk.0.attn_q.weight")
    except CutawayError as error:
        assert "\n" not in str(error)
    shutil.rmtree(changed)
