"""What a GPU cannot do is one sentence: no device, too little memory, a device that is lost."""

import re
import sys

import numpy as np
import pytest

from cutaway import LLM, InputError
from cutaway.cli.main import main
from cutaway.compute import backends
from cutaway.compute.backends.gpu import adapters as devices
from cutaway.compute.backends.gpu import shaders
from cutaway.compute.backends.gpu.adapters import open_device
from cutaway.compute.backends.gpu.device import WORKGROUP_BYTES, Device
from cutaway.compute.backends.gpu.memory import Sparse
from cutaway.compute.backends.gpu.shaders import Kernel
from cutaway.errors import CutawayError, DeviceLostError, OutOfMemoryError

wgpu = pytest.importorskip("wgpu", reason="needs wgpu: pip install '.[gpu]'")
GENERATE = ["generate", "Once", "-m", "toy-writer", "--backend", "gpu", "--max-tokens", "2"]


class Adapter:
    """An adapter with other limits, or whose driver does not open a device."""

    def __init__(self, adapter, opens=True, **limits):
        self._adapter, self._opens = adapter, opens
        self.limits = adapter.limits | {k.replace("_", "-"): v for k, v in limits.items()}

    def __getattr__(self, name):
        return getattr(self._adapter, name)

    def request_device_sync(self, **options):
        if not self._opens:
            raise RuntimeError("Request device failed (3): it is in use")
        return self._adapter.request_device_sync(**options)


@pytest.fixture
def opened(device, monkeypatch):
    """The usual device, which models take without another probe."""
    monkeypatch.setattr("cutaway.compute.backends.gpu.open_device", lambda *_: device)
    return device


@pytest.fixture
def own(device):
    """A device of this test's, which it may spoil."""
    own = Device(device.adapter)
    own.fused = device.fused
    return own


def refusal(capsys, *more):
    """Return the exit code and the sentence of ``cutaway generate --backend gpu``."""
    code = main([*GENERATE, *more])
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1, err
    return code, err.removeprefix("cutaway: error: ").rstrip()


# -- no device -------------------------------------------------------------------------------------


def test_without_native_code(monkeypatch, capsys):
    monkeypatch.setattr(backends, "default", lambda: "reference")
    code, sentence = refusal(capsys)
    assert code == 2
    assert sentence == (
        "--backend: gpu needs cutaway's native part, which was not built here; leave it out"
    )


