"""A model with an adapter: what it computes, a look into it, and files that are refused."""

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway import LLM
from cutaway.compute.loading.adapter import Adapter, AdapterFile, AdapterFiles
from cutaway.compute.loading.parts import Parts, open_as
from cutaway.errors import FormatError, InputError
from cutaway.features.inside.look import inside
from cutaway.trace import Trace
from support.adapters import LAYER, adapter_of, matrices, random_lora, write_lora, write_merged
from support.damage import damage
from support.random_llama import write_tiny_llama

SHAPE = {"heads": 6, "kv_heads": 2, "head_dim": 16, "hidden": 64, "feed_forward": 96}
NEAR = {"reference": 2e-5, "cpu": 1e-2}  # which keeps keys and values as halves
IDS = [1, 5, 200, 90, 17, 3, 44, 261, 8, 8, 100]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def model(folder):
    return write_tiny_llama(folder / "tiny.gguf", **SHAPE, layers=3, context=256)


def logits(path, backend, ids=IDS, **how):
    with LLM(path, backend=backend, threads=2 if backend == "cpu" else None, **how) as llm:
        return llm.logits(ids)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("names", [LAYER, ("attn_q",), ("ffn_up", "attn_output"), ("output",)])
def test_logits_are_those_of_merged_weights(folder, model, backend, names):
    tensors = random_lora(matrices(model, names), rank=3)
    lora = write_lora(folder / "adapter.gguf", tensors, alpha=6.0)  # alpha / rank is 2
    expected = logits(write_merged(model, folder / "merged.gguf", tensors, 2.0), "reference")
    found = logits(model, backend, lora=lora)
    assert abs(found - expected).max() < NEAR[backend] * abs(expected).max()
    assert abs(logits(model, backend) - expected).max() > 0.1


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_the_scale_multiplies_and_no_alpha_is_no_factor(folder, model, backend):
    tensors = random_lora(matrices(model, ("attn_v", "ffn_down")))
    lora = write_lora(folder / "plain.gguf", tensors, alpha=None)
    for scale in (1.0, -0.5, 0.0):
        expected = logits(write_merged(model, folder / "scaled.gguf", tensors, scale), "reference")
        found = logits(model, backend, lora=f"{lora}:{scale}")
        assert abs(found - expected).max() < NEAR[backend] * abs(expected).max()


@pytest.mark.parametrize("format", ["Q8_0", "Q4_1", "F16"])
def test_quantised_weights_stay_what_they_are(folder, format):
    """The adapter is added in floats to what the model's own matrices give."""
    model = write_tiny_llama(folder / f"{format}.gguf", **SHAPE, layers=2, format=format)
    lora = adapter_of(model, folder / f"{format}.lora.gguf", dtype=np.float16)
    plain, found = logits(model, "cpu"), logits(model, "cpu", lora=lora)
    reference = logits(model, "reference", lora=lora)
    assert abs(found - reference).mean() < 0.1 * abs(reference).mean()
    assert abs(found - plain).max() > 0.1
    # With nothing added every bit is the model's own.
    assert np.array_equal(logits(model, "cpu", lora=f"{lora}:0"), plain)


@pytest.mark.parametrize("tied", [False, True])
def test_rows_have_the_bits_of_rows_alone(folder, tied):
    """Whatever the batch: the rows of one text, together and one by one."""
    path = write_tiny_llama(folder / "many.gguf", **SHAPE, layers=2, format="Q8_0", tied=tied)
    lora = adapter_of(path, folder / "many.lora.gguf", rank=5)
    ids = [int(i) for i in np.random.default_rng(1).integers(3, 264, 100)]
    with LLM(path, lora=lora, threads=2, prefix_cache=False) as llm:
        whole = llm.logits(ids)
        for n in (1, 2, 31, 64, 99):
            assert np.array_equal(llm.logits(ids[:n])[-1], whole[n - 1])
    with LLM(path, lora=lora, threads=1) as llm:
        assert np.array_equal(llm.logits(ids), whole)


def test_weights_may_be_on_a_disk(folder, model):
    lora = adapter_of(model, folder / "disk.gguf")
    with LLM(model, lora=lora) as here, LLM(model, lora=lora, offload_folder=folder) as there:
        assert np.array_equal(here.logits(IDS), there.logits(IDS))


def test_no_instruction_set_changes_a_bit(folder, each_tier):
    path = write_tiny_llama(folder / "isa.gguf", **SHAPE, layers=2, format="Q8_0")
    loras = [adapter_of(path, folder / f"{d.__name__}.gguf", dtype=d, rank=5)
             for d in (np.float16, np.float32)]  # fmt: skip
    first = [logits(path, "cpu", lora=lora) for lora in loras]
    for tier in each_tier:
        for lora, expected in zip(loras, first, strict=True):
            assert np.array_equal(logits(path, "cpu", lora=lora), expected), tier


