"""Reads adapters (LoRA): GGUF files and folders of PEFT, named FILE or FILE:SCALE.

Knows how each kind of file names the model that its adapter was made for. An adapter may be the sum
of several files.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from cutaway.base.checks import check_finite, existing, shown
from cutaway.compute.backends import Backend
from cutaway.compute.model import Graph, ModelConfig
from cutaway.compute.model.lora import B, add_adapter, matrices_of, numbered_name
from cutaway.errors import FormatError, InputError
from cutaway.files.weights import ModelFile, TensorBytes, open_gguf, pieces
from cutaway.files.weights.cursor import quote

_FORMATS = ("F32", "F16", "BF16")
_LARGEST_SCALE = 1e6  # a larger factor is a mistake
_TOGETHER = 16  # the most files of one adapter


class AdapterFile(NamedTuple):
    """One file of an adapter, FILE or FILE:SCALE.

    scale  a factor of all products of the adapter, in addition to the factors in the file
    task   the task whose adapter is meant, if the path is a model's folder
    """

    path: Path
    scale: float
    task: str = ""

    @classmethod
    def read(cls, field: str, text: str) -> "AdapterFile":
        """Parse the text of a field; an InputError names the field."""
        if not text:
            raise InputError(field, " has an empty name between commas: leave the comma out")
        if path := existing(text):
            return cls(path, 1.0)
        name, _, number = text.rpartition(":")
        try:
            scale = check_finite(field, float(number))
        except (InputError, ValueError):
            name, scale = text, 1.0
        if not name or not (path := existing(name)):
            raise InputError(field, f": there is no file or folder {shown(name or text)}")
        if not -_LARGEST_SCALE <= scale <= _LARGEST_SCALE:
            raise InputError(
                field, f": the scale must be between -{_LARGEST_SCALE:g} and {_LARGEST_SCALE:g}"
            )
        return cls(path, scale)

    def __str__(self) -> str:
        """Return FILE:SCALE with an absolute path."""
        return f"{self.path.resolve()}:{self.scale!r}"

    @property
    def name(self) -> str:
        """The file's name without its suffix, or the folder's."""
        path = self.path.resolve()
        return path.name if path.is_dir() else path.stem


class AdapterFiles(NamedTuple):
    """The files of one adapter, whose products are added in this order."""

    files: tuple[AdapterFile, ...]

    @classmethod
    def read(cls, field: str, paths: Any) -> "AdapterFiles":
        """Parse a text or path, with commas between files; an InputError names the field."""
        if not isinstance(paths, (str, os.PathLike)) or not str(paths):
            raise InputError(field, f" must be FILE or FILE:SCALE, not {shown(paths)}")
        text = os.fspath(paths)
        names = [text] if _is_one(text) else text.split(",")
        if len(names) > _TOGETHER:
            raise InputError(field, f" has {len(names)} files; at most {_TOGETHER} are added")
        return cls(tuple(AdapterFile.read(field, name) for name in names))

    def __str__(self) -> str:
        """Return all files with absolute paths, separated by commas."""
        return ",".join(map(str, self.files))

    @property
    def name(self) -> str:
        """The files' names with "+" between them."""
        return "+".join(file.name for file in self.files)


def _is_one(text: str) -> bool:
    """Whether a text names one file: it has no commas, or a file has exactly this name."""
    names = [name for name in (text, text.rpartition(":")[0]) if "," in name]
    return not names or any(map(existing, names))


@dataclass(frozen=True)
class Adapter:
    """An adapter that fits a model.

    name    its default name
    graph   the model's graph with the adapter
    nbytes  how many bytes the adapter's tensors have
    sha256  the hash of the adapter's tensors and factors
    """

    name: str
    graph: Graph
    nbytes: int
    sha256: str
    _files: AdapterFiles
    _config: ModelConfig

    @classmethod
    def open(cls, files: AdapterFiles, graph: Graph, config: ModelConfig) -> "Adapter":
        """Open files. InputError if one is unreadable, FormatError if it does not fit the model."""
        digests, nbytes = list[str](), 0
        for number, adapter_file in enumerate(files.files):
            with _open(adapter_file, config) as (file, scales):
                shapes = {name: info.shape for name, info in file.tensors.items()}
                graph = add_adapter(graph, shapes, scales, number)
                nbytes += sum(info.nbytes for info in file.tensors.values())
                digests.append(_digest(file, scales))
        return cls(files.name, graph, nbytes, _combine_digests(digests), files, config)

    def put_on(self, backend: Backend) -> Backend:
        """Return a backend with the adapter. InputError if a file has changed since ``open``."""
        with ExitStack() as stack:
            pairs = [stack.enter_context(_open(f, self._config)) for f in self._files.files]
            if _combine_digests([_digest(*pair) for pair in pairs]) != self.sha256:
                raise InputError(
                    f"{self._files} has changed since it was opened: open the model again"
                )
            return backend.with_adapter(self.graph, _Together([file for file, _ in pairs]))


