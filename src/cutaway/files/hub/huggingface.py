"""A file of a repository on the Hugging Face hub, or the repository as a folder.

Knows the form ``org/repo[:file]``, and which of the client's errors are the caller's and which are
the network's.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from logging import CRITICAL
from pathlib import Path
from typing import Any

from cutaway.errors import CutawayError, FetchError, InputError
from cutaway.files.hub.catalog import parts_of

_MAX_CHOICES = 12
_FOLDER = ("*.json", "*.jinja", "*.txt", "model*.safetensors")  # what a model's folder needs


def fetch_repo_file(spec: str, *, progress: bool = True) -> Path:
    """Return the file of ``org/repo:file.gguf``, or of ``org/repo`` if that has just one.

    For a model in several parts, fetch all and return the first. For a repository without .gguf
    files, but with config.json and safetensors files, return its folder. Files fetched before are
    found without the network. Raises InputError if the name is not of that form, the repository or
    file does not exist, or there are several files to choose from; FetchError if the hub cannot be
    reached.
    """
    repo, _, file = spec.partition(":")
    _check(spec, repo, file)
    client = _client(spec)
    with _explain_errors(client, spec), _quiet_log(client):
        choice = file or _only_file(client, repo)
        if isinstance(choice, Path):
            return choice
        files = [] if choice is None else parts_of(choice)
        cached = [client.try_to_load_from_cache(repo, name) for name in files]
        if files and all(isinstance(name, str) for name in cached):
            return Path(cached[0])
        with _progress_bars(client, show=progress):
            if choice is None:
                return Path(client.snapshot_download(repo, allow_patterns=_FOLDER))
            first, *_ = [client.hf_hub_download(repo, name) for name in files]
            return Path(first)


def _check(spec: str, repo: str, file: str) -> None:
    org, _, name = repo.partition("/")
    if not org or not name or "/" in name:
        raise InputError(
            "model", f" 'hf:{spec}' must have the form hf:org/repo or hf:org/repo:file"
        )
    if file and not file.lower().endswith(".gguf"):
        raise InputError("model", f" 'hf:{spec}' names a file that is not a .gguf file; name one")


def _client(spec: str) -> Any:
    try:
        import huggingface_hub.utils
    except ImportError:
        raise InputError(
            "model",
            f" 'hf:{spec}' needs the Hugging Face client, which 'tokenizers' usually brings; "
            "run: pip install 'cutaway[hf]'",
        ) from None
    return huggingface_hub


def _only_file(client: Any, repo: str) -> str | Path | None:
    """Return the only .gguf file's name, or the path of a folder that was fetched before.

    None means that the folder is yet to be fetched.
    """
    try:
        listing = list(client.HfApi().list_repo_files(repo))
    except Exception as error:
        folder = None if _is_callers(client, error) else _cached_folder(client, repo)
        if folder is None or (
            len(_gguf(listing := _names(folder))) != 1 and not _is_folder(listing)
        ):
            raise
        if _is_folder(listing):
            return folder
    if _is_folder(listing):
        return None
    files = _gguf(listing)
    if not files:
        raise InputError(
            "model",
            f" 'hf:{repo}' holds no .gguf file, and no config.json with safetensors; "
            "name another repository",
        )
    if len(files) > 1:
        more = f" and {len(files) - _MAX_CHOICES} more" if len(files) > _MAX_CHOICES else ""
        choices = ", ".join(files[:_MAX_CHOICES])
        raise InputError(
            "model",
            f" 'hf:{repo}' holds {len(files)} .gguf files; "
            f"name one as hf:{repo}:FILE, out of {choices}{more}",
        )
    return str(files[0])


def _gguf(files: Iterable[str]) -> list[str]:
    """Return the models among the files: the first part of each."""
    return sorted({parts_of(file)[0] for file in files if file.lower().endswith(".gguf")})


def _is_folder(files: Iterable[str]) -> bool:
    """Whether the files are a folder of transformers without any .gguf file to choose instead."""
    files = list(files)
    weights = any(fnmatch(file, _FOLDER[-1]) for file in files)
    return "config.json" in files and weights and not _gguf(files)


def _cached_folder(client: Any, repo: str) -> Path | None:
    """Return the repository's folder in the client's own cache; None if it was never fetched."""
    try:
        return Path(client.snapshot_download(repo, local_files_only=True))
    except Exception:  # never fetched: the network's own error says more
        return None


def _names(folder: Path) -> list[str]:
    return [str(file.relative_to(folder)) for file in folder.rglob("*")]


@contextmanager
def _quiet_log(client: Any) -> Iterator[None]:
    """Silence the client, which logs every attempt: the error at the end suffices."""
    log = client.utils.logging.get_logger("huggingface_hub")  # this call sets the level, once
    level = log.level
    log.setLevel(CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


@contextmanager
def _explain_errors(client: Any, spec: str) -> Iterator[None]:
    try:
        yield
    except CutawayError:
        raise
    except Exception as error:  # its classes depend on the client's version and its HTTP library
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        if _is_callers(client, error):
            raise InputError("model", f" 'hf:{spec}' was not found ({reason}); check it") from error
        raise FetchError(
            f"model 'hf:{spec}' could not be fetched ({reason}); check the connection, "
            "or pass the path of a .gguf file as the model"
        ) from error


def _is_callers(client: Any, error: Exception) -> bool:
    kinds = client.utils  # where every version of the client has them
    if isinstance(error, kinds.LocalEntryNotFoundError):
        return False  # an EntryNotFoundError by inheritance, but it means: no connection
    return isinstance(
        error,
        kinds.RepositoryNotFoundError | kinds.EntryNotFoundError | kinds.HFValidationError,
    )


@contextmanager
def _progress_bars(client: Any, *, show: bool) -> Iterator[None]:
    utils = client.utils
    if show or utils.are_progress_bars_disabled():
        yield
        return
    utils.disable_progress_bars()
    try:
        yield
    finally:
        utils.enable_progress_bars()
