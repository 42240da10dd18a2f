"""Where models lie on this machine.

Knows the cache's folders, and where an installed package keeps a model's file.
"""

import os
from importlib.util import find_spec
from pathlib import Path

from cutaway.errors import InputError
from cutaway.files.hub.catalog import CatalogModel, WheelFile


def cache_dir() -> Path:
    """Return cutaway's cache: CUTAWAY_HOME, else $XDG_CACHE_HOME/cutaway, else ~/.cache/cutaway.

    Raises InputError when CUTAWAY_HOME names something that cannot be a folder.
    """
    if home := os.environ.get("CUTAWAY_HOME"):
        return _chosen_home(home)
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification says that a relative path is to be ignored.
    base = Path(xdg) if xdg.startswith("/") else _expand("~/.cache")
    return base / "cutaway"


def _chosen_home(value: str) -> Path:
    path = _expand(value).absolute()
    if path.is_file():
        raise InputError(f"CUTAWAY_HOME is the file {str(path)!r}; set it to a folder")
    return path


def _expand(value: str) -> Path:
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise InputError(f"{value!r} names no home folder; set CUTAWAY_HOME to a folder") from None


def models_dir() -> Path:
    """Return the folder of the finished files; every file in it is whole."""
    return cache_dir() / "models"


def staging_dir() -> Path:
    """Return the folder of unfinished work; nothing in it is ever used as a model."""
    return cache_dir() / "staging"


def cached(model: CatalogModel) -> Path | None:
    """Return the model's file or folder in the cache if it is there in its full size."""
    sizes = [file_size(models_dir() / name) for name in dict.fromkeys(model.names)]
    whole = -1 not in sizes and sum(sizes) == model.size
    return models_dir() / model.file if whole else None


def installed(model: CatalogModel) -> Path | None:
    """Return the model inside an installed package, if one file or folder there is all of it."""
    if not is_installed(model) or (len(model.parts) > 1 and not model.folder):
        return None
    path = installed_path(model.parts[0])
    return path.parent if path and model.folder else path


def is_installed(model: CatalogModel) -> bool:
    """Whether installed packages hold all the parts and license files, in their full size."""
    sizes = [_installed_size(part) for part in model.parts]
    licenses = [_installed_size(part) for part in model.license_files]
    return -1 not in sizes + licenses and sum(sizes) == model.size


def installed_path(part: WheelFile) -> Path | None:
    """Return where an installed package has, or would have, the part; it is not imported.

    A package that is installed for editing has several folders: its own, and the checkout's.
    """
    spec = find_spec(part.module)
    if spec is None or not spec.submodule_search_locations:
        return None
    places = [Path(place).parent / part.member for place in spec.submodule_search_locations]
    return next((place for place in places if file_size(place) >= 0), places[0])


def _installed_size(part: WheelFile) -> int:
    path = installed_path(part)
    return -1 if path is None else file_size(path)


def file_size(path: Path) -> int:
    """Return the size in bytes, or -1 if there is no file that can be looked at."""
    try:
        return path.stat().st_size if path.is_file() else -1
    except OSError:
        return -1
