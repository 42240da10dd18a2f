"""From what a person typed to a file.

Knows the kinds of name (alias, path, file in the cache, ``hf:org/repo``) and the order in which
they are tried.
"""

from pathlib import Path

from cutaway.errors import InputError
from cutaway.files.hub import cache
from cutaway.files.hub.catalog import CATALOG, DEFAULT_MODEL, CatalogModel, find

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
        if path := located(model):
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
        raise InputError(f"model {_shown(name)} cannot be looked up: {reason}") from error


def located(model: CatalogModel) -> Path | None:
    """Return where the model's file is on this machine already, or None."""
    return cache.cached(model) or cache.installed(model)


def _local(name: str) -> Path:
    path = Path(name).expanduser()
    if path.is_file():
        return path  # whatever it is called: what is inside decides
    if name and (path / "config.json").is_file():
        return path
    if name and path.is_dir():
        raise InputError(
            f"model {_shown(name)} is a folder without a config.json; name a folder that "
            "transformers has saved, or the .gguf file in it"
        )
    if path.exists() and name:
        raise InputError(f"model {_shown(name)} is not a regular file; name a .gguf file")
    in_cache = cache.models_dir() / name
    if path.name == name and path.suffix.lower() == ".gguf" and in_cache.is_file():
        return in_cache
    if "/" in name or path.suffix.lower() == ".gguf":
        raise InputError(f"model file {_shown(name)} does not exist; check the path")
    raise InputError(_unknown(name))


def _unknown(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name.lower(), CATALOG, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return (
        f"unknown model {_shown(name)}: {hint}name one of {', '.join(CATALOG)}, "
        "the path of a .gguf file or of a folder, or hf:org/repo[:file.gguf]"
    )


def _shown(name: str) -> str:
    # A whole prompt in the wrong place must not fill the screen.
    return repr(name if len(name) <= 200 else f"{name[:200]}…")
