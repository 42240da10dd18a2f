"""Opens a model on disk: a GGUF file, its parts, or a folder of transformers.

Knows which of the three a path names, which files the model has, and what it is called.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from cutaway.errors import InputError
from cutaway.files.hub import parts_of, whole_name
from cutaway.files.weights import ModelFile, open_gguf


def open_model(path: Path) -> ModelFile:
    """Open the model at a path; the file's reader raises InputError and FormatError."""
    if path.suffix == ".safetensors" or path.name == "config.json":
        raise InputError(f"{path} is one file of a model's folder: name the folder, {path.parent}")
    if not path.is_dir():
        return open_gguf(files_of(path))
    from cutaway.files.huggingface import HuggingFaceFolder  # most models are one file

    return HuggingFaceFolder(path)


def model_name(path: Path, quantize: str | None = None, kv: str = "f16") -> str:
    """Return a model's name: its file's without the suffix, its folder's, or its repository's.

    quantize, kv: the settings of ``Setup``
    """
    if kv != "f16":
        return f"{model_name(path, quantize)}+kv-{kv}"
    if quantize is not None:
        return f"{model_name(path)}+{quantize}"
    if not path.is_dir():
        return Path(whole_name(path.name)).stem
    folder = path.resolve()
    if folder.parent.name == "snapshots" and (repo := folder.parents[1].name).startswith(
        "models--"
    ):
        return repo.split("--")[-1]
    return folder.name


def files_of(path: Path) -> list[Path]:
    """List the files that define what the model computes and how text becomes tokens.

    InputError if a part of the model is missing.
    """
    if not path.is_dir():
        names = parts_of(path.name)
        missing = [name for name in names if not (path.parent / name).is_file()]
        if missing and len(names) > 1:
            raise InputError(
                f"{path}: of the {len(names)} parts of this model, {missing[0]} "
                + (f"and {len(missing) - 1} more are" if len(missing) > 1 else "is")
                + f" missing: put all of them into {path.parent}"
            )
        return [path.parent / name for name in names]
    from cutaway.files.huggingface import parts

    return parts(path)


def stat_model(path: Path) -> list[os.stat_result]:
    """Return the status of each of a model's files."""
    return [file.stat() for file in files_of(path)]


def stamp(files: Sequence[os.stat_result]) -> list[list[int]]:
    """Return, for each file, numbers that change when the file changes; the times come last."""
    return [
        [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns] for status in files
    ]


def size_of(path: Path) -> int:
    """Return how many bytes a model's files have together."""
    return sum(status.st_size for status in stat_model(path))
