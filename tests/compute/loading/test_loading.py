"""Loading: later and again, shown, or ended in a sentence by shapes that do not fit."""

import gc
import os
import shutil
import subprocess
import sys
import weakref
from hashlib import sha256
from pathlib import Path
from time import time_ns

import numpy as np
import pytest

from cutaway import LLM, FormatError, InputError
from cutaway.base.progress import Bar
from cutaway.compute import backends
from cutaway.compute.loading import identity, parts, weights
from cutaway.compute.loading.identity import identify
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.open import stat_model
from cutaway.compute.loading.parts import start
from cutaway.compute.loading.setup import Setup
from cutaway.compute.model.ops import convolutions
from support.random_lfm2 import write_tiny_lfm2
from support.random_llama import write_tiny_llama

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

from cutaway.base.resources import _groups, file_system
from cutaway.files import hub

SAMPLED = {"max_tokens": 12, "seed": 5, "temperature": 1.0, "ignore_eos": True}


@pytest.fixture
def path(tmp_path):
    return write_tiny_llama(tmp_path / "tiny.gguf")


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


# -- a load that takes long says how far it is; the tokenizer is read meanwhile --------------------


def shown(path, capsys, monkeypatch, *, progress, terminal):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
    LoadedModel(path, Setup(context=64), progress=progress).close()
    return capsys.readouterr().err


def test_a_load_over_a_second_is_shown_to_the_end(path, capsys, monkeypatch):
    monkeypatch.setattr(weights, "_SOON_S", 0)
    said = shown(path, capsys, monkeypatch, progress=True, terminal=True)
    assert "loading tiny" in said
    assert "100% of" in said


@pytest.mark.parametrize(
    ("soon", "progress", "terminal"), [(60, True, True), (0, False, True), (0, True, False)]
)
def test_nothing_is_shown_where_it_is_quick_or_nobody_looks(
    path, capsys, monkeypatch, soon, progress, terminal
):
    monkeypatch.setattr(weights, "_SOON_S", soon)
    assert shown(path, capsys, monkeypatch, progress=progress, terminal=terminal) == ""


def test_what_is_done_meanwhile_returns_and_raises():
    def fail():
        raise InputError("no")

    assert start(lambda: 7)() == 7
    with pytest.raises(InputError, match="no"):
        start(fail)()


# -- shapes that do not fit one another, whichever backend computes --------------------------------


def greedy(path, backend="cpu"):
    with LLM(path, backend=backend, progress=False) as llm:
        return llm.generate("ab", max_tokens=2, temperature=0).token_ids


def of_experts(path, **keys):
    """Four of a layer, and what the file says of their choice."""
    metadata = {f"llama.expert_{name}": value for name, value in keys.items()}
    return write_tiny_llama(path, experts=4, metadata=metadata)


def with_another(path, tensor, shape, **more):
    other = {f"{tensor}.weight": np.ones(shape, np.float32)}
    return write_tiny_llama(path, skip_tensor=tensor, vectors=other, **more)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (
            lambda p: with_another(p, "blk.0.ffn_gate", (64, 32)),
            r"blk.0.ffn_gate \(64\) is no gate of blk.0.ffn_up \(96\)",
        ),
        (
            lambda p: with_another(p, "blk.0.ffn_gate_exps", (4, 64, 32), experts=4),
            r"ffn_gate_exps.weight has shape \(4, 64, 32\), not \(4, 96, 32\)",
        ),
        (
            lambda p: with_another(p, "blk.0.ffn_gate_exps", (3, 96, 32), experts=4),
            r"ffn_gate_exps.weight has shape \(3, 96, 32\), not \(4, 96, 32\)",
        ),
        (
            lambda p: with_another(p, "blk.0.ffn_gate_inp", (3, 32), experts=4),
            "blk.0.: 4 experts, and scores for 3",
        ),
        (
            lambda p: of_experts(p, count=8, used_count=6),
            "blk.0.: 6 of 4 experts cannot be chosen from 1 of 1 groups",
        ),
        (
            lambda p: of_experts(p, count=8, group_count=4, group_used_count=2),
            "blk.0.: 2 of 4 experts cannot be chosen from 2 of 4 groups",
        ),
        (
            lambda p: of_experts(p, group_count=2, group_used_count=3),
            "blk.0.: 2 of 4 experts cannot be chosen from 3 of 2 groups",
        ),
        (
            lambda p: of_experts(p, group_count=3, group_used_count=2),
            "blk.0.: 2 of 4 experts cannot be chosen from 2 of 3 groups",
        ),
        (
            lambda p: of_experts(p, used_count=3, group_count=2, group_used_count=1),
            "blk.0.: 3 of 4 experts cannot be chosen from 1 of 2 groups",
        ),
        (lambda p: write_tiny_lfm2(p, taps=1), "weights of 1 tokens, not of 2 or more"),
    ],
)
def test_a_file_is_refused(write, sentence, backend, tmp_path):
    path = write(tmp_path / "odd.gguf")
    with pytest.raises(FormatError, match=sentence):
        LLM(path, backend=backend, progress=False)


