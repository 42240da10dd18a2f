"""Which model a file holds: hashed once, and again when the file is another."""

import os
import shutil
from hashlib import sha256
from time import time_ns

import pytest

from cutaway.base.progress import Bar
from cutaway.compute.loading import identity
from cutaway.compute.loading.identity import identify
from cutaway.compute.loading.open import stat_model
from cutaway.errors import InputError
from support.random_llama import write_tiny_llama


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("CUTAWAY_HOME", str(tmp_path / "home"))
    return write_tiny_llama(tmp_path / "tiny.gguf", layers=1)


def aged(path):
    """As if it had been there for a while."""
    long_ago = time_ns() - 10**12
    os.utime(path, ns=(long_ago, long_ago))


def notes(path):
    return list((path.parent / "home").rglob("*.json"))


def test_the_weights_are_the_files_bytes(path):
    assert identify(path, stat_model(path)).weights == sha256(path.read_bytes()).hexdigest()


def test_the_tokenizer_is_told_apart_from_the_weights(path, tmp_path):
    other = write_tiny_llama(tmp_path / "other.gguf", layers=1, seed=1)
    words = write_tiny_llama(
        tmp_path / "words.gguf", layers=1, metadata={"tokenizer.ggml.scores": [0.0] * 264}
    )
    a, b, c = (identify(p, stat_model(p)) for p in (path, other, words))
    assert a.weights != b.weights != c.weights
    assert a.tokenizer == b.tokenizer != c.tokenizer


def test_a_file_is_hashed_once(path, monkeypatch):
    monkeypatch.setattr(identity, "_SETTLED_NS", -(10**12))  # as if its clock had long moved on
    first = identify(path, stat_model(path))
    assert len(notes(path)) == 1
    monkeypatch.setattr(identity, "_digest", None)  # nothing can be hashed any more
    assert identify(path, stat_model(path)) == first


def test_a_file_that_just_changed_is_not_remembered(path):
    identify(path, stat_model(path))
    assert not notes(path)


def test_another_file_in_its_place_is_hashed_again(path, tmp_path, monkeypatch):
    monkeypatch.setattr(identity, "_SETTLED_NS", -(10**12))
    first = identify(path, stat_model(path))
    write_tiny_llama(tmp_path / "other.gguf", layers=1, seed=1)
    shutil.move(tmp_path / "other.gguf", path)
    assert identify(path, stat_model(path)).weights != first.weights


def test_a_note_that_is_none_of_ours_is_passed_over(path, monkeypatch):
    monkeypatch.setattr(identity, "_SETTLED_NS", -(10**12))
    first = identify(path, stat_model(path))
    for text in ("", "[]", "{}", '{"stamp": [1], "identity": {}}', "null"):
        notes(path)[0].write_text(text)
        assert identify(path, stat_model(path)) == first


def test_a_file_that_changed_since_it_was_loaded_is_refused(path):
    loaded = stat_model(path)
    aged(path)
    with pytest.raises(InputError, match="has changed since it was loaded"):
        identify(path, loaded)
    path.unlink()
    with pytest.raises(InputError, match="cannot be read to tell which model it is"):
        identify(path, loaded)


def test_a_cache_that_cannot_be_written_costs_only_time(path, monkeypatch):
    monkeypatch.setattr(identity, "_SETTLED_NS", -(10**12))
    (path.parent / "home").mkdir()
    (path.parent / "home" / "identities").write_text("in the way")
    assert identify(path, stat_model(path)) == identify(path, stat_model(path))


def test_how_far_hashing_is_counts_all_files(path, monkeypatch):
    told = []
    monkeypatch.setattr(identity, "_PIECE", 1000)
    monkeypatch.setattr(Bar, "update", lambda bar, done: told.append((done, bar._total)))
    identify(path, stat_model(path))
    size = path.stat().st_size
    assert [done for done, _ in told] == [*range(1000, size, 1000), size]
    assert {total for _, total in told} == {size}
