"""``cutaway models`` and ``cutaway pull``, on a temporary cache that is already filled."""

import json
from hashlib import sha256
from pathlib import Path

import pytest

from cutaway import LLM
from cutaway.base.resources import Memory
from cutaway.cli import model_card
from cutaway.cli.main import main
from cutaway.compute.loading.info import ModelInfo
from cutaway.compute.model import config_of
from cutaway.files.hub import catalog
from cutaway.files.hub.catalog import CatalogModel, WheelFile
from support.random_llama import write_tiny_llama
from support.random_mamba2 import write_tiny_mamba2
from support.random_rwkv7 import write_tiny_rwkv7

CONTENT = b"the bytes of a model"
TINY = CatalogModel(
    alias="tiny",
    title="Tiny",
    license="MIT",
    file="tiny.gguf",
    size=len(CONTENT),
    sha256=sha256(CONTENT).hexdigest(),
    download_size=1,
    parts=(WheelFile("tiny-model==1.0", "tiny_model/tiny.gguf"),),
)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUTAWAY_HOME", str(tmp_path))
    monkeypatch.setitem(catalog.CATALOG, "tiny", TINY)
    path = tmp_path / "models" / "tiny.gguf"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    return path


def test_the_table(printed, tiny):
    tiny.with_name("own.gguf").write_bytes(bytes(2_500_000_000 // 1000))
    lines = printed("models").splitlines()
    assert lines[0].split() == ["NAME", "SIZE", "LICENSE", "STATE", "PATH"]
    assert lines[-2].split(maxsplit=5) == ["tiny", "0.0", "kB", "MIT", "cached", str(tiny)]
    own = str(tiny.with_name("own.gguf"))
    assert lines[-1].split(maxsplit=5) == ["own.gguf", "2", "MB", "unknown", "cached", own]
    columns = {line.index(word) for line, word in zip(lines[-2:], (str(tiny), own), strict=True)}
    assert columns == {lines[0].index("PATH")}


def test_json(printed, tiny):
    models = {model["name"]: model for model in json.loads(printed("models", "--json"))}
    assert models["tiny"] == {
        "name": "tiny",
        "title": "Tiny",
        "license": "MIT",
        "size": len(CONTENT),
        "state": "cached",
        "path": str(tiny),
    }


def test_pull_prints_the_path_and_checks_it(tiny, capsys):
    assert main(["pull", "tiny"]) == 0
    assert capsys.readouterr() == (f"{tiny}\n", "The checksum is correct.\n")
    assert main(["pull", "-q", "tiny"]) == 0
    assert capsys.readouterr() == (f"{tiny}\n", "")


def test_pull_finds_a_damaged_file(tiny, refused):
    tiny.write_bytes(CONTENT.upper())
    assert "tiny.gguf is damaged" in refused("pull", "tiny")


def test_pull_of_an_unpinned_file_says_so(tiny_path, capsys):
    assert main(["pull", str(tiny_path)]) == 0
    said = "It is a model; no checksum is known for it.\n"
    assert capsys.readouterr() == (f"{tiny_path}\n", said)


@pytest.mark.parametrize("content", [b"x", b"GGUF", b""])
def test_pull_of_a_file_that_is_no_model_fails(tiny, refused, content):
    other = tiny.with_name("other.gguf")
    other.write_bytes(content)
    assert "other.gguf" in refused("pull", str(other))


def test_pull_of_an_unknown_name(tiny, refused):
    assert "did you mean 'tiny'?" in refused("pull", "tinny")


# -- one model -------------------------------------------------------------------------------


def test_a_model_is_shown_as_its_file_has_it(printed, tmp_path):
    path = write_tiny_llama(tmp_path / "t.gguf", metadata={"tokenizer.chat_template": "{{ x }}"})
    llm = LLM(path, threads=1)
    card = json.loads(printed("models", "show", path, "--json", "--context", "100"))
    assert card["config"]["layers"] == llm.config.layers
    assert card["vocab_size"] == llm.tokenizer.vocab_size
    assert [end["id"] for end in card["ends"]] == list(llm.tokenizer.end_ids)
    assert [end["origin"] for end in card["ends"]] == list(llm.tokenizer.end_ids.values())
    assert card["begin"]["id"] == llm.tokenizer.bos_id
    assert (card["template"], card["template_origin"]) == ("{{ x }}", "tokenizer.chat_template")
    stored = sum(stored["bytes"] for stored in card["formats"].values())
    assert card["kv_bytes"] == llm.backend.kv.bytes_per_token  # heads of 8, padded to 16
    assert card["memory"] == {"context": 100, "bytes": stored + 128 * card["kv_bytes"]}
    assert sum(stored["tensors"] for stored in card["formats"].values()) == len(llm.graph.shapes)


def test_memory_is_without_what_windows_free(printed, tmp_path):
    """Two windows are kept, and the rows of a step."""
    windows = {"llama.attention.sliding_window": 40, "llama.attention.sliding_window_pattern": 2}
    path = write_tiny_llama(tmp_path / "t.gguf", context=4096, metadata=windows)
    card = json.loads(printed("models", "show", path, "--json"))
    each = card["kv_bytes"] // 2
    assert [(g["window"], g["bytes_per_token"]) for g in card["kv"]] == [(0, each), (40, each)]
    stored = sum(stored["bytes"] for stored in card["formats"].values())
    assert card["memory"]["bytes"] - stored == (4096 + 2 * (512 + 32)) * each
    assert f"a token, {each:,} once it is past the windows" in printed("models", "show", path)


def test_a_model_is_shown_to_people(printed, tmp_path):
    path = write_tiny_llama(tmp_path / "t.gguf")
    said = printed("models", "show", path)
    assert "no template: completion only" in said
    assert ModelInfo.read(path).template_origin is None
    assert "ends with     </s> (2), from tokenizer.ggml.eos_token_id" in said


def test_settings_that_a_file_recommends_are_shown_and_not_taken(printed, tmp_path):
    wishes = {"general.sampling.temp": 0.6, "general.sampling.top_k": 20}
    path = write_tiny_llama(tmp_path / "t.gguf", metadata=wishes)
    said = printed("models", "show", path)
    assert "sampling      temp 0.6, top_k 20\n" in said
    assert "recommended by the file, and no default here" in said
    card = json.loads(printed("models", "show", path, "--json"))
    assert card["sampling"] == {"temp": 0.6, "top_k": 20}
    plain = write_tiny_llama(tmp_path / "plain.gguf")
    assert "sampling" not in printed("models", "show", plain)
    texts = [LLM(p, threads=1).generate("a", seed=1, max_tokens=8).text for p in (path, plain)]
    assert texts[0] == texts[1]


def test_what_heads_attend_to_is_said():
    sizes = {
        "context_length": 64, "embedding_length": 64, "attention.head_count": 4, "block_count": 3,
        "attention.layer_norm_rms_epsilon": 1e-6, "attention.kv_lora_rank": 32,
        "rope.dimension_count": 16, "attention.key_length": 64, "attention.value_length": 64,
        "attention.key_length_swa": 32, "attention.head_count_kv": 2,
        "attention.shared_kv_layers": 1, "attention.sliding_window": 8,
        "attention.sliding_window_pattern": 2,
    }  # fmt: skip
    said = {
        name: model_card._heads(config_of(
            {"general.architecture": name} | {f"{name}.{k}": v for k, v in sizes.items()}
        ))
        for name in ("deepseek2", "gemma4")
    }  # fmt: skip
    assert said == {
        "deepseek2": "4 heads on a latent of 32 numbers and 16 with positions, which all share",
        "gemma4": "4 heads, 32 and 64 wide; 1 layer reads the keys and values of earlier ones",
    }


def test_formats_with_long_names_stand_in_their_column(printed, tmp_path):
    path = write_tiny_llama(tmp_path / "t.gguf", format="IQ4_NL", head_dim=32)
    said = printed("models", "show", path)
    assert "IQ4_NL 16 tensors, " in said and "F32    5 tensors, " in said


def test_weights_that_are_more_than_the_free_memory(printed, tmp_path, monkeypatch):
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    monkeypatch.setattr(model_card, "free_memory", lambda: Memory(9000, "its container"))
    assert "9.0 kB of its container are free: see --offload-folder\n" in printed(
        "models", "show", path
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--context", "5"], "--context is for one model"),
        (["show", "nothing.gguf"], "model file 'nothing.gguf' does not exist"),
        (["show", "smollm2", "--context", "0"], "--context must be between 1 and 8192"),
    ],
)
def test_what_cannot_be_shown(refused, arguments, sentence):
    assert sentence in refused("models", *arguments)


@pytest.mark.parametrize("write", [write_tiny_rwkv7, write_tiny_mamba2])
def test_the_card_tells_no_positions_where_nothing_attends(tmp_path, printed, write):
    shown = printed("models", "show", str(write(tmp_path / "model.gguf")))
    assert "attention     none\n" in shown
    assert "positions" not in shown
