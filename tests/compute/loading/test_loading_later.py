"""A model that is opened without its weights can have them later, lose them and have them again."""

import gc
import weakref

import pytest

from cutaway import LLM, FormatError, InputError
from cutaway.compute import backends
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from support.random_llama import write_tiny_llama

SAMPLED = {"max_tokens": 12, "seed": 5, "temperature": 1.0, "ignore_eos": True}


@pytest.fixture
def path(tmp_path):
    return write_tiny_llama(tmp_path / "t.gguf")


def written(model):
    done = LLM(model, progress=False).generate("Once", **SAMPLED)
    model.release()
    return done.token_ids, done.fingerprint


def test_the_bits_are_the_same_each_time(path):
    with LLM(path, progress=False) as llm:
        done = llm.generate("Once", **SAMPLED)
    later = LoadedModel.open(path, progress=False, weights=False)
    for _ in range(2):
        assert not later.is_loaded
        later.load()
        assert later.is_loaded
        assert later.computer == (later.backend.name, later.backend.tier, later.backend.threads)
        assert written(later) == (done.token_ids, done.fingerprint)
        computer = later.computer
        later.close()
        assert later.computer == computer
    with pytest.raises(InputError, match="opened without its weights"):
        _ = later.backend


def test_nothing_is_left_of_it_in_memory(path):
    later = LoadedModel.open(path, progress=False, weights=False)
    later.load()
    backend = weakref.ref(later.backend)
    written(later)
    later.close()
    gc.collect()
    assert backend() is None


class Enough(Exception):
    pass


def test_a_load_can_be_ended_by_whoever_hears_how_far_it_is(path):
    later = LoadedModel.open(path, progress=False, weights=False)

    def heard(done):
        assert 0 < done <= later.parts.nbytes
        raise Enough

    with pytest.raises(Enough):
        later.load(heard)
    assert not later.is_loaded
    later.load()
    assert later.is_loaded


@pytest.mark.parametrize("broken", [lambda path: path.unlink(), write_tiny_llama])
def test_the_file_must_be_the_one_that_was_opened(path, broken):
    later = LoadedModel.open(path, progress=False, weights=False)
    broken(path)
    with pytest.raises(InputError, match=r"cannot be read: No such file|has changed since"):
        later.load()


def test_a_file_that_is_cut_is_told(path, monkeypatch):
    later = LoadedModel.open(path, progress=False, weights=False)
    path.write_bytes(path.read_bytes()[:-100])
    monkeypatch.setattr(
        "cutaway.compute.loading.model.stamp", lambda _: 0
    )  # as if it had been so before
    with pytest.raises(FormatError):
        later.load()


@pytest.mark.parametrize("backend", backends.BACKENDS)
def test_its_memory_is_that_of_weights_keys_and_values(path, backend):
    setup = Setup(context=64, kv_tokens=100, backend=backend)
    opened = LoadedModel.open(path, setup, progress=False, weights=False)
    assert opened.memory == opened._weight_bytes + opened.kv.bytes_per_token * 128
    if backend == "reference":
        assert opened._weight_bytes == 4 * opened.parts.parameters
    else:
        assert 0.9 < opened._weight_bytes / opened.parts.nbytes < 1.2
    on_disk = Setup(context=64, kv_tokens=100, backend=backend, offload_folder=path.parent)
    assert LoadedModel.open(path, on_disk, weights=False).memory == opened.kv.bytes_stored(128)
