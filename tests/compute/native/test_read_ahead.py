"""While weights are packed, the disk is asked for what comes next, and for no more than that."""

import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

from cutaway.base import _native
from cutaway.compute import model
from cutaway.compute.backends.cpu import packing
from cutaway.files.weights import GGUFFile
from support.random_llama import write_tiny_llama


class Watched(GGUFFile):
    """Notes what is expected and what is read."""

    def __init__(self, path):
        super().__init__(path)
        self.log = []

    def expect(self, name):
        self.log.append(("expect", name))
        super().expect(name)

    def raw(self, name):
        self.log.append(("read", name))
        return super().raw(name)


@pytest.mark.parametrize("ahead", [0, 10_000, 1 << 30])
def test_every_matrix_is_expected_once_before_it_is_read(tmp_path, monkeypatch, ahead):
    monkeypatch.setattr(packing, "_AHEAD", ahead)
    file = Watched(write_tiny_llama(tmp_path / "tiny.gguf", layers=3))
    shapes = {name: info.shape for name, info in file.tensors.items()}
    _, graph = model.build(file.metadata, shapes, None)
    packing.pack_matrices(graph, file, _native.Pool(1))
    expected = [name for what, name in file.log if what == "expect"]
    read = [name for what, name in file.log if what == "read"]
    assert expected == read == list(dict.fromkeys(read))
    size = {name: file.tensors[name].nbytes for name in read}
    for i, name in enumerate(read):
        known = [n for what, n in file.log[: file.log.index(("read", name))] if what == "expect"]
        waiting = [size[n] for n in known[i:]]
        assert known[i] == name
        assert sum(waiting[:-1]) < size[name] + ahead  # the last may reach beyond