class _Together(ModelFile):
    """Several files as one file, in which tensors have the names that they have in the graph."""

    def __init__(self, files: Sequence[ModelFile]) -> None:
        self.path, self.metadata = files[0].path, MappingProxyType({})
        self._of = {
            numbered_name(name, number): (file, name)
            for number, file in enumerate(files)
            for name in file.tensors
        }
        self.tensors = MappingProxyType(
            {new: replace(file.info(name), name=new) for new, (file, name) in self._of.items()}
        )

    def raw(self, name: str) -> TensorBytes:
        """See ``ModelFile``."""
        self.info(name)
        file, name_in_file = self._of[name]
        return file.raw(name_in_file)

    def close(self) -> None:
        """Do nothing: whoever opened the files closes them."""


def _combine_digests(digests: Sequence[str]) -> str:
    """Return an adapter's hash from the hashes of its files."""
    return digests[0] if len(digests) == 1 else sha256(" ".join(digests).encode()).hexdigest()


@contextmanager
def _open(
    adapter_file: AdapterFile, config: ModelConfig
) -> Iterator[tuple[ModelFile, Mapping[str, float]]]:
    """Open a file's tensors for the ``with`` block, with the factor of each matrix's product."""
    try:
        file, scales = (
            _open_task(adapter_file) if adapter_file.task else _read(adapter_file.path, config)
        )
        with file:
            _check_formats(file)
            yield file, {name: adapter_file.scale * scale for name, scale in scales.items()}
    except FormatError as error:
        message = str(error)
        raise FormatError(
            message if str(adapter_file.path) in message else f"{adapter_file.path}: {message}"
        ) from error


def _open_task(adapter_file: AdapterFile) -> tuple[ModelFile, Mapping[str, float]]:
    from cutaway.files.huggingface.adapters import TaskAdapter

    adapter = TaskAdapter(adapter_file.path, adapter_file.task)
    return adapter, adapter.scales


def _read(path: Path, config: ModelConfig) -> tuple[ModelFile, Mapping[str, float]]:
    if path.is_dir():
        from cutaway.files.huggingface.adapters import PeftFolder

        folder = PeftFolder(path, config.architecture, config.heads, config.kv_heads)
        return folder, folder.scales
    if path.suffix == ".safetensors":
        raise InputError(f"{path} is one file of an adapter's folder: name the folder")
    file = open_gguf([path])
    return file, _scales(file, config.architecture)


def _scales(file: ModelFile, architecture: str) -> dict[str, float]:
    """Return each matrix's factor. FormatError if the metadata is not of a LoRA of this model."""
    for key, expected in (("general.type", "adapter"), ("adapter.type", "lora")):
        if (value := file.metadata.get(key)) != expected:
            raise FormatError(f"{key} is {value!r:.40}, and a LoRA's is {expected!r}")
    if (value := file.metadata.get("general.architecture")) != architecture:
        raise FormatError(
            f"the adapter is of the architecture {value!r:.40}, and the model's is {architecture}"
        )
    if "adapter.alora.invocation_tokens" in file.metadata:
        raise FormatError(
            "adapter.alora.invocation_tokens: an adapter that begins after some of the prompt's "
            "tokens is not supported; only plain LoRA is"
        )
    alpha = file.metadata.get("adapter.lora.alpha", 0.0)
    if (
        isinstance(alpha, bool)
        or not isinstance(alpha, (int, float))
        or not 0 <= alpha <= _LARGEST_SCALE
    ):
        raise FormatError(f"adapter.lora.alpha is {alpha!r:.40}; it must be a number, 0 or above")
    ranks = {name: file.info(name + B).shape[-1] for name in matrices_of(file.tensors)}
    return {name: alpha / rank if alpha else 1.0 for name, rank in ranks.items()}


def _check_formats(file: ModelFile) -> None:
    for name, info in file.tensors.items():
        if info.format not in _FORMATS:
            raise FormatError(
                f"the tensor {quote(name)} is stored as {info.format}, and an adapter's must be "
                f"{', '.join(_FORMATS)}: convert the adapter again"
            )


def _digest(file: ModelFile, scales: Mapping[str, float]) -> str:
    digest = sha256(repr(sorted(scales.items())).encode())
    for name in sorted(file.tensors):
        info = file.tensors[name]
        digest.update(repr((name, info.format, info.shape)).encode())
        for piece in pieces(file.raw(name)):
            digest.update(piece.data)
    return digest.hexdigest()
