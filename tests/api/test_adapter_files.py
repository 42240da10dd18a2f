"""GGUF adapters that are damaged, of another model or of another kind: refused in one sentence."""

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cutaway.compute.loading.adapter import Adapter, AdapterFile, AdapterFiles
from cutaway.compute.loading.parts import Parts, open_as
from cutaway.errors import FormatError, InputError
from support.adapters import matrices, random_lora, write_lora
from support.damage import damage
from support.random_llama import write_tiny_llama

Q = "blk.0.attn_q.weight"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("adapters") / "tiny.gguf", tied=True)


@pytest.fixture(scope="module")
def opened(model):
    """Read an adapter for the model; what it would run with."""
    with open_as(model, None) as file:
        parts = Parts.read(file)

    def read(path):
        return Adapter.open(AdapterFiles.read("lora", path), parts.graph, parts.config)

    return read


@pytest.fixture(scope="module")
def tensors(model):
    return random_lora(matrices(model, ("attn_q", "ffn_up")))


def test_a_sound_one_has_a_hash_of_all_that_it_says(opened, tensors, tmp_path):
    path = write_lora(tmp_path / "one.gguf", tensors)
    sound = opened(path)
    assert opened(write_lora(tmp_path / "two.gguf", tensors, general__name="x")) != sound
    assert opened(tmp_path / "two.gguf").sha256 == sound.sha256
    others = [
        f"{path}:0.5",
        write_lora(tmp_path / "3.gguf", tensors, alpha=7),
        write_lora(tmp_path / "4.gguf", tensors | {f"{Q}.lora_a": -tensors[f"{Q}.lora_a"]}),
    ]
    assert len({opened(other).sha256 for other in others} | {sound.sha256}) == 4


def test_the_name_is_the_file_s(opened, tensors, tmp_path):
    path = write_lora(tmp_path / "poet:7.gguf", tensors)
    assert opened(path).name == "poet:7"  # a file of this name is there
    assert AdapterFiles.read("lora", f"{path}:2e-1") == AdapterFiles((AdapterFile(path, 0.2),))


def without(*names):
    return lambda tensors: {k: v for k, v in tensors.items() if k not in names}


def renamed(old, new):
    return lambda tensors: {k.replace(old, new): v for k, v in tensors.items()}


def shaped(name, *shape):
    return lambda tensors: tensors | {name: np.ones(shape, np.float32)}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (without(f"{Q}.lora_a"), f"lacks the tensor '{Q}.lora_a'"),
        (without(f"{Q}.lora_b"), f"lacks the tensor '{Q}.lora_b'"),
        (lambda _: {}, "has no tensors"),
        (renamed("blk.0.", "blk.7."), "which the model does not have"),
        (renamed("blk.0.attn_q.", "blk.0.attn_norm."), "only matrices of linear layers"),
        (renamed("blk.0.attn_q.", "token_embd."), "only matrices of linear layers"),
        (renamed("lora_a", "lora_mag"), "is none of an adapter's"),
        (renamed(".lora_a", "\nlora_a"), "is none of an adapter's"),  # quoted, on one line
        (shaped(f"{Q}.lora_a", 3, 31), "made for another model"),
        (shaped(f"{Q}.lora_a", 4, 32), "made for another model"),
        (shaped(f"{Q}.lora_b", 49, 3), "made for another model"),
        (shaped(f"{Q}.lora_b", 3), "made for another model"),
        (shaped(f"{Q}.lora_a", 2, 3, 32), "made for another model"),
    ],
)
def test_tensors_that_do_not_fit(opened, tensors, tmp_path, change, sentence):
    path = write_lora(tmp_path / "bad.gguf", change(tensors))
    with pytest.raises(FormatError, match=sentence) as told:
        opened(path)
    assert str(path) in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"general__type": "model"}, "general.type is 'model'"),
        ({"adapter__type": "control_vector"}, "adapter.type is 'control_vector'"),
        ({"architecture": "qwen2"}, "of the architecture 'qwen2', and the model's is llama"),
        ({"adapter__alora__invocation_tokens": "x"}, "adapter.alora.invocation_tokens: "),
        ({"alpha": -1.0}, "adapter.lora.alpha is -1.0"),
        ({"alpha": float("nan")}, "adapter.lora.alpha is nan"),
        ({"alpha": float("inf")}, "adapter.lora.alpha is inf"),
        ({"alpha": None, "adapter__lora__alpha": "8"}, "adapter.lora.alpha is '8'"),
    ],
)
def test_metadata_that_is_of_no_lora_of_this_model(opened, tensors, tmp_path, how, sentence):
    with pytest.raises(FormatError, match=sentence):
        opened(write_lora(tmp_path / "bad.gguf", tensors, **how))


def test_a_model_is_no_adapter(opened, model):
    with pytest.raises(FormatError, match=r"general\.type is None, and a LoRA.s is .adapter."):
        opened(model)


def test_quantised_matrices_are_refused(opened, tensors, tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "q8.gguf", "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    raw = gguf.quants.quantize(tensors[f"{Q}.lora_a"], gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor(f"{Q}.lora_a", raw, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor(f"{Q}.lora_b", tensors[f"{Q}.lora_b"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(FormatError, match="stored as Q8_0, and an adapter's must be F32, F16"):
        opened(tmp_path / "q8.gguf")


@pytest.mark.parametrize("scale", ["nan", "inf", "1e9", "x"])
def test_a_scale_that_is_none(opened, tensors, tmp_path, scale):
    path = write_lora(tmp_path / "one.gguf", tensors)
    with pytest.raises(InputError, match="lora: "):
        opened(f"{path}:{scale}")


def test_it_may_end_anywhere(opened, tensors, tmp_path):
    path = write_lora(tmp_path / "one.gguf", tensors)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 32, 97):  # the last bytes are padding
        path.write_bytes(whole[:length])
        with pytest.raises(InputError):
            opened(path)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_it_opens_or_is_refused(opened, tensors, tmp_path, data):
    path = write_lora(tmp_path / "one.gguf", tensors)
    path.write_bytes(damage(data.draw, path.read_bytes(), st.binary(min_size=1, max_size=8)))
    try:
        opened(path)
    except InputError as error:
        assert "\n" not in str(error)
