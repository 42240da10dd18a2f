from pathlib import Path

import pytest

from cutaway.files.hub import catalog, fetch
from support import tiny_hub


class World:
    """A temporary home, a fake index, and the count of pip's runs."""

    def __init__(self, root: Path) -> None:
        self.home = root / "a home, naïve – 家"
        self.wheels = root / "wheels"
        self.log = root / "pip runs"
        tiny_hub.write_wheels(self.wheels)

    @property
    def model(self) -> Path:
        return self.home / "models" / "tiny.gguf"

    def pip_runs(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def left_over(self) -> list[Path]:
        """Whatever lies in the cache besides finished models and locks."""
        files = [path for path in self.home.rglob("*") if path.suffix != ".lock"]
        return [path for path in files if path.is_file() and path.parent.name != "models"]

    def is_clean(self) -> bool:
        """Whether there is neither the model nor anything of it."""
        return not self.model.exists() and not self.left_over()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path)
    monkeypatch.setenv("CUTAWAY_HOME", str(world.home))
    monkeypatch.setenv("FAKE_WHEELS", str(world.wheels))
    monkeypatch.setenv("FAKE_LOG", str(world.log))
    monkeypatch.setitem(catalog.CATALOG, "tiny", tiny_hub.TINY)
    monkeypatch.setitem(catalog.CATALOG, "parts", tiny_hub.PARTS)
    monkeypatch.setitem(catalog.CATALOG, "folder", tiny_hub.FOLDER)
    monkeypatch.setattr(fetch, "pip_command", tiny_hub.fake_pip)
    return world


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages that hold the models."""
    tiny_hub.install_packages(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    return tmp_path / "site"
