"""A file that is cut or written over while it is read is an error, and ends no process."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from cutaway import FormatError
from cutaway.base import _native
from cutaway.compute.backends import Batch
from cutaway.compute.backends.cpu import new_plan
from cutaway.compute.calls import AddBuffer, EmbedRows, EmbedStoredCall, SetOutput, plain
from cutaway.files import hub
from cutaway.files.weights import GGUFFile
from cutaway.files.weights.safetensors import SafetensorsFile
from support.random_llama import write_tiny_llama
from support.safetensors_bytes import entry, safetensors

CHANGED = "changed or was cut while it was read; copy it again"


@pytest.fixture(params=["gguf", "safetensors"])
def opened(request, tmp_path):
    """A file and a tensor that has all its bytes but the header's."""
    if request.param == "gguf":
        file = GGUFFile(write_tiny_llama(tmp_path / "t.gguf"))
        yield file, max(file.tensors, key=lambda name: file.tensors[name].offset)
    else:
        path = tmp_path / "t.safetensors"
        header = {"a": entry(shape=(4096,), offsets=(0, 1 << 14))}
        path.write_bytes(safetensors(header, bytes(1 << 14)))
        file = SafetensorsFile(path)
        yield file, "a"
    file.close()


def written_over(path):
    with path.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(bytes(8))
    os.utime(path, ns=(1, 1))  # a file system's clock may stand still for some milliseconds


@pytest.mark.parametrize("change", [lambda path: os.truncate(path, 100), written_over])
def test_one_that_is_cut_or_written_over_is_refused_by_name(opened, change):
    file, name = opened
    raw = file.raw(name)
    assert raw[:].nbytes == raw.nbytes
    change(file.path)
    for read in (lambda: raw[:], lambda: raw[:4], lambda: file.raw(name)[:]):
        with pytest.raises(FormatError, match=CHANGED) as refused:
            read()
        assert str(refused.value).startswith(f"{file.path}: the file ")


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps the name of a file that is open")
@pytest.mark.parametrize("replaced", [True, False])
def test_one_that_is_replaced_or_deleted_is_read_to_its_end(opened, tmp_path, replaced):
    file, name = opened
    before = file.raw(name)[:]
    if replaced:
        (tmp_path / "other").write_bytes(b"another model")
        (tmp_path / "other").replace(file.path)
    else:
        file.path.unlink()
    assert np.array_equal(file.raw(name)[:], before)


def test_a_name_that_is_no_utf_8_is_written_out(tmp_path):
    path = write_tiny_llama(tmp_path / os.fsdecode(b"\xff.gguf"))
    file = GGUFFile(path)
    os.truncate(path, 100)
    with pytest.raises(FormatError, match=r"\\udcff\.gguf: the file changed"):
        file.raw("token_embd.weight")[:]


@pytest.mark.parametrize("rows", [1, 5])
def test_a_matrix_that_stays_in_the_file_is_refused_in_the_middle_of_a_run(tmp_path, rows):
    numbers = np.arange(40 * 8, dtype=np.float32).reshape(40, 8)
    path = tmp_path / "table"
    path.write_bytes(bytes(64) + numbers.tobytes())
    with path.open("rb") as file:
        table = _native.FileBytes(file.fileno(), str(path)).part(64, 64 + numbers.nbytes)
    pool = _native.Pool(2)
    plan = new_plan(pool, 1, 32, "f16")
    embedding = _native.Arena(1 << 16).pack(pool, "F32", table[:], 40, 8)
    buffers, looked_up = [AddBuffer(8, False)] * 2, EmbedRows(0, (0, 0), "token")
    every = [*buffers, looked_up, EmbedStoredCall(0, 8, (1, 0)), SetOutput((1, 0))]
    plan.add(plain(every), [embedding], [_native.StoredTable("F32", table)])
    ids = np.arange(rows, dtype=np.int32)
    batch = Batch(ids * 7, ids, 0 * ids, np.zeros((1, 1), np.int32), ids)
    assert np.array_equal(plan.run(batch), numbers[ids * 7])
    os.truncate(path, 100)
    for _ in range(2):
        with pytest.raises(FormatError, match=CHANGED):
            plan.run(batch)


CUT_WHILE_IT_LOADS = """
import os, random, shutil, sys, threading, time
from cutaway import LLM, FormatError
from cutaway.compute.loading.model import LoadedModel

def outcome(load):
    try:
        return bool(load())
    except FormatError as error:
        return "copy.gguf" in str(error)

source, copy = sys.argv[1:]
shutil.copy(source, copy)
started = time.perf_counter()
LLM(copy, progress=False).close()
whole, parts = time.perf_counter() - started, []
LoadedModel.open(copy, progress=False, weights=False).load(parts.append)
for i in range(len(parts)):  # after each of the parts
    shutil.copy(source, copy)
    model, heard = LoadedModel.open(copy, progress=False, weights=False), []
    def cut(done):
        heard.append(done)
        if len(heard) == i + 1:
            os.truncate(copy, 1000)
    assert outcome(lambda: model.load(cut) is None), i
random.seed(int(os.environ["SEED"]))
for _ in range(60):  # at any moment
    shutil.copy(source, copy)
    when, size = random.uniform(0, whole), random.choice([0, 1000])
    cutting = threading.Timer(when, os.truncate, (copy, size))
    cutting.start()
    assert outcome(lambda: LLM(copy, progress=False).generate("a", max_tokens=2) is not None)
    cutting.join()
"""


@pytest.mark.skipif(not hasattr(signal, "SIGBUS"), reason="no file can be cut while it is mapped")
def test_a_model_that_is_cut_at_any_moment_of_its_load_ends_no_process(tmp_path):
    source = hub.resolve("toy-writer", progress=False)
    command = [sys.executable, "-c", CUT_WHILE_IT_LOADS, source, tmp_path / "copy.gguf"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "SEED": "5"},
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr)
