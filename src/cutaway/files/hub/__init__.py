"""Find the file on disk that a model's name stands for.

Knows the kinds of name (alias, path, file in the cache, ``hf:org/repo``), the order in which they
are tried, and the state of each model on this machine. A model that is already here is found
without the network and without pip. `fetch` and `huggingface` know how a file is fetched.
"""

from pathlib import Path
from typing import Literal, NamedTuple

from cutaway.errors import FormatError, InputError
from cutaway.files.hub import catalog
from cutaway.files.hub.catalog import (
    CATALOG,
    DEFAULT_MODEL,
    CatalogModel,
    cache_dir,
    find,
    parts_of,
    whole_name,
)

HF_PREFIX = "hf:"


def resolve(name: str | Path | None = None, *, progress: bool = True) -> Path:
    """Return the file or folder of a model; None is the default model.

    ``name`` is an alias (in any case), a path to a GGUF file or to a folder of transformers
    (which has a config.json), the name of a .gguf file in the cache's ``models`` folder, or
    ``hf:org/repo[:file]``. An alias is looked for in the cache, then in installed packages, and
    is only then fetched. ``progress`` allows lines and a bar on standard error.

    Raises InputError for a name that means nothing, FetchError if fetching fails.
    """
    name = DEFAULT_MODEL if name is None else str(name)
    if model := find(name):
        if path := find_local(model):
            return path
        from cutaway.files.hub.fetch import fetch  # brings zipfile and subprocess, needed once ever

        return fetch(model, progress=progress)
    if name.startswith(HF_PREFIX):
        from cutaway.files.hub.huggingface import fetch_repo_file

        return fetch_repo_file(name.removeprefix(HF_PREFIX), progress=progress)
    try:
        return _local(name)
    except InputError:
        raise
    except (OSError, RuntimeError) as error:  # no permission, a name too long, no such home
        reason = getattr(error, "strerror", None) or error
        raise InputError("model", f" {_short_repr(name)} cannot be looked up: {reason}") from error


def find_local(model: CatalogModel) -> Path | None:
    """Return where the model's file is on this machine already, or None."""
    return catalog.find_cached(model) or catalog.find_installed(model)


def _local(name: str) -> Path:
    path = Path(name).expanduser()
    if path.is_file():
        return path  # whatever its name: its content decides
    if name and (path / "config.json").is_file():
        return path
    if name and path.is_dir():
        raise InputError(
            "model",
            f" {_short_repr(name)} is a folder without a config.json; name a folder that "
            "transformers has saved, or the .gguf file in it",
        )
    if path.exists() and name:
        raise InputError("model", f" {_short_repr(name)} is not a regular file; name a .gguf file")
    in_cache = catalog.models_dir() / name
    if path.name == name and path.suffix.lower() == ".gguf" and in_cache.is_file():
        return in_cache
    if "/" in name or path.suffix.lower() == ".gguf":
        raise InputError("model", f" file {_short_repr(name)} does not exist; check the path")
    raise InputError(_unknown(name))


def _unknown(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name.lower(), CATALOG, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return (
        f"unknown model {_short_repr(name)}: {hint}name one of {', '.join(CATALOG)}, "
        "the path of a .gguf file or of a folder, or hf:org/repo[:file.gguf]"
    )


def _short_repr(name: str) -> str:
    # A whole prompt in the wrong place must not fill the screen.
    return repr(name if len(name) <= 200 else f"{name[:200]}…")


# -- which models there are, and whether their files are intact ------------------------------------


State = Literal["cached", "in package", "not fetched"]


class ModelStatus(NamedTuple):
    """A model and its state on this machine. size: bytes of its file; license: None if unknown."""

    name: str
    title: str
    license: str | None
    size: int
    state: State
    path: Path | None


def available() -> list[ModelStatus]:
    """Return the models of the catalog, then the other .gguf files of the cache, by name."""
    return [_status(model) for model in CATALOG.values()] + _other_files()


def _status(model: CatalogModel) -> ModelStatus:
    path = find_local(model)
    state: State = "not fetched"
    if path:
        state = "cached" if path == catalog.find_cached(model) else "in package"
    elif catalog.is_installed(model):
        state = "in package"  # in parts, which are joined on first use
    return ModelStatus(model.alias, model.title, model.license, model.size, state, path)


def _other_files() -> list[ModelStatus]:
    catalog_files = {model.file for model in CATALOG.values()}
    files = sorted(catalog.models_dir().glob("*.[gG][gG][uU][fF]"))
    return [
        ModelStatus(file.name, file.stem, None, catalog.file_size(file), "cached", file)
        for file in files
        if file.name not in catalog_files
    ]


def verify(name: str | None = None) -> Path:
    """Hash the model's file again and return its path; ``name`` is an alias, None the default.

    Raises InputError for a name without a pinned checksum or a model that is not here, and
    FormatError for a file whose bytes have changed.
    """
    name = name or DEFAULT_MODEL
    model = find(name)
    if model is None:
        raise InputError(
            f"no checksum is known for model {name!r}; name one of {', '.join(CATALOG)}"
        )
    path = find_local(model)
    if path is None:
        raise InputError(
            "model", f" {name!r} is not on this machine; run: cutaway pull {model.alias}"
        )
    inside = [part.member.removeprefix(model.folder) for part in model.parts]
    if _digest([path / name for name in inside] if model.folder else [path]) != model.sha256:
        raise FormatError(
            f"{path} is damaged: its sha256 is not the pinned one; "
            f"delete it and run: cutaway pull {model.alias}"
        )
    return path


def _digest(files: list[Path]) -> str:
    """Return the SHA-256 of all bytes, file by file."""
    from hashlib import file_digest, sha256

    digest = sha256()
    for path in files:
        try:
            with path.open("rb") as file:
                file_digest(file, lambda: digest)
        except OSError as error:
            problem = f" file {str(path)!r} cannot be read ({error.strerror})"
            raise InputError("model", problem) from error
    return digest.hexdigest()
