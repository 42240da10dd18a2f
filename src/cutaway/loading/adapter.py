"""Adapters (LoRA) as they are asked for, and read: GGUF files, and folders of PEFT.

Knows what each kind says of the model that it is for. Refuses to know how it is computed.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from cutaway.backends import Backend
from cutaway.checks import check_finite, shown
from cutaway.errors import FormatError, InputError
from cutaway.model import Graph, ModelConfig, adapted
from cutaway.model.lora import B, matrices_of
from cutaway.weights import ModelFile, open_gguf

_FORMATS = ("F32", "F16", "BF16")
_MOST = 1e6
"""Of a factor: beyond it, it is a mistake."""


class Asked(NamedTuple):
    """An adapter as it is asked for, FILE or FILE:SCALE.

    scale  by what all that it adds is multiplied, beside its own factors
    """

    path: Path
    scale: float

    @classmethod
    def read(cls, field: str, given: Any) -> "Asked":
        """Of a text or path; InputError, naming the field, where it is none."""
        if not isinstance(given, (str, os.PathLike)) or not str(given):
            raise InputError(f"{field} must be FILE or FILE:SCALE, not {shown(given)}")
        text = os.fspath(given)
        path = Path(text).expanduser()
        if path.exists():
            return cls(path, 1.0)
        name, _, number = text.rpartition(":")
        try:
            scale = check_finite(field, float(number))
        except (InputError, ValueError):
            name, scale = text, 1.0
        if not name or not (path := Path(name).expanduser()).exists():
            raise InputError(f"{field}: there is no file or folder {shown(name or text)}")
        if not -_MOST <= scale <= _MOST:
            raise InputError(f"{field}: the scale must be between -{_MOST:g} and {_MOST:g}")
        return cls(path, scale)

    def __str__(self) -> str:
        """As it can be asked for in any folder."""
        return f"{self.path.resolve()}:{self.scale!r}"

    @property
    def name(self) -> str:
        """What to call it: the file without its suffix, or the folder."""
        path = self.path.resolve()
        return path.name if path.is_dir() else path.stem


@dataclass(frozen=True)
class Adapter:
    """One that fits a model.

    name    what to call it where nobody says
    graph   the model's, with it
    nbytes  of its tensors
    sha256  of all that it is computed from, factors included
    """

    name: str
    graph: Graph
    nbytes: int
    sha256: str
    _asked: Asked
    _config: ModelConfig

    @classmethod
    def open(cls, asked: Asked, graph: Graph, config: ModelConfig) -> "Adapter":
        """InputError where it cannot be read, FormatError where it is none, or of another model."""
        with _opened(asked, config) as (file, scales):
            shapes = {name: info.shape for name, info in file.tensors.items()}
            made, nbytes = (
                adapted(graph, shapes, scales),
                sum(i.nbytes for i in file.tensors.values()),
            )
            return cls(asked.name, made, nbytes, _digest(file, scales), asked, config)

    def put_on(self, backend: Backend) -> Backend:
        """The model's backend with it. InputError where its file has changed since."""
        with _opened(self._asked, self._config) as (file, scales):
            if _digest(file, scales) != self.sha256:
                raise InputError(
                    f"{self._asked.path} has changed since it was opened: open the model again"
                )
            return backend.adapted(self.graph, file)


@contextmanager
def _opened(asked: Asked, config: ModelConfig) -> Iterator[tuple[ModelFile, Mapping[str, float]]]:
    """An adapter's tensors, and by matrix what its product is multiplied by."""
    try:
        file, scales = _read(asked.path, config)
        with file:
            _check_formats(file)
            yield file, {name: asked.scale * scale for name, scale in scales.items()}
    except FormatError as error:
        said = str(error)
        raise FormatError(said if str(asked.path) in said else f"{asked.path}: {said}") from error


def _read(path: Path, config: ModelConfig) -> tuple[ModelFile, Mapping[str, float]]:
    if path.is_dir():
        from cutaway.huggingface.peft import PeftFolder  # most adapters are one file

        folder = PeftFolder(path, config.architecture, config.heads, config.kv_heads)
        return folder, folder.scales
    if path.suffix == ".safetensors":
        raise InputError(f"{path} is one file of an adapter's folder: name the folder")
    file = open_gguf([path])
    return file, _scales(file, config.architecture)


def _scales(file: ModelFile, architecture: str) -> dict[str, float]:
    """By matrix, what the metadata says; FormatError where it is of no LoRA of this model."""
    for key, wanted in (("general.type", "adapter"), ("adapter.type", "lora")):
        if (found := file.metadata.get(key)) != wanted:
            raise FormatError(f"{key} is {found!r:.40}, and a LoRA's is {wanted!r}")
    if (found := file.metadata.get("general.architecture")) != architecture:
        raise FormatError(
            f"the adapter is of the architecture {found!r:.40}, and the model's is {architecture}"
        )
    if "adapter.alora.invocation_tokens" in file.metadata:
        raise FormatError(
            "adapter.alora.invocation_tokens: an adapter that begins behind some of the prompt's "
            "tokens is not supported; only plain LoRA is"
        )
    alpha = file.metadata.get("adapter.lora.alpha", 0.0)
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not 0 <= alpha <= _MOST:
        raise FormatError(f"adapter.lora.alpha is {alpha!r:.40}; it must be a number, 0 or above")
    ranks = {name: file.info(name + B).shape[-1] for name in matrices_of(file.tensors)}
    return {name: alpha / rank if alpha else 1.0 for name, rank in ranks.items()}


def _check_formats(file: ModelFile) -> None:
    for name, info in file.tensors.items():
        if info.format not in _FORMATS:
            raise FormatError(
                f"the tensor {name[:80]} is stored as {info.format}, and an adapter's must be "
                f"{', '.join(_FORMATS)}: convert the adapter again"
            )


def _digest(file: ModelFile, scales: Mapping[str, float]) -> str:
    digest = sha256(repr(sorted(scales.items())).encode())
    for name in sorted(file.tensors):
        info = file.tensors[name]
        digest.update(repr((name, info.format, info.shape)).encode())
        digest.update(file.raw(name).data)
        file.release(name)
    return digest.hexdigest()
