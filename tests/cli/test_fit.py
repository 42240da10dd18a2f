"""``cutaway models --fit``, and what a load says: memory, and the limit that reading sets."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

from cutaway import LLM
from cutaway.base import reading_rate
from cutaway.base.resources import Memory
from cutaway.cli import model_fit
from cutaway.compute.backends import KV_BLOCK
from cutaway.compute.loading import fit as fits
from cutaway.compute.loading import weights
from cutaway.compute.loading.fit import MemoryFit
from cutaway.compute.loading.info import ModelInfo
from cutaway.files.hub.folders import models_in
from support.random_llama import write_tiny_llama

BANDWIDTH = 1e9
WINDOWS = {"llama.attention.sliding_window": 40, "llama.attention.sliding_window_pattern": 2}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUTAWAY_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def given(monkeypatch):
    """Give memory of a size, which reads BANDWIDTH bytes a second."""

    def give(free):
        monkeypatch.setattr(model_fit, "free_memory", lambda *, swap: Memory(free, "this machine"))
        monkeypatch.setattr(model_fit, "measure_bandwidth", lambda _nbytes: BANDWIDTH)

    return give


def document(printed, *args):
    return json.loads(printed("models", "--fit", *args, "--json"))


def test_the_rate_is_what_memory_gives_by_what_a_token_reads(printed, given, home):
    path = write_tiny_llama(home / "a.gguf", layers=2)
    given(10**9)
    [row] = document(printed, path, "--context", "100")["models"]
    matrices = sum(
        stored.bytes for name, stored in ModelInfo.read(path).formats.items() if name == "F32"
    )
    norms = 4 * 32 * (2 * 2 + 1)
    embedding = 4 * 32 * ModelInfo.read(path).vocab_size
    kv = LLM(path, threads=1).backend.kv.bytes_per_token
    first, last = row["first_token"], row["last_token"]
    assert first["read_bytes"] == matrices - norms - embedding
    assert last["read_bytes"] == first["read_bytes"] + 100 * kv
    for token in (first, last):
        assert token["most_tokens_per_s"] == BANDWIDTH / token["read_bytes"]
    assert (row["context"], row["fits"], row["longest_text"]) == (100, True, 128)


def test_experts_that_a_token_does_not_choose_are_kept_and_not_read(printed, given, home):
    """Two of four are chosen: of eight, a token reads no more."""
    keys = {"llama.expert_used_count": 2}
    small, large = (
        write_tiny_llama(home / f"{n}.gguf", experts=n, metadata=keys | {"llama.expert_count": n})
        for n in (4, 8)
    )
    given(10**9)
    of_4, of_8 = document(printed, small, large)["models"]
    routers = 2 * 4 * 32 * 4  # two layers' rows for four more experts
    assert of_8["first_token"]["read_bytes"] == of_4["first_token"]["read_bytes"] + routers
    assert of_8["memory_bytes"] > of_4["memory_bytes"] + routers


@pytest.mark.parametrize("metadata", [{}, WINDOWS], ids=["full", "windows"])
def test_the_longest_text_is_the_longest_that_fits(home, metadata):
    path = write_tiny_llama(home / "a.gguf", context=4096, metadata=metadata)
    card = ModelInfo.read(path)
    for free in range(card.weight_bytes - 1, card.memory(4096) + 2, 40_001):
        fit = MemoryFit(
            card.weight_bytes, card.kv, card.active_bytes, 1, Memory(free, "this machine")
        )
        longest = max(
            (n for n in range(0, 4097, KV_BLOCK) if card.memory(n) <= free), default=0
        )  # fmt: skip
        assert fit.longest_text(4096) == longest
        assert fit.longest_text(100) == min(longest, 100)
        assert fit.fits == (card.memory(1) <= free)


def test_memory_of_an_unknown_size_is_called_so(printed, given, home, monkeypatch):
    given(0)
    monkeypatch.setattr(model_fit, "free_memory", lambda *, swap: None)
    path = write_tiny_llama(home / "a.gguf")
    [row] = document(printed, path)["models"]
    assert (row["fits"], row["longest_text"]) == (None, None)
    assert "memory: unknown; " in printed("models", "--fit", path)


def test_a_folder_is_searched_and_what_does_not_run_says_why(printed, given, home):
    folder = home / "models"
    (folder / "deep").mkdir(parents=True)
    write_tiny_llama(folder / "deep" / "runs.gguf")
    (folder / "broken.gguf").write_bytes(b"GGUF")
    given(10**9)
    found = document(printed, folder)
    assert [row["name"] for row in found["models"]] == ["runs"]
    [refusal] = found["refused"]
    assert refusal["path"] == str(folder / "broken.gguf")
    assert f"broken.gguf does not run: {refusal['reason']}" in printed("models", "--fit", folder)


def test_the_table_is_of_the_cache_and_smaller_models_come_first(printed, given, home):
    (home / "home/models").mkdir(parents=True)
    for name, layers in (("a", 3), ("b", 1)):
        write_tiny_llama(home / f"home/models/{name}.gguf", layers=layers)
    given(60_000)
    lines = printed("models", "--fit").splitlines()
    assert lines[0].startswith("memory: 60.0 kB of this machine are free; texts have 8,192 tokens")
    assert lines[1] == "reading: 1.0 GB a second, measured now"
    rows = {line.split()[0]: line for line in lines if line}
    assert lines.index(rows["b"]) < lines.index(rows["a"])
    assert "no" in rows["a"].split() and "tokens/s" in rows["a"]


def test_the_rate_is_measured(printed, home):
    [row] = document(printed, write_tiny_llama(home / "a.gguf"))["models"]
    assert row["read_bytes_per_s"] > 0


def test_large_models_share_a_measurement(monkeypatch):
    class Rate:
        def __init__(self, pool, nbytes):
            measured.append(nbytes)

        def measure(self):
            return BANDWIDTH

    measured: list[int] = []
    monkeypatch.setattr(reading_rate, "ReadingRate", Rate)
    fits._measure.cache_clear()
    assert [fits.measure_bandwidth(nbytes, 1) for nbytes in (10**9, 10**10)] == [BANDWIDTH] * 2
    fits._measure.cache_clear()
    assert measured == [256 << 20]


def test_a_model_in_parts_and_a_folder_are_one_model_each(home):
    names = ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "of-transformers/1_Pooling/x.gguf")
    for name in names:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).touch()
    for name in ("config.json", "model.safetensors"):
        (home / "of-transformers" / name).touch()
    assert models_in(home) == [home / names[0], home / "of-transformers"]


def test_a_long_load_says_what_the_model_takes(home, monkeypatch, capfd):
    path = write_tiny_llama(home / "a.gguf")
    monkeypatch.setattr(weights, "_SOON_S", 0)
    monkeypatch.setattr(fits, "measure_bandwidth", lambda _nbytes, _threads: BANDWIDTH)
    monkeypatch.setattr(weights, "free_memory", lambda **_swap: Memory(10**9, "this machine"))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    LLM(path, threads=1)
    card = ModelInfo.read(path)
    fit = MemoryFit(
        card.weight_bytes, card.kv, card.active_bytes, 8192, Memory(10**9, "this machine")
    )
    sentence = capfd.readouterr().err.splitlines()[-1]
    assert sentence == f"a: {fit.describe(BANDWIDTH)}"
    assert "of 1.0 GB of this machine that are free; each token reads" in sentence


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["show", "smollm2", "--fit"], "--fit takes the models' names behind it"),
        (["--fit", "nothing.gguf"], "model file 'nothing.gguf' does not exist"),
        (["--fit", "--context", "0"], "--context must be between 1 and"),
    ],
)
def test_what_cannot_be_asked_is_refused(refused, arguments, sentence):
    assert sentence in refused("models", *arguments)


@pytest.mark.parametrize("name", ["smollm2", "hf:org/repo", "hf:org/repo:file.gguf"])
def test_nothing_is_fetched(refused, monkeypatch, name):
    def fetch(*_args, **_settings):
        raise AssertionError("fetched")

    monkeypatch.setattr("cutaway.files.hub.fetch.fetch", fetch)
    monkeypatch.setattr("cutaway.files.hub.huggingface.fetch_repo_file", fetch)
    monkeypatch.setattr("cutaway.files.hub.catalog.find_installed", lambda _model: None)
    assert "and --fit fetches nothing" in refused("models", "--fit", name)


def test_an_empty_folder_is_refused(refused, home):
    (home / "empty").mkdir()
    assert "has no .gguf file and no folder of transformers" in refused(
        "models", "--fit", home / "empty"
    )