def test_without_wgpu(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wgpu", None)
    code, sentence = refusal(capsys)
    assert code == 2
    assert sentence == "--backend: gpu needs wgpu: pip install 'cutaway[gpu]', or leave it out"


def test_without_an_adapter(monkeypatch, capsys):
    monkeypatch.setattr(devices, "adapters", lambda: [])
    code, sentence = refusal(capsys)
    assert code == 1
    assert sentence.startswith("this machine has no GPU that can be used through WebGPU: install")


def test_an_adapter_with_low_limits_or_that_does_not_open(device, monkeypatch):
    low = Adapter(device.adapter, max_compute_workgroup_storage_size=8192)
    busy = Adapter(device.adapter, opens=False)
    monkeypatch.setattr(devices, "adapters", lambda: [low, busy])
    name = device.adapter.info["device"]
    with pytest.raises(CutawayError) as caught:
        open_device()
    assert f"; {name} has max-compute-workgroup-storage-size 8192" in str(caught.value)
    assert f"; {name} cannot be opened (Request device failed (3): it is in use)" in str(
        caught.value
    )


def test_a_way_to_multiply_and_add_that_there_is_not():
    with pytest.raises(InputError, match="CUTAWAY_GPU_FMA must be one of native, f64, int, not"):
        open_device("fast")


# -- memory ----------------------------------------------------------------------------------------


def test_keys_and_values_larger_than_a_buffer(opened, capsys):
    code, sentence = refusal(capsys, "--kv-tokens", "1000000")
    assert code == 2
    assert sentence.startswith("toy-writer.Q8_0.gguf does not fit into memory: the GPU ")
    assert "31250 records would take 640000000: allow fewer tokens (kv_tokens" in sentence


def test_a_row_of_weights_larger_than_a_buffer(opened, monkeypatch):
    monkeypatch.setattr(opened, "binding", 1024)
    with pytest.raises(InputError, match=r"no buffers of \d+ bytes, only of 1024: lower kv_tokens"):
        LLM("toy-writer", backend="gpu", threads=1)


def test_a_gpu_that_shares_the_processor_s_memory(opened, monkeypatch):
    from cutaway.base.resources import Memory

    free = Memory(1_000_000, "this machine")
    monkeypatch.setattr("cutaway.compute.backends.gpu.device.free_memory", lambda: free)
    if opened.adapter.info["adapter_type"] not in ("CPU", "IntegratedGPU"):
        pytest.skip("this GPU has memory of its own")
    with pytest.raises(InputError, match=r"of which 1 MB are free, and the weights take 2 MB: end"):
        LLM("toy-writer", backend="gpu", threads=1)


def run_out(monkeypatch, device, most):
    """Let a device have no buffer of more bytes."""
    create = device.device.create_buffer

    def create_buffer(*, size, usage, **more):
        if size > most:
            raise wgpu.GPUOutOfMemoryError("Not enough memory left.")
        return create(size=size, usage=usage, **more)

    monkeypatch.setattr(device.device, "create_buffer", create_buffer)


def test_memory_runs_out_at_load(opened, monkeypatch):
    run_out(monkeypatch, opened, 1 << 19)
    with pytest.raises(InputError, match="has not enough memory left: lower kv_tokens or context"):
        LLM("toy-writer", backend="gpu", threads=1)


def test_memory_runs_out_at_a_step_and_the_text_continues(opened, tiny_path, monkeypatch):
    """What the step had begun to enlarge is as before."""
    monkeypatch.setattr(
        "cutaway.compute.backends.gpu.check.check_kernels", lambda *_: None
    )  # has room
    with LLM(tiny_path, threads=1, progress=False) as cpu:
        expected = cpu.generate("ab" * 100, seed=1, max_tokens=3, ignore_eos=True).fingerprint
    with LLM(tiny_path, backend="gpu", threads=1, progress=False) as llm:
        llm.generate("ab", max_tokens=2)
        for most in (1 << 10, 1 << 13, 1 << 15):
            with pytest.MonkeyPatch.context() as patch:
                run_out(patch, opened, most)
                with pytest.raises(OutOfMemoryError):
                    llm.generate("ab" * 100, seed=1, max_tokens=3, ignore_eos=True)
        again = llm.generate("ab" * 100, seed=1, max_tokens=3, ignore_eos=True)
        assert again.fingerprint == expected


def test_records_have_no_place_that_there_was_no_memory_for(device, monkeypatch):
    sparse = Sparse(device, [256], 64)
    for number in range(8):
        sparse.take(number)
    with pytest.MonkeyPatch.context() as patch:
        run_out(patch, device, 256)
        with pytest.raises(OutOfMemoryError):
            sparse.take(8)
    assert sparse.places[8] == -1
    assert sparse.take(8)
    sparse.records.write(8, np.arange(256, dtype=np.uint8))
    assert sparse.records.read(int(sparse.places[8]))[255] == 255


# -- a lost device ---------------------------------------------------------------------------------


def test_a_device_is_lost_in_the_middle_of_a_text(own, monkeypatch, tiny_path):
    monkeypatch.setattr("cutaway.compute.backends.gpu.open_device", lambda *_: own)
    llm = LLM(tiny_path, backend="gpu", threads=1, progress=False)
    with llm.stream("ab", max_tokens=20, ignore_eos=True) as steps:
        next(steps)
        own.device.destroy()
        with pytest.raises(DeviceLostError, match="was lost, as by a reset of its driver: load"):
            next(steps)
    with pytest.raises(DeviceLostError):
        llm.generate("ab")
    for call in (
        lambda: own.storage(64), lambda: own.read(llm.backend._runner.floats, 0, 64),
        lambda: llm.backend.read_block(0), lambda: llm.backend.copy_blocks([(0, 1)]),
        lambda: llm.backend.head(np.zeros((1, 64), np.float32)),
    ):  # fmt: skip
        with pytest.raises(DeviceLostError):
            call()


def test_an_invalid_call_is_a_bug_and_its_error_is_not_hidden(device):
    with pytest.raises(wgpu.GPUValidationError):
        device.copy([(device.storage(64), 0, device.storage(64), 0, 4096)])
    assert not device.is_lost()


SIZES = {"f32": 4, "u32": 4, "vec2<f32>": 8, "Double": 8}


def test_kernels_of_512_experts_fit_into_the_memory_of_a_workgroup():
    """The most of any model of today; browsers refuse a kernel with more, and wgpu does not."""
    for name in ("route", "sort"):
        constants = {"COUNT": 512, "GROUPS": 8}
        text = shaders.text(Kernel(name, tuple((k, f"{n}u") for k, n in constants.items())), "f64")
        nbytes = 0
        for kind, count in re.findall(
            r"var<workgroup> \w+: (?:array<)?([\w<>]+?)(?:, (\w+)>)?;", text
        ):
            number = count.removesuffix("u")
            nbytes += SIZES[kind] * (constants.get(number) or int(number or 1))
        assert 2048 <= nbytes <= WORKGROUP_BYTES, name