def test_an_lfm2_may_have_no_layer_with_attention(tmp_path):
    path = write_tiny_lfm2(tmp_path / "convolutions.gguf", attends=(), heads=0)
    ours, expected = (
        LLM(path, backend=backend, progress=False).logits([5, 6, 7, 8])
        for backend in ("cpu", "reference")
    )
    assert np.mean((ours - expected) ** 2) < 0.01 * np.mean(expected**2)


def test_what_one_backend_lacks_the_other_has(tmp_path):
    assert greedy(write_tiny_lfm2(tmp_path / "16.gguf", taps=16))
    path = write_tiny_lfm2(tmp_path / "17.gguf", taps=17)
    with pytest.raises(FormatError, match="convolutions over 17 tokens are not supported here"):
        greedy(path)
    assert len(greedy(path, "reference")) == 2


def test_whatever_else_the_plan_refuses_is_a_sentence_too(tmp_path, monkeypatch):
    monkeypatch.setattr(convolutions, "MOST_TAPS", 99)
    path = write_tiny_lfm2(tmp_path / "17.gguf", taps=17)
    with pytest.raises(FormatError, match=r"tensors do not fit .* a convolution has 2 to 16"):
        greedy(path)


def test_embeddings_that_are_a_vector(tmp_path):
    vector = {"token_embd.weight": np.ones(32, np.float32)}
    path = write_tiny_llama(tmp_path / "vector.gguf", skip_tensor="token_embd", vectors=vector)
    with pytest.raises(FormatError, match=r"token_embd\.weight has 1 dimensions, not 2"):
        LLM(path, threads=1, progress=False)


# -- identity --------------------------------------------------------------------------------------

# Which model a file holds: hashed once, and again when the file is another.


@pytest.fixture
def hashed_path(tmp_path, monkeypatch):
    monkeypatch.setenv("CUTAWAY_HOME", str(tmp_path / "home"))
    return write_tiny_llama(tmp_path / "tiny.gguf", layers=1)


def aged(hashed_path):
    """As if it had been there for a while."""
    long_ago = time_ns() - 10**12
    os.utime(hashed_path, ns=(long_ago, long_ago))


def notes(hashed_path):
    return list((hashed_path.parent / "home").rglob("*.json"))


def test_the_weights_are_the_files_bytes(hashed_path):
    assert (
        identify(hashed_path, stat_model(hashed_path)).weights
        == sha256(hashed_path.read_bytes()).hexdigest()
    )


def test_another_process_computes_by_the_same(hashed_path):
    """So a prefix is read where it was not saved, and a replica is known to have equal bits."""
    code = (
        "import sys; from cutaway.compute.loading.model import LoadedModel; "
        "print(LoadedModel.open(sys.argv[1]).computed_by)"
    )
    command = [sys.executable, "-c", code, str(hashed_path)]
    others = {subprocess.check_output(command, text=True).strip() for _ in range(2)}
    assert others == {str(LoadedModel.open(hashed_path).computed_by)}


def test_the_tokenizer_is_told_apart_from_the_weights(hashed_path, tmp_path):
    other = write_tiny_llama(tmp_path / "other.gguf", layers=1, seed=1)
    words = write_tiny_llama(
        tmp_path / "words.gguf", layers=1, metadata={"tokenizer.ggml.scores": [0.0] * 264}
    )
    a, b, c = (identify(p, stat_model(p)) for p in (hashed_path, other, words))
    assert a.weights != b.weights != c.weights
    assert a.tokenizer == b.tokenizer != c.tokenizer


def test_a_file_is_hashed_once(hashed_path, monkeypatch):
    monkeypatch.setattr(identity, "_SETTLED_NS", -(10**12))  # as if its clock had long moved on
    first = identify(hashed_path, stat_model(hashed_path))
    assert len(notes(hashed_path)) == 1
    monkeypatch.setattr(identity, "_digest", None)  # nothing can be hashed any more
    assert identify(hashed_path, stat_model(hashed_path)) == first


def test_a_file_that_just_changed_is_not_remembered(hashed_path):
    identify(hashed_path, stat_model(hashed_path))
    assert not notes(hashed_path)