# -- several on one text -----------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_several_are_added_in_their_order(folder, model, backend):
    """Each with its own factor and rank, on matrices that both change and that only one does."""
    first = random_lora(matrices(model, ("attn_q", "ffn_up", "output")), rank=3, seed=1)
    second = random_lora(matrices(model, ("attn_q", "ffn_down", "output")), rank=5, seed=2)
    files = [
        write_lora(folder / f"{i}.gguf", one, alpha=None) for i, one in enumerate((first, second))
    ]
    once = write_merged(model, folder / "once.gguf", first, 0.5)
    expected = logits(write_merged(once, folder / "twice.gguf", second, -1.5), "reference")
    together = f"{files[0]}:0.5,{files[1]}:-1.5"
    found = logits(model, backend, lora=together)
    assert abs(found - expected).max() < NEAR[backend] * abs(expected).max()
    # What adds nothing leaves every bit as it was, in each place.
    for nothing in (f"{files[0]}:0.5,{files[1]}:0", f"{files[1]}:0,{files[0]}:0.5"):
        assert np.array_equal(logits(model, backend, lora=nothing), logits(
            model, backend, lora=f"{files[0]}:0.5"
        ))  # fmt: skip
    if backend == "cpu":  # rows alone have the bits of rows together
        assert np.array_equal(logits(model, backend, lora=together, ids=IDS[:3])[-1], found[2])


def test_several_are_one_adapter_with_a_name_and_a_hash(folder, model):
    one, two = (adapter_of(model, folder / f"{name}.gguf", seed=i) for i, name in enumerate("pq"))
    both, turned = f"{one},{two}:0.5", f"{two}:0.5,{one}"
    with (
        LLM(model, adapters={"both": both, "one": one, "turned": turned}, threads=2) as llm,
        LLM(model, lora=both, threads=2) as alone,
    ):
        assert (alone.name, llm.with_adapter("both").name) == ("tiny+p+q", "tiny+both")
        assert llm.with_adapter("both").model.identity == alone.model.identity
        assert (
            len({llm.with_adapter(n).model.identity.weights for n in ("both", "one", "turned")})
            == 3
        )
        assert np.array_equal(llm.logits(IDS, adapter="both"), alone.logits(IDS))
        prompt = IDS * 4
        for name in ("both", "one", "turned"):
            llm.generate(prompt, adapter=name, max_tokens=1, temperature=0)
            done = llm.generate(prompt, adapter=name, max_tokens=1, temperature=0)
            assert done.usage.cached_tokens == 32
        look = inside(alone, traced(alone, folder), 2).logit_attribution()
        whole = sum(look.parts.values()) + look.bias + look.rounding
        assert whole == pytest.approx(look.total, abs=1e-4)


def traced(llm, folder):
    path = folder / "run.jsonl"
    llm.generate(IDS, max_tokens=3, seed=1, trace=path)
    return Trace.read(path)


def test_a_comma_may_be_a_file_s_own(folder, model):
    odd = adapter_of(model, folder / "a,b.gguf", seed=1)
    plain = adapter_of(model, folder / "c.gguf", seed=1)
    for scale in ("", ":0.5"):
        assert np.array_equal(
            logits(model, "cpu", lora=f"{odd}{scale}"), logits(model, "cpu", lora=f"{plain}{scale}")
        )


@pytest.mark.parametrize("lora", ["{},", ",{}", "{},nowhere", "{}:x,{}", ",".join(["{}"] * 17)])
def test_a_list_that_is_none(folder, model, lora):
    path = adapter_of(model, folder / "c.gguf", seed=1)
    with pytest.raises(InputError, match=r"^lora"):
        LLM(model, lora=lora.replace("{}", str(path)))


# -- a look into it ----------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("format", ["F32", "Q8_0"])
def test_pushes_add_up(tmp_path, backend, format):
    model = write_tiny_llama(tmp_path / "tiny.gguf", head_dim=16, hidden=64, format=format)
    lora = adapter_of(model, tmp_path / "poet.gguf", names=(*LAYER, "output"))
    with LLM(model, lora=lora, backend=backend) as llm:
        assert llm.name == "tiny+poet"
        llm.generate([1, 20, 7, 99], max_tokens=4, seed=1, trace=tmp_path / "run.jsonl")
        look = inside(llm, Trace.read(tmp_path / "run.jsonl"), 3)
        assert look.is_as_run or backend == "reference"
        found = look.logit_attribution()
    whole = sum(found.parts.values()) + found.bias + found.rounding
    assert whole == pytest.approx(found.total, abs=1e-4)
    assert (found.rounding != 0) == (format == "Q8_0" and backend == "cpu")


# -- GGUF adapters that are damaged, of another model or of another kind -----------------------


Q = "blk.0.attn_q.weight"


@pytest.fixture(scope="module")
def plain_path(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("adapters") / "tiny.gguf", tied=True)


@pytest.fixture(scope="module")
def opened(plain_path):
    """Read an adapter for the model; what it would run with."""
    with open_as(plain_path, None) as file:
        parts = Parts.read(file)

    def read(path):
        return Adapter.open(AdapterFiles.read("lora", path), parts.graph, parts.config)

    return read


@pytest.fixture(scope="module")
def tensors(plain_path):
    return random_lora(matrices(plain_path, ("attn_q", "ffn_up")))


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


def test_a_model_is_no_adapter(opened, plain_path):
    with pytest.raises(FormatError, match=r"general\.type is None, and a LoRA.s is .adapter."):
        opened(plain_path)


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


@settings(max_examples=150)
@given(data=st.data())
def test_damaged_it_opens_or_is_refused(opened, tensors, tmp_path, data):
    path = write_lora(tmp_path / "one.gguf", tensors)
    path.write_bytes(damage(data.draw, path.read_bytes(), st.binary(min_size=1, max_size=8)))
    try:
        opened(path)
    except InputError as error:
        assert "\n" not in str(error)
