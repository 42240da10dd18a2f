"""The gpu backend, through the loop: the same texts, figures and prefixes as the CPU's."""

import numpy as np
import pytest

from cutaway import LLM, InputError
from cutaway.compute.backends import Batch
from cutaway.compute.backends.gpu import adapters as devices
from cutaway.compute.backends.gpu import shaders
from cutaway.errors import CutawayError
from cutaway.features.evidence.receipt import Receipt
from cutaway.features.evidence.receipt_check import check_all
from cutaway.features.evidence.signing_keys import PrivateKey
from cutaway.rerun import replay
from cutaway.trace import Trace
from cutaway.trace.write import end_of
from support.adapters import adapter_of
from support.random_llama import write_tiny_llama


@pytest.fixture(scope="module")
def pair(device, tmp_path_factory):
    """The same model on the CPU and on the GPU."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUTAWAY_HOME", str(home))
        gpu = LLM("toy-writer", backend="gpu", threads=1, context=512)
    return LLM("toy-writer", threads=1, context=512), gpu


def test_texts_have_the_same_fingerprints_in_any_company(pair):
    cpu, gpu = pair
    options = {"max_tokens": 12, "seed": 5, "n": 3}
    for prompt in ("Once upon a time", "Once upon a time there was", "The sky " * 40):
        ours = [one.fingerprint for one in gpu.generate(prompt, **options)]
        assert ours == [one.fingerprint for one in cpu.generate(prompt, **options)]


def test_what_is_read_inside_is_the_same(pair):
    ids = list(range(5, 25))
    cpu, gpu = (llm.backend for llm in pair)
    table, rows = np.array([[0, 1]], np.int32), np.arange(20, dtype=np.int32)
    batch = Batch(np.array(ids, np.int32), rows, np.zeros(20, np.int32), table, rows[-2:])
    names = [op.out.name for op in cpu._graph.ops if op.out.name.startswith("layer")][:6]
    (logits, tensors), (others, same) = (one.tap(batch, names) for one in (cpu, gpu))
    assert logits.tobytes() == others.tobytes()
    assert [tensors[name].tobytes() for name in names] == [same[name].tobytes() for name in names]
    name = next(iter(cpu._graph.shapes))
    assert cpu.weight(name, 3, 9).tobytes() == gpu.weight(name, 3, 9).tobytes()


def test_a_prefix_of_one_is_read_by_the_other(pair, tmp_path):
    text = "Once upon a time there was a little girl who lived in a village near the forest. " * 6
    for i, (writer, reader) in enumerate((pair, pair[::-1])):
        path = tmp_path / f"{i}.prefix"
        writer.save_prefix(path, text)
        assert reader.restore_prefix(path).cached_tokens > 0
        told = [llm.generate(text, max_tokens=4, seed=1).fingerprint for llm in pair]
        assert told[0] == told[1]


def test_a_trace_of_a_gpu_is_replayed_by_a_cpu_and_the_other_way_round(pair, tmp_path):
    for i, (writer, checker) in enumerate((pair, pair[::-1])):
        path = tmp_path / f"{i}.jsonl"
        writer.generate("Once upon", max_tokens=6, seed=2, trace=path)
        trace = Trace.read(path)
        assert trace.head.backend == writer.backend.name
        assert replay(checker, trace).same


def test_a_receipt_of_a_gpu_is_checked_by_a_cpu(pair, tmp_path):
    cpu, gpu = pair
    with gpu.stream("Once upon", max_tokens=4, seed=2) as stream:
        stream.finish()
    key = PrivateKey.create(tmp_path / "key.pem")
    receipt = Receipt.sign_run(stream.head(), stream.steps, end_of(stream.ended), key)
    checked = check_all(cpu, receipt)
    assert checked.same
    assert checked.steps == 4


def test_batches_and_copies_that_name_nothing_are_refused(pair):
    backend = pair[1].backend
    zero = np.zeros(1, np.int32)

    def run(**changed):
        batch = Batch(zero, zero, zero, np.zeros((1, 1), np.int32), zero)
        return backend.run(batch._replace(**changed))

    for changed in (
        {"tokens": zero - 1}, {"tokens": zero + 10**6}, {"positions": zero + 40},
        {"sequences": zero + 1}, {"block_tables": np.full((1, 1), 10**6, np.int32)},
        {"limits": zero + 99}, {"logit_rows": zero + 1},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="batch: "):
            run(**changed)
    with pytest.raises(ValueError, match="names no KV block"):
        backend.copy_blocks([(0, 10**6)])
    with pytest.raises(ValueError, match="named twice"):
        backend.copy_blocks([(0, 1), (2, 1)])
    with pytest.raises(ValueError, match="names no KV block"):
        backend.read_block(-1)


def test_other_bits_are_refused_and_the_tensor_is_named(pair, device, monkeypatch, tmp_path):
    """What a driver may do: a kernel whose products are a bit off."""
    monkeypatch.setenv("CUTAWAY_HOME", str(tmp_path))
    text = shaders.text

    def wrong(*way):
        return text(*way).replace("var y = sum;", "var y = sum * 1.0000001;")

    monkeypatch.setattr("cutaway.compute.backends.gpu.shaders.text", wrong)
    monkeypatch.setattr(device, "_pipelines", {})
    monkeypatch.setattr(devices, "open_device", lambda *_: device)
    monkeypatch.setattr("cutaway.compute.backends.gpu.open_device", lambda *_: device)
    with pytest.raises(CutawayError, match=r"computes other bits than the CPU in .*\(linear\)"):
        LLM("toy-writer", backend="gpu", threads=1, context=512)


def test_kernels_that_an_adapter_brings_are_checked_while_a_text_goes_on(
    device, monkeypatch, tmp_path
):
    """The model has no matrix of floats, and the adapter's matrices are of floats."""
    monkeypatch.setenv("CUTAWAY_HOME", str(tmp_path))
    monkeypatch.setattr("cutaway.compute.backends.gpu.open_device", lambda *_: device)
    path = write_tiny_llama(tmp_path / "plain.gguf", format="Q8_0", head_dim=32)
    adapter = adapter_of(path, tmp_path / "adapter.gguf")
    prompt, options = list(range(5, 45)), {"max_tokens": 9, "seed": 3, "ignore_eos": True}
    with LLM(path, threads=1, progress=False) as cpu:
        expected = cpu.generate(prompt, **options).fingerprint
    llm = LLM(path, backend="gpu", threads=1, progress=False)
    stream, text = llm.stream(prompt, **options), shaders.text
    next(stream)
    with monkeypatch.context() as patch:
        patch.setattr(device, "_pipelines", {})
        patch.setattr(
            "cutaway.compute.backends.gpu.shaders.text",
            lambda kernel, *way: text(kernel, *way).replace("row, sum[r])", "row, 1.1 * sum[r])")
            if kernel.name == "linear_float" else text(kernel, *way),
        )  # fmt: skip
        with pytest.raises(CutawayError, match=r"computes other bits than the CPU in .*\(linear"):
            llm.load_adapter("poet", adapter)
    next(stream)
    llm.load_adapter("poet", adapter)
    assert stream.finish().fingerprint == expected


def test_what_the_gpu_has_not_is_refused(tmp_path):
    with pytest.raises(InputError, match="offload_folder"):
        LLM("toy-writer", backend="gpu", offload_folder=str(tmp_path))
