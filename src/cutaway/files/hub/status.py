"""Which models there are, where on this machine, and whether their files are intact.

Knows the state of each model on this machine and how to hash a file again.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cutaway.errors import FormatError, InputError
from cutaway.files.hub import cache
from cutaway.files.hub.catalog import CATALOG, DEFAULT_MODEL, CatalogModel, find
from cutaway.files.hub.names import located

State = Literal["cached", "in package", "not fetched"]


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """A model and its state here. ``size`` is the file's, in bytes; ``license`` None: unknown."""

    name: str
    title: str
    license: str | None
    size: int
    state: State
    path: Path | None


def available() -> list[ModelStatus]:
    """Return the models of the catalog, then the other .gguf files of the cache, by name."""
    return [_status(model) for model in CATALOG.values()] + _others()


def _status(model: CatalogModel) -> ModelStatus:
    path = located(model)
    state: State = "not fetched"
    if path:
        state = "cached" if path == cache.cached(model) else "in package"
    elif cache.is_installed(model):
        state = "in package"  # in parts, which the first use puts together
    return ModelStatus(model.alias, model.title, model.license, model.size, state, path)


def _others() -> list[ModelStatus]:
    known = {model.file for model in CATALOG.values()}
    files = sorted(cache.models_dir().glob("*.[gG][gG][uU][fF]"))
    return [
        ModelStatus(file.name, file.stem, None, cache.file_size(file), "cached", file)
        for file in files
        if file.name not in known
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
    path = located(model)
    if path is None:
        raise InputError(f"model {name!r} is not on this machine; run: cutaway pull {model.alias}")
    inside = [part.member.removeprefix(model.folder) for part in model.parts]
    if _digest([path / name for name in inside] if model.folder else [path]) != model.sha256:
        raise FormatError(
            f"{path} is damaged: its sha256 is not the pinned one; "
            f"delete it and run: cutaway pull {model.alias}"
        )
    return path


def _digest(files: list[Path]) -> str:
    """Of all bytes, file by file."""
    from hashlib import file_digest, sha256

    digest = sha256()
    for path in files:
        try:
            with path.open("rb") as file:
                file_digest(file, lambda: digest)
        except OSError as error:
            said = f"model file {str(path)!r} cannot be read ({error.strerror})"
            raise InputError(said) from error
    return digest.hexdigest()