def test_another_file_in_its_place_is_hashed_again(hashed_path, tmp_path, monkeypatch):
    monkeypatch.setattr(identity, "_SETTLED_NS", -(10**12))
    first = identify(hashed_path, stat_model(hashed_path))
    write_tiny_llama(tmp_path / "other.gguf", layers=1, seed=1)
    shutil.move(tmp_path / "other.gguf", hashed_path)
    assert identify(hashed_path, stat_model(hashed_path)).weights != first.weights


def test_a_note_that_is_none_of_ours_is_passed_over(hashed_path, monkeypatch):
    monkeypatch.setattr(identity, "_SETTLED_NS", -(10**12))
    first = identify(hashed_path, stat_model(hashed_path))
    for text in ("", "[]", "{}", '{"stamp": [1], "identity": {}}', "null"):
        notes(hashed_path)[0].write_text(text)
        assert identify(hashed_path, stat_model(hashed_path)) == first


def test_a_file_that_changed_since_it_was_loaded_is_refused(hashed_path):
    loaded = stat_model(hashed_path)
    aged(hashed_path)
    with pytest.raises(InputError, match="has changed since it was loaded"):
        identify(hashed_path, loaded)
    hashed_path.unlink()
    with pytest.raises(InputError, match="cannot be read to tell which model it is"):
        identify(hashed_path, loaded)


def test_a_cache_that_cannot_be_written_costs_only_time(hashed_path, monkeypatch):
    monkeypatch.setattr(identity, "_SETTLED_NS", -(10**12))
    (hashed_path.parent / "home").mkdir()
    (hashed_path.parent / "home" / "identities").write_text("in the way")
    assert identify(hashed_path, stat_model(hashed_path)) == identify(
        hashed_path, stat_model(hashed_path)
    )


def test_how_far_hashing_is_counts_all_files(hashed_path, monkeypatch):
    told = []
    monkeypatch.setattr(identity, "_PIECE", 1000)
    monkeypatch.setattr(Bar, "update", lambda bar, done: told.append((done, bar._total)))
    identify(hashed_path, stat_model(hashed_path))
    size = hashed_path.stat().st_size
    assert [done for done, _ in told] == [*range(1000, size, 1000), size]
    assert {total for _, total in told} == {size}


# -- larger than memory ----------------------------------------------------------------------------

# A process that may have less memory than its model's weights take writes the same text.


LIMIT = 120_000_000  # 98 MB are SmolLM2's, and over 30 MB Python's and its libraries'


@pytest.fixture
def group():
    """A control group of our own that may have so much memory and no swap."""
    within = next(_groups("memory"), Path("/nowhere"))
    made = within / f"cutaway-test-{os.getpid()}"
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        limits = ("memory.max", "memory.limit_in_bytes")
        limit = next((made / name for name in limits if (made / name).exists()), None)
        if limit is None:
            pytest.skip("control groups do not limit memory here")
        limit.write_text(str(LIMIT))
        yield made
    finally:
        made.rmdir()


def written_within(group, *more):
    command = [
        sys.executable, "-m", "cutaway", "generate", "The sky is", "--temperature", "0",
        "--max-tokens", "24", "--context", "64", "--kv-tokens", "64", *more,
    ]  # fmt: skip
    enter = (lambda: (group / "cgroup.procs").write_text(str(os.getpid()))) if group else None
    return subprocess.run(command, preexec_fn=enter, capture_output=True, text=True, check=False)


@pytest.mark.model
@pytest.mark.slow
def test_it_is_refused_without_a_folder_and_writes_the_same_text_with_one(group, tmp_path):
    if file_system(tmp_path) in ("tmpfs", "ramfs"):
        pytest.skip("temporary files are in memory here")
    hub.resolve(None, progress=False)
    refused = written_within(group)
    assert refused.returncode == 2
    assert "of memory for its weights" in refused.stderr
    done = written_within(group, "--offload-folder", tmp_path)
    assert "each token reads up to" in done.stderr
    assert (done.returncode, done.stdout) == (0, written_within(None).stdout)


def test_what_a_load_reads_is_read_before_another_thread_makes_the_tokenizer(
    tiny_path, monkeypatch
):
    """Beside that thread each small file waited 5 ms for the interpreter lock."""
    order = []

    def note(module, name):
        function = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, **k: order.append(name) or function(*a, **k))

    note(weights, "free_memory")
    note(backends, "import_backend")
    note(parts, "start")
    LoadedModel.open(tiny_path, progress=False).close()
    assert order == ["import_backend", "free_memory", "start"]
