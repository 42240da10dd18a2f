"""A load that takes long says how far it is, on a terminal; the tokenizer is read meanwhile."""

import pytest

from cutaway import InputError
from cutaway.compute.loading import weights
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.parts import start
from cutaway.compute.loading.setup import Setup
from support.random_llama import write_tiny_llama


@pytest.fixture
def path(tmp_path):
    return write_tiny_llama(tmp_path / "tiny.gguf")


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
