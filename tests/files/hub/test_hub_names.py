"""Names: every kind of name finds its file or gets its own sentence."""

import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from cutaway.errors import FetchError, FormatError, InputError
from cutaway.files import hub
from support import tiny_hub
from support.tiny_hub import WEIGHTS


def test_a_path_is_taken_as_it_is(world, tmp_path, monkeypatch):
    file = tmp_path / "with space – ü.GGUF"
    file.write_bytes(b"anything")
    assert hub.resolve(str(file)) == file
    assert hub.resolve(file) == file
    monkeypatch.chdir(tmp_path)
    assert hub.resolve(file.name) == Path(file.name)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hub.resolve(f"~/{file.name}") == file


def test_a_file_without_the_suffix_is_taken(world, tmp_path):
    blob = tmp_path / "sha256-2049f5674b1e"  # as Ollama keeps them
    blob.write_bytes(b"anything")
    assert hub.resolve(blob) == blob


def test_none_is_the_default_model(world, monkeypatch):
    monkeypatch.setattr("cutaway.files.hub.DEFAULT_MODEL", "tiny")
    assert hub.resolve() == world.model


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("tinny", r"^unknown model 'tinny': did you mean 'tiny'\? name one of smollm2, gemma3-27"),
        ("zzz", r"^unknown model 'zzz': name one of .*, the path of a .gguf file or of a fol"),
        ("", r"^unknown model '': name one of"),
        ("missing.gguf", "^model file 'missing.gguf' does not exist; check the path"),
        ("no/where", "^model file 'no/where' does not exist; check the path"),
        ("/", "^model '/' is a folder without a config.json; name .* or the .gguf file in it"),
        ("/dev/null", "^model '/dev/null' is not a regular file"),
        ("a prompt " * 1000, "^(unknown )?model 'a prompt "),
        ("a\0b", "^unknown model"),
        ("~nobody-here/x.gguf", "cannot be looked up: "),
    ],
)
def test_each_wrong_name_gets_its_own_sentence(world, name, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        hub.resolve(name)
    assert len(str(caught.value)) < 500
    assert world.pip_runs() == []


def test_home_is_chosen_by_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CUTAWAY_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert hub.cache_dir() == tmp_path / ".cache" / "cutaway"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert hub.cache_dir() == tmp_path / ".cache" / "cutaway"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert hub.cache_dir() == Path("/xdg/cutaway")
    monkeypatch.setenv("CUTAWAY_HOME", "~/mine")
    assert hub.cache_dir() == tmp_path / "mine"


def test_home_is_a_file(world, monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("CUTAWAY_HOME", str(file))
    with pytest.raises(InputError, match=r"CUTAWAY_HOME is the file .*; set it to a folder"):
        hub.resolve("tiny")
    monkeypatch.setenv("CUTAWAY_HOME", "~nobody-here/x")
    with pytest.raises(InputError, match="set CUTAWAY_HOME to a folder"):
        hub.resolve("tiny")


def test_the_shelf_knows_each_state(world, tmp_path, monkeypatch):
    def states() -> dict[str, str]:
        return {model.name: model.state for model in hub.available()}

    before = {"tiny": "not fetched", "parts": "not fetched"}
    assert before.items() <= states().items()
    monkeypatch.syspath_prepend(tmp_path / "site")
    tiny_hub.install_packages(tmp_path / "site")
    assert {"tiny": "in package", "parts": "in package"}.items() <= states().items()
    hub.resolve("parts")
    assert states()["parts"] == "cached"


@pytest.mark.parametrize("name", ["own.gguf", "own.GGUF"])
def test_a_file_put_into_the_cache_is_listed_and_named(world, name):
    hub.resolve("tiny")
    own = world.model.with_name(name)
    own.write_bytes(b"12345")
    listed = hub.available()[-1]
    assert listed == hub.ModelStatus(name, "own", None, 5, "cached", own)
    assert [model.name for model in hub.available()].count("tiny.gguf") == 0
    assert hub.resolve(name) == own


def test_verify_hashes_again(world):
    with pytest.raises(InputError, match=r"'tiny' is not on this machine; run: cutaway pull tiny"):
        hub.verify("tiny")
    with pytest.raises(InputError, match=r"no checksum is known for model 'x.gguf'"):
        hub.verify("x.gguf")
    hub.resolve("tiny")
    assert hub.verify("Tiny") == world.model
    world.model.write_bytes(bytes([WEIGHTS[0] ^ 1]) + WEIGHTS[1:])
    with pytest.raises(FormatError, match=r"is damaged.* delete it and run: cutaway pull tiny"):
        hub.verify("tiny")


def test_the_hub_imports_little():
    code = "import sys, cutaway.files.hub; print(*sorted(sys.modules))"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    heavy = {"numpy", "subprocess", "zipfile", "filelock", "huggingface_hub", "pip"}
    assert "cutaway.files.hub" in loaded
    assert heavy.isdisjoint(loaded)


# -- hub huggingface -------------------------------------------------------------------------------

# hf:org/repo[:file], against a stand-in for the client.


class EntryNotFoundError(Exception): ...


class LocalEntryNotFoundError(EntryNotFoundError): ...


class RepositoryNotFoundError(Exception): ...


class HFValidationError(ValueError): ...


class Client:
    """As much of huggingface_hub as is used; ``failure`` is what the network does."""

    def __init__(self, files: list[str]) -> None:
        self.files = files
        self.cached: dict[str, str] = {}
        self.kept: Path | None = None
        self.failure: Exception | None = None
        self.bars: list[bool] = []
        self.has_log = False
        self.utils = SimpleNamespace(
            EntryNotFoundError=EntryNotFoundError,
            LocalEntryNotFoundError=LocalEntryNotFoundError,
            RepositoryNotFoundError=RepositoryNotFoundError,
            HFValidationError=HFValidationError,
            logging=SimpleNamespace(get_logger=self._get_logger),
            are_progress_bars_disabled=lambda: False,
            disable_progress_bars=lambda: self.bars.append(False),
            enable_progress_bars=lambda: self.bars.append(True),
        )

    def _get_logger(self, name: str) -> logging.Logger:
        """The client's is made when it is first asked for, and then has the level of its own."""
        log = logging.getLogger(name)
        if not self.has_log:
            log.setLevel(logging.WARNING)
        self.has_log = True
        return log

    def HfApi(self) -> SimpleNamespace:
        self._get_logger("huggingface_hub")
        return SimpleNamespace(list_repo_files=lambda repo: self._network() or self.files)

    def try_to_load_from_cache(self, repo: str, file: str) -> str | None:
        return self.cached.get(f"{repo}/{file}")

    def hf_hub_download(self, repo: str, file: str) -> str:
        self._network()
        return f"/hf/{repo}/{file}"

    def snapshot_download(
        self, repo: str, local_files_only: bool = False, allow_patterns: Sequence[str] = ()
    ) -> str:
        if not local_files_only:
            self._network()
            return f"/hf/{repo} {','.join(allow_patterns)}"
        if self.kept is None:
            raise LocalEntryNotFoundError("nothing was fetched")
        return str(self.kept)

    def _network(self) -> None:
        if self.failure:
            raise self.failure


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    client = Client(["README.md", "a/model.Q4_0.gguf"])
    monkeypatch.setitem(sys.modules, "huggingface_hub", client)
    monkeypatch.setitem(sys.modules, "huggingface_hub.utils", client.utils)
    return client


def test_the_only_gguf_file_is_taken(client):
    assert hub.resolve("hf:org/repo") == Path("/hf/org/repo/a/model.Q4_0.gguf")


def test_a_named_file_is_taken(client):
    client.files = ["x.gguf", "y.gguf"]
    assert hub.resolve("hf:org/repo:y.gguf") == Path("/hf/org/repo/y.gguf")


def test_several_files_are_listed_not_guessed(client):
    client.files = [f"m{n:02}.gguf" for n in range(14)]
    with pytest.raises(InputError, match=r"14 .gguf files.*out of m00.gguf, .*m11.gguf and 2 more"):
        hub.resolve("hf:org/repo")


def test_all_parts_of_a_model_are_fetched(client):
    parts = [f"a/m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    client.files, fetched = [*parts, "README.md"], []
    client.hf_hub_download = lambda repo, file: fetched.append(file) or f"/hf/{repo}/{file}"
    assert hub.resolve("hf:org/repo") == Path(f"/hf/org/repo/{parts[0]}")
    assert hub.resolve(f"hf:org/repo:{parts[1]}") == Path(f"/hf/org/repo/{parts[0]}")
    assert fetched == parts * 2
    client.cached = {f"org/repo/{part}": f"/cached/{part}" for part in parts[:2]}
    hub.resolve(f"hf:org/repo:{parts[0]}")
    assert fetched == parts * 3
    client.cached[f"org/repo/{parts[2]}"] = f"/cached/{parts[2]}"
    assert hub.resolve(f"hf:org/repo:{parts[1]}") == Path(f"/cached/{parts[0]}")
    client.files.append("other.gguf")
    with pytest.raises(InputError, match=r"2 .gguf files.*out of a/m-00001-of-00003.gguf, other"):
        hub.resolve("hf:org/repo")


def test_a_repository_without_gguf(client):
    client.files = ["model.safetensors"]
    with pytest.raises(InputError, match=r"'hf:org/repo' holds no .gguf file"):
        hub.resolve("hf:org/repo")


def test_a_repository_of_safetensors_is_a_folder(client, tmp_path):
    client.files = ["README.md", "config.json", "model-00001-of-00002.safetensors"]
    fetched = hub.resolve("hf:org/repo")
    assert fetched == Path("/hf/org/repo *.json,*.jinja,*.txt,model*.safetensors")
    (tmp_path / "config.json").touch()
    client.kept, client.failure = tmp_path, ConnectionError("offline")
    with pytest.raises(FetchError, match="could not be fetched"):
        hub.resolve("hf:org/repo")
    (tmp_path / "model.safetensors").touch()
    assert hub.resolve("hf:org/repo") == tmp_path


def test_a_gguf_file_goes_before_the_folder(client):
    client.files = ["config.json", "model.safetensors", "y.gguf"]
    assert hub.resolve("hf:org/repo") == Path("/hf/org/repo/y.gguf")


def test_a_file_fetched_before_needs_no_network(client):
    client.cached["org/repo/y.gguf"] = "/hf/cached/y.gguf"
    client.failure = ConnectionError("offline")
    assert hub.resolve("hf:org/repo:y.gguf") == Path("/hf/cached/y.gguf")


def test_the_only_file_that_was_fetched_is_found_without_the_network(client, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/y.GGUF").touch()
    (tmp_path / "README.md").touch()
    client.kept, client.failure = tmp_path, ConnectionError("offline")
    client.cached["org/repo/a/y.GGUF"] = str(tmp_path / "a/y.GGUF")
    assert hub.resolve("hf:org/repo") == tmp_path / "a/y.GGUF"
    (tmp_path / "x.gguf").touch()
    with pytest.raises(FetchError, match=r"could not be fetched \(offline\)"):
        hub.resolve("hf:org/repo")
    client.kept = None
    with pytest.raises(FetchError, match=r"could not be fetched \(offline\)"):
        hub.resolve("hf:org/repo")
    client.kept, client.failure = tmp_path, RepositoryNotFoundError("gone")
    with pytest.raises(InputError, match=r"was not found \(gone\)"):
        hub.resolve("hf:org/repo")


def test_the_clients_log_is_silent_around_the_call_and_loud_after_it(client, caplog):
    log = logging.getLogger("huggingface_hub.utils._http")
    client._network = lambda: log.warning("Retrying in 1s")
    hub.resolve("hf:org/repo")
    assert caplog.text == ""
    assert logging.getLogger("huggingface_hub").level == logging.WARNING


@pytest.mark.parametrize("name", ["hf:", "hf:repo", "hf:a/b/c", "hf:/b", "hf:a/:x.gguf"])
def test_a_name_of_another_form(client, name):
    with pytest.raises(InputError, match="must have the form hf:org/repo or hf:org/repo:file"):
        hub.resolve(name)


def test_a_file_of_another_kind(client):
    with pytest.raises(InputError, match=r"not a .gguf file"):
        hub.resolve("hf:org/repo:model.safetensors")


@pytest.mark.parametrize(
    ("failure", "kind", "sentence"),
    [
        (RepositoryNotFoundError("404.\nmore"), InputError, r"was not found \(404\); check it"),
        (EntryNotFoundError("no file"), InputError, r"was not found \(no file\)"),
        (HFValidationError("bad"), InputError, r"was not found \(bad\)"),
        (LocalEntryNotFoundError("offline"), FetchError, r"could not be fetched \(offline\)"),
        (TimeoutError(), FetchError, r"could not be fetched \(TimeoutError\); check the conn"),
    ],
)
def test_failures_are_the_callers_or_the_networks(client, failure, kind, sentence):
    client.failure = failure
    with pytest.raises(kind, match=sentence) as caught:
        hub.resolve("hf:org/repo:x.gguf")
    assert type(caught.value) is kind


def test_quiet_silences_the_clients_bars_and_restores_them(client):
    hub.resolve("hf:org/repo:x.gguf")
    assert client.bars == []
    hub.resolve("hf:org/repo:x.gguf", progress=False)
    assert client.bars == [False, True]


def test_the_client_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"run: pip install 'cutaway\[hf\]'"):
        hub.resolve("hf:org/repo:x.gguf")


def test_the_real_client_has_what_is_used():
    client = pytest.importorskip("huggingface_hub")
    utils = pytest.importorskip("huggingface_hub.utils")
    fake = Client([])
    assert all(hasattr(utils, name) for name in vars(fake.utils))
    used = ("HfApi", "try_to_load_from_cache", "hf_hub_download", "snapshot_download")
    assert all(hasattr(client, name) for name in used)


def test_the_real_client_finds_its_only_file_offline(tmp_path):
    pytest.importorskip("huggingface_hub")
    repo, commit = tmp_path / "models--org--repo", "0" * 40
    file = repo / "snapshots" / commit / "y.gguf"
    file.parent.mkdir(parents=True)
    file.touch()
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    code = "from cutaway.files import hub; print(hub.resolve('hf:org/repo'))"
    offline = os.environ | {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=offline, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == (f"{file}\n", "")
